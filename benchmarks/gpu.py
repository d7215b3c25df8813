"""What a GPU shows: one folder with versions, tests, verdicts beside the recorder's, and figures.

    python benchmarks/gpu.py [--emulated] [--seconds 20] [--out reports/runs/gpu]

Needs no network. Real engines are run where their releases are in FuzzGraph's cache and, on a GPU,
their compiled kernels are installed; nothing of them is judged where they are not. `--emulated`
runs the same on a CPU, with the emulated device in the place of the GPU and no figures of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fuzzgraph.case import Case, load_case
from fuzzgraph.cli.doctor import examine, readable
from fuzzgraph.corpus import write_atomically
from fuzzgraph.faults import FAULTS
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

TOLD_APART: dict[str, tuple[str, str, str]] = {
    "sglang-buffers": ("0.5.12", "0.5.13", "req_pool_indices"),
    "sglang-fa3-cross": ("0.5.12", "0.5.13", "encoder"),
}
"""Target -> the release with a known bug, the one without it, what a finding's name has in it."""


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
        (recorder,) = keys_of(Setup(fault=name, isolation="on"), case)
        (device,) = keys_of(
            Setup(fault=name, isolation="on", device=on.device, graphs=on.graphs), case
        )
        return name, recorder, device

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(both, names))
    lines = [f"| fault | recorder | {on.name} |", "|---|---|---|"]
    missed = [name for name, _, device in found if not device and not FAULTS[name].recorded]
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


# ---- real engines


def engines(on: On, page: Page, seconds: int, folder: Path, jobs: int) -> None:
    """Real engines by their releases; findings are theirs and are to be read."""
    here = {release.version for release in installed("sglang")}
    pairs = [(target, each) for target, releases in ENGINES for each in releases if each in here]
    with ThreadPoolExecutor(jobs) as pool:
        ran = pool.map(lambda pair: fuzzed(on, pair[0], pair[1], seconds, folder), pairs)
        found = dict(zip(pairs, ran, strict=True))
    lines = ["| target | release | cases that ran | findings | ended |", "|---|---|---|---|---|"]
    for (target, release), (count, names, ended) in found.items():
        lines.append(f"| {target} | {release} | {count} | {', '.join(names) or 'none'} | {ended} |")
    page.add("Real engines", lines)
    for target, (broken, fixed, part) in TOLD_APART.items():
        seen = {release: found.get((target, release)) for release in (broken, fixed)}
        if all(seen.values()):
            told = {
                release: any(part in name for name in each[1])
                for release, each in seen.items()
                if each
            }
            page.must(told[broken], f"{target} {broken}: its known bug ({part}) is not found")
            page.must(
                not told[fixed], f"{target} {fixed}: the bug that it mended ({part}) is found"
            )


def fuzzed(
    on: On, target: str, release: str, seconds: int, folder: Path
) -> tuple[int, list[str], str]:
    """Cases that ran, names of findings, how the run ended."""
    out = folder / f"{target}-{release}"
    words = ["run", "--target", target, "--release", release, "--device", on.device]
    words += ["--graphs", on.graphs, "--time", f"{seconds}s", "--seed", "1", "--out", str(out)]
    done = subprocess.run(
        module_command("fuzzgraph", *words, "--findings", "6"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    write_atomically(folder / f"{target}-{release}.log", (done.stdout + done.stderr).encode())
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


def device_tests(page: Page, folder: Path) -> None:
    """`tests/gpu`: the promises of device graphs."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    write_atomically(folder / "tests.log", done.stdout.encode())
    last = done.stdout.strip().splitlines()[-1:]
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
    parser.add_argument("--out", type=Path, default=Path("reports/runs/gpu"))
    asked = parser.parse_args()
    if not asked.emulated and not torch.cuda.is_available():
        print(
            f"gpu: torch {torch.__version__} sees no CUDA or HIP device. Use --emulated.",
            file=sys.stderr,
        )
        return 2
    on = On("cpu", "emulated") if asked.emulated else On("cuda", "device")
    folder: Path = asked.out
    folder.mkdir(parents=True, exist_ok=True)
    jobs = max(1, (os.cpu_count() or 1) - 1)
    page = Page()
    page.add("Machine", ["```", on.name, readable(examine()), "```"])
    parts: list[Callable[[], None]] = [lambda: healthy(on, page, 4 if asked.brief else 60)]
    parts.append(lambda: faults(on, page, sorted(FAULTS)[:: 27 if asked.brief else 1], jobs))
    if not asked.brief:
        parts.append(lambda: device_tests(page, folder))
        parts.append(lambda: engines(on, page, asked.seconds, folder, jobs))
        parts.append(lambda: rates(on, page, 10))
    if on.gpu:
        parts += [lambda: guards(page), lambda: snapshots(page)]
    for part in parts:
        part()
        write_atomically(
            folder / "gpu.md", page.text().encode()
        )  # what there is, should the next fail
    print(page.text())
    return bool(page.broken)


if __name__ == "__main__":
    raise SystemExit(main())
