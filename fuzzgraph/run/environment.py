"""What a run ran on: versions and device, read in the process that runs the engine.

Every report carries it. Nothing is imported for it and nothing is guessed: a part that cannot be
read is '', and is said to be unknown.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.errors import UNREADABLE
from fuzzgraph.strict_json import decode_json
from fuzzgraph.text.escaping import one_line

_OURS = "fuzzgraph"
_COMMIT = re.compile(r"[0-9a-f]{7,64}(-dirty)?")
_GIT_SECONDS = 5.0


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Names and versions; '' for what is unknown."""

    engine: str = ""
    """Package of the engine, e.g. 'sglang'; 'fuzzgraph' for the built-in engine."""
    engine_version: str = ""
    engine_commit: str = ""
    """Of a checkout or an installation from one; '-dirty' where files were changed."""
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
        engine_commit=_commit(engine, found) if engine != _OURS else "",
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
    commit = environment.engine_commit or "unknown"
    return f"{environment.engine or 'unknown engine'} {version}, commit {commit}"


def _distribution(package: str) -> Distribution | None:
    try:
        return distribution(package) if package else None
    except (PackageNotFoundError, ValueError):
        return None


def _version(package: str) -> str:
    """As its own metadata says, else as the module that is loaded says."""
    found = _distribution(package)
    if found is not None:
        return str(found.version or "")
    told = vars(sys.modules[package]).get("__version__", "") if package in sys.modules else ""
    return told if isinstance(told, str) else ""


def _commit(package: str, found: Distribution | None) -> str:
    """Of an installation from a repository (PEP 610), or of the checkout that it runs from."""
    if found is not None:
        try:
            record: Any = decode_json(found.read_text("direct_url.json") or "{}")
            commit = str(record.get("vcs_info", {}).get("commit_id", ""))
            editable = bool(record.get("dir_info", {}).get("editable"))
        except (AttributeError, OSError, *UNREADABLE):
            return ""
        if not editable:
            return commit if _COMMIT.fullmatch(commit) else ""
    return _checkout_commit(package)


def _checkout_commit(package: str) -> str:
    """What git says of the folder of a package; '' where it says nothing."""
    try:
        spec = find_spec(package) if package else None
        if spec is None or not spec.origin:
            return ""
        folder = str(Path(spec.origin).parent)
        command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=40"]
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except (OSError, ValueError, ImportError, AttributeError, subprocess.SubprocessError):
        return ""
    commit = done.stdout.strip()
    return commit if not done.returncode and _COMMIT.fullmatch(commit) else ""


def _device(device: str) -> str:
    """The GPU that torch would use; torch is loaded where an engine runs."""
    if device == "cpu":
        return "CPU"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"{torch.cuda.get_device_name(device)}, {runtime}"
