"""What a run ran on: versions and device, read in the process that runs the engine.

Every report carries it. Nothing is imported for it and nothing is guessed: a part that cannot be
read is '', and is said to be unknown.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    distribution,
    distributions,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.checkout import GitFailed, read_checkout
from fuzzgraph.errors import UNREADABLE
from fuzzgraph.strict_json import decode_json
from fuzzgraph.text.escaping import one_line

_OURS = "fuzzgraph"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Names and versions; '' for what is unknown."""

    engine: str = ""
    """Package of the engine, e.g. 'sglang'; 'fuzzgraph' for the built-in engine."""
    engine_version: str = ""
    engine_commit: str = ""
    """Of a checkout or an installation from one."""
    engine_branch: str = ""
    engine_changes: str = ""
    """Digest of what differs from the commit; '' for nothing."""
    engine_below: str = ""
    """Path of the package's folder below the root of the checkout."""
    torch: str = ""
    triton: str = ""
    """'' also where there is none."""
    python: str = ""
    platform: str = ""
    """System and processor, e.g. 'Linux x86_64'."""
    device: str = ""
    """'CPU', or the name of the GPU with its runtime."""


UNKNOWN = Environment()


def read_environment(packages: Sequence[str], device: str) -> Environment:
    """What is installed and loaded here.

    Args:
        packages: import names of the engine's packages; the first one names it.
        device: torch device of the run.
    """
    engine = packages[0].partition(".")[0] if packages else ""
    found = _distribution(engine)
    return Environment(
        engine=engine,
        engine_version=_version(engine),
        **(_checkout_of(engine, found) if engine != _OURS else {}),
        torch=_version("torch"),
        triton=_version("triton"),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}".strip(),
        device=_device(device),
    )


def environment_lines(environment: Environment) -> list[str]:
    """Engine, versions, device: one line each."""
    if environment == UNKNOWN:
        return ["unknown: the run did not record it"]
    lines = [_engine_line(environment)]
    triton = f"Triton {environment.triton}" if environment.triton else "no Triton"
    python = f"Python {environment.python or 'of unknown version'}"
    torch = f"torch {environment.torch or 'of unknown version'}"
    lines.append(f"{torch}, {triton}, {python}, {environment.platform or 'unknown platform'}")
    lines.append(environment.device or "device unknown")
    return [one_line(line) for line in lines]


def _engine_line(environment: Environment) -> str:
    version = environment.engine_version or "of unknown version"
    if environment.engine == _OURS:
        return f"built-in engine of FuzzGraph {version}"
    name = f"{environment.engine or 'unknown engine'} {version}"
    branch = f" on {environment.engine_branch}" if environment.engine_branch else ""
    changes = f" with changes {environment.engine_changes}" if environment.engine_changes else ""
    below = f" in {environment.engine_below}" if environment.engine_below else ""
    return f"{name}, commit {environment.engine_commit or 'unknown'}{branch}{changes}{below}"


def _distribution(package: str) -> Distribution | None:
    """Its installation; None for a tree that lies before an installed one on the path."""
    folder = _loaded_from(package)
    if folder is not None:
        for beside in distributions(name=package, path=[str(folder.parent)]):
            return beside
    try:
        found = distribution(package) if package else None
    except (PackageNotFoundError, ValueError):
        return None
    another = found is not None and folder is not None and _holds(found, package)
    return None if another else found


def _holds(found: Distribution, package: str) -> bool:
    """Whether an installation has the package's files; an editable one has them elsewhere."""
    return Path(str(found.locate_file(package))).is_dir()


def _loaded_from(package: str) -> Path | None:
    """Folder of a package that is loaded in this process."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return Path(file).parent if isinstance(file, str) else None


def _version(package: str) -> str:
    """As its own metadata says, else as the module that is loaded says."""
    found = _distribution(package)
    if found is not None:
        return str(found.version or "")
    told = vars(sys.modules[package]).get("__version__", "") if package in sys.modules else ""
    return told if isinstance(told, str) else ""


def _checkout_of(package: str, found: Distribution | None) -> dict[str, str]:
    """Of an installation from a repository (PEP 610), or of the checkout that it runs from."""
    if found is not None:
        try:
            record: Any = decode_json(found.read_text("direct_url.json") or "{}")
            commit = str(record.get("vcs_info", {}).get("commit_id", ""))
            editable = bool(record.get("dir_info", {}).get("editable"))
        except (AttributeError, OSError, *UNREADABLE):
            return {}
        if _COMMIT.fullmatch(commit) and not editable:
            return {"engine_commit": commit}
    return _checkout_here(package)


def _checkout_here(package: str) -> dict[str, str]:
    """What git says of the folder of a package; nothing where it says nothing."""
    try:
        folder = _loaded_from(package) or _found_in(package)
        seen = read_checkout(folder) if folder else None
    except (OSError, ValueError, ImportError, AttributeError, GitFailed):
        return {}
    if seen is None:
        return {}
    return {
        "engine_commit": seen.commit,
        "engine_branch": seen.branch,
        "engine_changes": seen.difference,
        "engine_below": seen.below,
    }


def _found_in(package: str) -> Path | None:
    spec = find_spec(package) if package else None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _device(device: str) -> str:
    """The GPU that torch would use; torch is loaded where an engine runs."""
    if device == "cpu":
        return "CPU"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"{torch.cuda.get_device_name(device)}, {runtime}"
