"""What a GPU shows: one folder with versions, tests, verdicts beside the recorder's, and figures.

    python benchmarks/gpu.py [--emulated] [--seconds 20] [--parts faults,engines]
        [--out reports/runs/gpu]

Needs no network. Of a part that fails the page tells so, and the others go on. Real engines are run
where their releases are in FuzzGraph's cache and, on a GPU, their compiled kernels are installed;
nothing of them is judged where they are not. `--emulated` runs the same on a CPU, with the emulated
device in the place of the GPU and no figures of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiled

from fuzzgraph.case import Case, EngineConfig, load_case
from fuzzgraph.cli.doctor import examine, readable
from fuzzgraph.corpus import write_atomically
from fuzzgraph.execution import Execution
from fuzzgraph.faults import FAULTS, setup_of
from fuzzgraph.finding import FindingKey
from fuzzgraph.graphs import DeviceGraphs
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.process.interpreter import module_command
from fuzzgraph.releases import installed
from fuzzgraph.run.spec import Device, Graphs, Setup
from fuzzgraph.shipped import FAULTS as STORED
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import open_target
from fuzzgraph.worker import open_client

ROOT = Path(__file__).resolve().parents[1]
_PROCESSES = 15
"""The most at a time: each has a context on the device, and some gigabytes of the host's memory."""

ENGINES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("sglang-triton", ("0.5.13",)),
    ("sglang-triton-verify", ("0.5.13",)),
    ("sglang-triton-mla", ("0.5.13",)),
    ("sglang-breakable-prefill", ("0.5.13",)),
    ("sglang-gdn", ("0.5.13",)),
    ("sglang-lora", ("0.5.13",)),
    ("sglang-moe", ("0.5.13",)),
    ("sglang-fa3", ("0.5.13",)),
    ("sglang-fa3-mla", ("0.5.13",)),
    ("sglang-fa3-cross", ("0.5.12", "0.5.13")),
    ("sglang-flashmla", ("0.5.13",)),
    ("sglang-buffers", ("0.5.12", "0.5.13")),
)
"""Targets that compute with kernels of a GPU, and those on which releases are told apart."""

SERVED: tuple[tuple[str, str], ...] = (
    ("sglang-fa3", "0.5.13"),
    ("sglang-triton", "0.5.13"),
    ("sglang-flashmla", "0.5.13"),
)
"""Targets that also run the shapes of servers, and their release."""

TOLD_APART: dict[str, tuple[str, str, str]] = {
    "sglang-buffers": ("0.5.12", "0.5.13", "req_pool_indices"),
    "sglang-fa3-cross": ("0.5.12", "0.5.13", "encoder"),
}
"""Target -> the release with a known bug, the one without it, what a finding's name has in it."""


_ENOUGH = 20
"""Cases that ran without the known bug of a release, from which on it should have shown."""


class Run(NamedTuple):
    """One run of a real engine."""

    target: str
    release: str
    profile: str


@dataclass
class Page:
    """The report, part by part."""

    parts: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """What went otherwise than it must, a clause each."""

    def add(self, title: str, lines: Iterable[str]) -> None:
        self.parts.append("\n".join((f"## {title}", "", *lines, "")))

    def must(self, holds: bool, clause: str) -> None:
        """Note `clause` unless it holds."""
        if not holds:
            self.broken.append(clause)

    def text(self) -> str:
        verdict = [f"- {each}" for each in self.broken] or ["Everything went as it must."]
        return "\n".join(("# On a GPU", "", *verdict, "", *self.parts))


@dataclass(frozen=True)
class On:
    """Where graphs are captured."""

    device: Device
    graphs: Graphs

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.gpu else "the emulated device"


# ---- verdicts


def keys_of(setup: Setup, some: Sequence[Case]) -> list[frozenset[FindingKey]]:
    """The findings of each case, in a process of its own that outlives failures of a device."""
    with open_client(setup) as client:
        return [frozenset(each.key for each in client.run_case(case).findings) for case in some]


def healthy(on: On, page: Page, examples: int) -> None:
    """The built-in engine, which gives no finding on either."""
    lines = [
        f"| target | cases | with a finding on the recorder | on {on.name} |",
        "|---|---|---|---|",
    ]
    for target in ("builtin", "builtin-triton"):
        count = examples if target == "builtin" else max(1, examples // 4)
        drawn: list[Case] = []
        draw(cases(open_target(target).capabilities, DEFAULT), 7, count, drawn.append)
        setups = (
            Setup(target=target, isolation="on"),
            Setup(target=target, isolation="on", device=on.device, graphs=on.graphs),
        )
        recorder, device = (keys_of(setup, drawn) for setup in setups)
        accused = [sum(map(bool, found)) for found in (recorder, device)]
        lines.append(f"| {target} | {count} | {accused[0]} | {accused[1]} |")
        page.must(accused == [0, 0], f"the healthy {target} engine gives findings")
    page.add("The healthy built-in engine", lines)


def faults(on: On, page: Page, names: Sequence[str], jobs: int) -> None:
    """Planted faults: the recorder's findings beside the device's."""

    def both(name: str) -> tuple[str, frozenset[FindingKey], frozenset[FindingKey]]:
        case = [load_case(STORED / f"{name}.json")]
        setup = replace(setup_of(FAULTS[name]), isolation="on")
        (recorder,) = keys_of(setup, case)
        (device,) = keys_of(replace(setup, device=on.device, graphs=on.graphs), case)
        return name, recorder, device

    def may_miss(name: str) -> bool:
        return FAULTS[name].recorded or (on.gpu and FAULTS[name].checked)

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(both, names))
    lines = [f"| fault | recorder | {on.name} |", "|---|---|---|"]
    missed = [name for name, _, device in found if not device and not may_miss(name)]
    other = [(name, one, two) for name, one, two in found if one != two]
    lines += [f"| {name} | {oracles(one)} | {oracles(two)} |" for name, one, two in other]
    alike = len(found) - len(other)
    page.add(
        "Planted faults",
        [f"{alike} of {len(found)} give the same findings; the others:", "", *lines],
    )
    page.must(not missed, f"planted faults are missed: {', '.join(missed)}")


def oracles(found: frozenset[FindingKey]) -> str:
    """Who accuses, in words."""
    return ", ".join(sorted({f"{key[0]} ({key[-1]})" for key in found})) or "nothing"


def said_by(command: Sequence[str], seconds: int) -> subprocess.CompletedProcess[str]:
    """What a process says; exit code 124 where it takes longer."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, cwd=ROOT
        )
    except subprocess.TimeoutExpired as late:
        said = [bytes(part or b"").decode(errors="replace") for part in (late.stdout, late.stderr)]
        said[1] += f"not done in {seconds} s"
        return subprocess.CompletedProcess(command, 124, *said)


# ---- real engines


def engines(on: On, page: Page, seconds: int, folder: Path, jobs: int) -> None:
    """Real engines by their releases; findings are theirs and are to be read."""
    here = {release.version for release in installed("sglang")}
    runs = [Run(target, each, "ci") for target, releases in ENGINES for each in releases]
    runs += [Run(target, each, "device") for target, each in SERVED if on.gpu]
    runs = [run for run in runs if run.release in here]
    with ThreadPoolExecutor(jobs) as pool:
        ran = pool.map(lambda run: fuzzed(on, run, seconds, folder), runs)
        found = dict(zip(runs, ran, strict=True))
    lines = [
        "| target | release | profile | cases that ran | findings | ended |",
        "|---|---|---|---|---|---|",
    ]
    for run, (count, names, ended) in found.items():
        lines.append(f"| {' | '.join(run)} | {count} | {', '.join(names) or 'none'} | {ended} |")
    page.add("Real engines", lines)
    for target, (broken, fixed, part) in TOLD_APART.items():
        here, there = (found.get(Run(target, each, "ci"), (0, [], "")) for each in (broken, fixed))
        count, in_broken = here[0], any(part in name for name in here[1])
        page.must(
            in_broken or count < _ENOUGH,
            f"{target} {broken}: its known bug ({part}) is not found in {count} cases",
        )
        page.must(
            not any(part in name for name in there[1]),
            f"{target} {fixed}: the bug that it mended ({part}) is found",
        )


def fuzzed(on: On, run: Run, seconds: int, folder: Path) -> tuple[int, list[str], str]:
    """Cases that ran, names of findings, how the run ended."""
    out = folder / "-".join(run)
    words = ["run", "--target", run.target, "--release", run.release, "--profile", run.profile]
    words += ["--device", on.device, "--graphs", on.graphs, "--out", str(out)]
    words += ["--time", f"{seconds}s", "--seed", "1"]
    done = said_by(module_command("fuzzgraph", *words, "--findings", "6"), seconds + 200)
    write_atomically(out.with_name(f"{out.name}.log"), (done.stdout + done.stderr).encode())
    summary = out / "summary.json"
    if not summary.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()
        return 0, [], said[-1][:160] if said else f"exit code {done.returncode}"
    told = json.loads(summary.read_text())
    names = sorted(each.name for each in (out / "findings").glob("*") if each.is_dir())
    return told["cases"] - told["skipped"], names, told["error"][:160] or told["reason"]


# ---- figures


def rates(on: On, page: Page, seconds: int) -> None:
    """Cases a second, everything on, at tiny shapes."""
    can = open_target("builtin").capabilities.replace(
        modes=("decode", "idle"), page_sizes=(1, 16), max_batch=4, max_context_len=16
    )
    drawn: list[Case] = []
    draw(cases(can, DEFAULT), 3, 200, drawn.append)
    setups = {
        "recorder": Setup(isolation="on"),
        on.graphs: Setup(isolation="on", device=on.device, graphs=on.graphs),
    }
    lines = ["| graphs | cases a second |", "|---|---|"]
    for name, setup in setups.items():
        with open_client(setup) as client:
            client.run_case(drawn[0])
            start, ran = time.perf_counter(), 0
            while time.perf_counter() - start < seconds:
                client.run_case(drawn[ran % len(drawn)])
                ran += 1
        lines.append(f"| {name} | {ran / (time.perf_counter() - start):.0f} |")
    page.add("Speed at tiny shapes, sessions kept", lines)


_GIVEN = {
    # HIP's blocking copy is one call, which is a wait as well.
    "waits": ("synchronize", "memcpywithstream"),
    "copies": ("memcpyasync", "memcpywithstream"),
    "kernels": ("launchkernel",),
    "graphs": ("graphlaunch",),
}
"""What a step gives a device -> what the calls of CUDA's and HIP's runtimes have in their names."""


def steps(on: On, page: Page, count: int) -> None:
    """What a new config of the built-in engine costs, and what its steps give a device."""
    drawn: list[Case] = []
    draw(cases(open_target("builtin").capabilities, DEFAULT), 11, count, drawn.append)
    setup = Setup(target="builtin", device=on.device, graphs=on.graphs)
    execution = Execution(open_target("builtin"), setup, cache_size=count)
    # In the order of the cases: the first one of a config opens its session.
    opened: dict[EngineConfig, float] = {}
    for case in drawn:
        opened.setdefault(case.config, _seconds(execution, case))
    again = [_seconds(execution, case) for case in drawn]
    lines = [
        f"A case takes {1000 * median(again):.1f} ms at the median of {len(drawn)}; the first one"
        f" of a config, whose session is opened and captured for it,"
        f" {1000 * median(opened.values()):.0f} ms at the median of {len(opened)}.",
    ]
    if on.gpu:
        lines += ["", *_given(execution, drawn)]
    execution.close()
    page.add("A step of the built-in engine", lines)


def _given(execution: Execution, drawn: Sequence[Case]) -> list[str]:
    """Calls of the device's runtime, by torch's profiler."""
    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        ran = sum(execution.run_case(case).steps for case in drawn)
    names = Counter(event.name.lower() for event in seen.events())
    lines = [f"| in {ran} steps | a step |", "|---|---|"]
    for what, parts in _GIVEN.items():
        given = sum(calls for name, calls in names.items() if any(part in name for part in parts))
        lines.append(f"| {what} | {given / max(1, ran):.1f} |")
    return lines


def _seconds(execution: Execution, case: Case) -> float:
    start = time.perf_counter()
    execution.run_case(case)
    return time.perf_counter() - start


def guards(page: Page) -> None:
    """Cost of guards over a bare replay, at shapes of a server."""
    lines = ["| rows | bare replay, us | guarded, us | ratio |", "|---|---|---|---|"]
    for rows in (16, 64, 256):
        layer = _layer(rows)
        bare = torch.cuda.CUDAGraph()
        layer()
        with torch.cuda.graph(bare):
            layer()
        # Half of it is for the layer, whose 256 rows of keys and values lie there twice over.
        memory = GuardedMemory("cuda", capacity=16 << 30)
        with memory.intercept("engine"):
            guarded_layer = _layer(rows)
            graph = DeviceGraphs(memory).capture(guarded_layer, key=str(rows))
        taken = [_milliseconds(work) for work in (bare.replay, graph._graph.replay)]
        us = [1000 * each for each in taken]
        lines.append(f"| {rows} | {us[0]:.0f} | {us[1]:.0f} | {us[1] / us[0]:.2f} |")
        graph.close()
        memory.release()
    page.add(
        "Guards: a layer of a decode, 4096 columns, 32 heads of 128, 1024 keys a row, bfloat16",
        lines,
    )


def _layer(rows: int) -> Callable[[], torch.Tensor]:
    """Projections, attention over a gathered context, and a gated MLP."""

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 64

    x, qkv, o = made(rows, 4096), made(4096, 6144), made(4096, 4096)
    gate, down = made(4096, 2 * 14336), made(14336, 4096)
    keys, values = made(rows, 8, 1024, 128), made(rows, 8, 1024, 128)

    def forward() -> torch.Tensor:
        q = (x @ qkv)[:, :4096].view(rows, 32, 1, 128)
        attend = torch.nn.functional.scaled_dot_product_attention
        attended = attend(q, keys, values, enable_gqa=True).reshape(rows, 4096)
        h = x + attended @ o
        a, b = (h @ gate).chunk(2, dim=-1)
        return h + (torch.nn.functional.silu(a) * b) @ down

    return forward


def _milliseconds(work: Callable[[], Any]) -> float:
    """Median, by the device's own clock."""
    from triton.testing import do_bench

    return float(do_bench(work, return_mode="median"))


def snapshots(page: Page) -> None:
    """Bandwidth of a snapshot and of its restoring, bytes read and written counted."""
    lines = ["| engine memory | snapshot, GB/s | restore, GB/s |", "|---|---|---|"]
    for mib in (64, 1024, 8192):
        memory = GuardedMemory("cuda", capacity=(3 * mib << 20) + (64 << 20))
        with memory.intercept("engine"):
            torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
        image = memory.snapshot()
        works = memory.snapshot, partial(memory.restore, image)
        moved = [2 * (mib << 20) / _milliseconds(work) / 1e6 for work in works]
        lines.append(f"| {mib} MiB | {moved[0]:.0f} | {moved[1]:.0f} |")
        del image
        memory.release()
    page.add("Snapshots", lines)


def over_lanes(page: Page) -> None:
    """Triton's kernels as the lanes compute them, beside the device's."""
    done = said_by([sys.executable, str(ROOT / "benchmarks" / "lanes" / "on_gpu.py")], 240)
    page.add("Triton kernels over lanes, beside the GPU's", done.stdout.splitlines())
    page.must(done.returncode == 0, f"lanes beside the GPU: {done.stderr.strip()[-160:]}")


def device_tests(page: Page, folder: Path) -> None:
    """`tests/gpu`: the promises of device graphs."""
    # Beside a pytest without the plugins of this project's development.
    without = ["-o", "addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestConfigWarning"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = said_by([*pytest, *without, "tests/gpu"], 300)
    write_atomically(folder / "tests.log", (done.stdout + done.stderr).encode())
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    page.add("tests/gpu", last)
    page.must(done.returncode == 0, f"tests/gpu: {' '.join(last)}")


def main() -> int:
    """Write the folder; 1 if something went otherwise than it must."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--emulated", action="store_true", help="on a CPU, by the emulated device")
    parser.add_argument("--seconds", type=int, default=25, help="for each real engine")
    parser.add_argument("--brief", action="store_true", help="a few cases of each part")
    parser.add_argument("--parts", default="", help="some of them, with commas between")
    parser.add_argument(
        "--out", type=Path, default=Path("reports/runs/gpu"), help="has a folder for each call"
    )
    asked = parser.parse_args()
    if not asked.emulated and not torch.cuda.is_available():
        print(
            f"gpu: torch {torch.__version__} sees no CUDA or HIP device. Use --emulated.",
            file=sys.stderr,
        )
        return 2
    on = On("cpu", "emulated") if asked.emulated else On("cuda", "device")
    # Processes on one device: the processors that this one may use, not those of the machine.
    jobs = max(1, min(_PROCESSES, len(os.sched_getaffinity(0)) - 1))
    page = Page()
    page.add("Machine", ["```", on.name, readable(examine()), "```"])
    parts: dict[str, Callable[[], None]] = {
        "healthy": lambda: healthy(on, page, 4 if asked.brief else 60),
        "faults": lambda: faults(on, page, sorted(FAULTS)[:: 27 if asked.brief else 1], jobs),
        "steps": lambda: steps(on, page, 2 if asked.brief else 60),
    }
    if not asked.brief:
        parts["tests"] = lambda: device_tests(page, folder)
        parts["engines"] = lambda: engines(on, page, asked.seconds, folder, jobs)
        parts["rates"] = lambda: rates(on, page, 10)
    if on.gpu:
        parts["guards"], parts["snapshots"] = lambda: guards(page), lambda: snapshots(page)
        parts["lanes"] = lambda: over_lanes(page)
    wanted = list(filter(None, asked.parts.split(","))) or list(parts)
    if unknown := [name for name in wanted if name not in parts]:
        print(f"gpu: --parts {unknown[0]!r} is none of {', '.join(parts)}.", file=sys.stderr)
        return 2
    place: Path = asked.out.resolve()  # processes have another folder
    place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=place))
    for name in wanted:
        try:
            parts[name]()
        except Exception as error:  # of whatever kind: the other parts have something to tell
            said = str(error).strip().partition("\n")[0][:160]
            page.must(False, f"part {name} ended with {type(error).__name__}: {said}")
        # What there is, should the next one end the process.
        for each in (folder, place):
            write_atomically(each / "gpu.md", page.text().encode())
    print(page.text())
    return bool(page.broken)


if __name__ == "__main__":
    raise SystemExit(main())
