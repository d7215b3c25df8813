"""Looks at the machine: device, graphs, Triton, dtypes, engines. Changes nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import msgspec

import fuzzgraph
from fuzzgraph.process.devices import way_out, why_no_device, why_unusable
from fuzzgraph.process.torch_import import torch_problem
from fuzzgraph.shipped import case_folders
from fuzzgraph.targets.packages import ENGINES, companions_of

State = Literal["ok", "missing", "broken"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    remedy: str = ""
    """How to get what is missing; '' where nothing is."""


def examine() -> list[Check]:
    """Every check, in the order in which a newcomer needs them."""
    checks: tuple[Callable[[], Iterator[Check]], ...] = (
        _versions,
        _device,
        _triton,
        _dtypes,
        _companions,
        _releases,
        _fleet,
        _folders,
    )
    return [check for look in checks for check in look()]


def readable(checks: list[Check]) -> str:
    """One line per check, and below it the way out where something is missing."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8}{check.name.ljust(width)}  {check.found}")
        if check.remedy:
            lines.append(f"{'':<8}{'':<{width}}  -> {check.remedy}")
    return "\n".join(lines)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _versions() -> Iterator[Check]:
    yield Check(name="python", state="ok", found=platform.python_version())
    yield Check(name="fuzzgraph", state="ok", found=fuzzgraph.__version__)
    yield _torch()
    for package in ("hypothesis", "pytest"):
        found = _version(package)
        yield Check(
            name=package,
            state="ok" if found else "missing",
            found=found or "not installed",
            remedy="" if found else f"pip install {package}",
        )


def _torch() -> Check:
    problem = torch_problem()
    if problem is None:
        return Check(name="torch", state="ok", found=_version("torch"))
    found = problem.found if problem.state == "missing" else f"{_version('torch')} {problem.found}"
    return Check(
        name="torch",
        state=problem.state,
        found=found,
        remedy=f"{problem.remedy} Until then no case can be run.",
    )


def _unseen(name: str) -> Check:
    return Check(name=name, state="missing", found="cannot be told without torch")


def _device() -> Iterator[Check]:
    if torch_problem() is not None:
        yield _unseen("device")
        return
    import torch

    if why := why_no_device():
        yield Check(
            name="device",
            state="missing",
            found=f"no CUDA or HIP device that torch {torch.__version__} can use: {why}",
            remedy="not needed: the recorder replays on the CPU. For device graphs install torch "
            "for CUDA or ROCm beside its driver.",
        )
        return
    if why := why_unusable("cuda"):
        yield Check(name="device", state="broken", found=why, remedy=way_out(why))
        return
    api = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield Check(name="device", state="ok", found=f"{api}: {', '.join(names)}")
    yield _graphs()


def _graphs() -> Check:
    """Capture one addition and replay it on other numbers."""
    import torch

    try:
        number = torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = number + number
        number.fill_(3)
        graph.replay()
        right = float(doubled.cpu()) == 6.0
    except RuntimeError as error:
        return Check(
            name="graphs",
            state="broken",
            found=f"capture failed: {str(error).splitlines()[0]}",
            remedy="Update the driver, or use --graphs recorder.",
        )
    return Check(
        name="graphs",
        state="ok" if right else "broken",
        found="a captured addition replays right" if right else "a captured addition is wrong",
        remedy="" if right else "Update the driver, or use --graphs recorder.",
    )


def _triton() -> Iterator[Check]:
    found = _version("triton") or _version("pytorch-triton-rocm") or _version("pytorch-triton")
    if not found:
        yield Check(
            name="triton",
            state="missing",
            found="not installed",
            remedy='pip install "fuzzgraph[triton]" beside a CPU torch; torch for a GPU brings its '
            "own. Without it kernels=triton is not drawn.",
        )
        return
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    how = "TRITON_INTERPRET=1" if interpreted else "compiled on a GPU, interpreted on a CPU"
    yield Check(name="triton", state="ok", found=f"{found}, {how}")
    yield _unseen("kernel checks") if torch_problem() else _kernel_checks(found)


def _kernel_checks(triton: str) -> Check:
    """Whether the accesses and races of interpreted Triton kernels are checked here."""
    from fuzzgraph.lanes.versions import refusal, text_of_versions

    why = refusal(triton)
    return Check(
        name="kernel checks",
        state="missing" if why else "ok",
        found=f"off, accesses and races of Triton kernels are not checked: {why.partition('. ')[0]}"
        if why
        else "accesses and races of interpreted kernels; of compiled ones nothing",
        remedy=f"Use Triton {text_of_versions()}." if why else "",
    )


def _dtypes() -> Iterator[Check]:
    if torch_problem() is not None:
        yield _unseen("dtypes")
        return
    import torch

    wanted = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz")
    there = [name for name in wanted if hasattr(torch, name)]
    missing = [name for name in wanted if name not in there]
    yield Check(
        name="dtypes",
        state="missing" if missing else "ok",
        found=", ".join(there) + _native_fp8(),
        remedy=f"Update torch for {', '.join(missing)}." if missing else "",
    )


def _native_fp8() -> str:
    """MI300 (gfx94x) computes in fnuz, later AMD and NVIDIA devices in fn."""
    import torch

    if not torch.version.hip or why_no_device() or why_unusable("cuda"):
        return ""
    name = str(getattr(torch.cuda.get_device_properties(0), "gcnArchName", ""))
    return "; native fp8: e4m3fnuz" if name.startswith("gfx94") else "; native fp8: e4m3fn"


def _companions() -> Iterator[Check]:
    for engine in ENGINES:
        wanted = companions_of(engine.package)
        missing = [name for name in wanted if not _version(name)]
        if wanted:
            yield Check(
                name=f"{engine.package} companions",
                state="missing" if missing else "ok",
                found=f"without {', '.join(missing)}" if missing else "all there",
                remedy=_companions_remedy(engine.package) if missing else "",
            )


def _companions_remedy(package: str) -> str:
    return f'make {package}, or pip install "fuzzgraph[{package}]"'


def _releases() -> Iterator[Check]:
    from fuzzgraph import releases
    from fuzzgraph.releases.pip_index import tells_addresses

    small = tells_addresses()
    yield Check(
        name="pip",
        state="ok" if small else "missing",
        found=f"{_version('pip')}, of releases' wheels only what is read is fetched"
        if small
        else f"{_version('pip') or 'not installed'}, wheels of releases are downloaded whole",
        remedy="" if small else 'python -m pip install "pip>=25.3" (without any: ensurepip first)',
    )
    names = [f"{release.package}=={release.version}" for release in releases.installed()]
    yield Check(
        name="releases",
        state="ok" if names else "missing",
        found=", ".join(names) or f"none in {releases.cache_folder()}",
        remedy="" if names else _fetch_remedy(),
    )


def _fetch_remedy() -> str:
    return f"make engines, or fuzzgraph releases fetch {ENGINES[0].distribution}==VERSION"


def _fleet() -> Iterator[Check]:
    there = {name: _version(name) for name in ("ray", "redis")}
    missing = [name for name, found in there.items() if not found]
    found = ", ".join(f"{name} {found}" for name, found in there.items() if found)
    yield Check(
        name="fleet",
        state="missing" if missing else "ok",
        found=f"without {', '.join(missing)}" if missing else found,
        remedy='only for many machines: pip install "fuzzgraph[fleet]"' if missing else "",
    )


def _folders() -> Iterator[Check]:
    counts = {folder: len(list(folder.glob("*.json"))) for folder in case_folders()}
    *_, shipped = counts.values()
    yield Check(
        name="corpus",
        state="ok" if shipped else "broken",
        found=", ".join(f"{count} cases in {folder}" for folder, count in counts.items()),
        remedy="" if shipped else "Install FuzzGraph again: its saved cases are missing.",
    )
    here = os.access(Path.cwd(), os.W_OK)
    yield Check(
        name="run folder",
        state="ok" if here else "broken",
        found="reports/runs can be written" if here else "this folder cannot be written",
        remedy="" if here else "Name another one with --out.",
    )
