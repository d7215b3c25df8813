"""How fast the targets on a released engine are: start, steps, and one replay of a whole runner.

Three figures, each with median and spread, by the clock and by the processor time of the process
that has the engine (which tells the cost where other work shares the machine):

* from the start of a worker to the verdict on its first case;
* steps a second of drawn cases as a campaign runs them, every run that the oracles need, sessions
  that are opened in between included;
* one replay of a captured graph of the whole runner with attention's own kernels.

    python benchmarks/engines.py [TARGET...] [--release sglang==0.5.23] [--write reports/engines.md]

With `--steps-only` the second alone, for a table of every target that a release has.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shares
import torch
from pages import add_write, publish

from fuzzgraph import releases, worker
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.compatibility import new_tokens, probe_case, released_targets
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.ports import Target
from fuzzgraph.run.spec import Setup
from fuzzgraph.strategies import CI, cases, draw


@dataclass(frozen=True)
class Goals:
    """What an engine's targets are measured against."""

    start: float
    """Seconds to the first verdict."""
    steps: float
    """A second."""
    over_lanes: float
    """Steps a second where Triton's kernels run over the lanes."""
    replay: float
    """Seconds of one replay of a whole runner."""


GOALS = {
    "sglang": Goals(start=6.0, steps=50.0, over_lanes=60.0, replay=0.3),
    "vllm": Goals(start=20.0, steps=20.0, over_lanes=8.0, replay=0.3),
    "flashinfer-python": Goals(start=20.0, steps=20.0, over_lanes=8.0, replay=0.3),
}
_REPLAYS = 40


@dataclass(frozen=True)
class Measured:
    """One figure, taken several times, by the clock and by processor time."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def cells(self, digits: int) -> str:
        return f"{_spread(self.wall, digits)} | {_spread(self.cpu, digits)}"


def _spread(values: Iterable[float], digits: int) -> str:
    values = sorted(values)
    low, high = values[0], values[-1]
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def processor_seconds(pid: int) -> float:
    """User and system time of a running process, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def starts(name: str, path: Path, case: Case, count: int) -> Measured:
    """Seconds from nothing to the verdict on a case."""
    wall, cpu = [], []
    for _ in range(count):
        begin = time.perf_counter()
        with worker.open_client(Setup(target=name), paths=[path]) as client:
            assert not client.run_case(case).skipped
            wall.append(time.perf_counter() - begin)
            cpu.append(_used_by(client))
    return Measured(tuple(wall), tuple(cpu))


def _used_by(client: worker.WorkerClient) -> float:
    assert client.pid is not None, "the worker has just answered"
    return processor_seconds(client.pid)


def steps(name: str, target: Target, path: Path, blocks: int, count: int) -> Measured:
    """Steps a second over blocks of drawn cases; the first block only warms up."""
    wall, cpu = [], []

    def supports(config: EngineConfig) -> bool:
        return target.unsupported(config) is None

    with worker.open_client(Setup(target=name), paths=[path]) as client:
        for block in range(blocks + 1):
            done, spent, before = 0, 0.0, _used_by(client)

            def run(case: Case) -> None:
                nonlocal done, spent
                begin = time.perf_counter()
                done += client.run_case(case).steps
                spent += time.perf_counter() - begin

            draw(cases(target.capabilities, CI.at(block), supports=supports), block, count, run)
            if block:
                wall.append(done / spent)
                cpu.append(done / (_used_by(client) - before))
    return Measured(tuple(wall), tuple(cpu))


class TimedTarget:
    """A target whose sessions' replays are timed, and nothing else."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self, config: EngineConfig, graphs: Any) -> Any:
        session = self._target.open(config, graphs)
        session.__dict__["replay"] = self._timed(session.replay)
        return session

    def _timed(self, replay: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(batch: Any) -> None:
            wall, cpu = time.perf_counter(), time.process_time()
            replay(batch)
            self.cpu.append(time.process_time() - cpu)
            self.wall.append(time.perf_counter() - wall)

        return timed


def runner_case(target: Target, rows: int, context: int) -> Case:
    """Full batches at half the context, captured at 1, 2, 4 and 8 rows, two heads."""
    mode = target.capabilities.modes[0]
    config = EngineConfig(
        modes=(mode,), capture_bs=(1, 2, 4, 8), max_context_len=context, kv_pool_pages=8 * context,
        num_q_heads=2, num_kv_heads=2, head_dim=16, v_head_dim=16, draft_tokens=4,
        page_size=target.capabilities.page_sizes[0],
    )  # fmt: skip
    batch = tuple(
        BatchRow(request=name, seq_len=context // 2 + name, new_tokens=new_tokens(mode, config))
        for name in range(rows)
    )
    return Case(schema_version=1, config=config, steps=(ReplayStep(mode=mode, rows=batch),))


def replays_here(name: str, rows: int, context: int) -> Measured:
    """Seconds of one replay in this process, whose engine lies on its path."""
    from fuzzgraph.execution import Execution
    from fuzzgraph.targets import open_target

    timed = TimedTarget(open_target(name))
    execution = Execution(timed)
    case = runner_case(timed, rows, context)
    assert not execution.run_case(case).findings
    timed.wall.clear()
    timed.cpu.clear()
    for _ in range(_REPLAYS):
        execution.run_bare(case)
    return Measured(tuple(timed.wall), tuple(timed.cpu))


def replays(name: str, path: Path, rows: int, context: int) -> Measured:
    """The same in a process of its own: one process holds one release."""
    command = [sys.executable, __file__, "--replay", name, str(rows), str(context)]
    search = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
    environment = dict(os.environ, PYTHONPATH=search, TRITON_INTERPRET="1", TQDM_DISABLE="1")
    done = subprocess.run(
        command, env=environment, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.splitlines()
    wall, cpu = (tuple(map(float, line.split())) for line in done[-2:])
    return Measured(wall, cpu)


def report(options: argparse.Namespace) -> str:
    """All figures as Markdown."""
    package, release = releases.parse(options.release)
    path, load, goals = releases.ensure(package, release), os.getloadavg()[2], GOALS[package]
    known = released_targets(package)
    targets = {name: known[name] for name in options.targets or known}
    rates = _rates(targets, path, options)
    targets = {name: targets[name] for name in rates}
    return "\n".join([
        f"# Speed of the targets on {package} {release}",
        "",
        f"Written by `{shlex.join(['python', 'benchmarks/engines.py', *sys.argv[1:]])}`.",
        "Medians, least and greatest in brackets;",
        '"processor" is the time of the process that has the engine.',
        "",
        *([] if options.steps_only else _starts(targets, path, options.starts, goals)),
        *_steps(rates, options, goals),
        *([] if options.steps_only else _costs(targets, rates, path, options)),
        f"torch {torch.__version__} with one thread, Python {platform.python_version()},"
        f" {platform.machine()}, {os.cpu_count()} cores with a load of"
        f" {load:.1f} before and {os.getloadavg()[2]:.1f} after.",
        "",
    ])  # fmt: skip


def _rates(
    targets: dict[str, Target], path: Path, options: argparse.Namespace
) -> dict[str, Measured]:
    """Steps a second; without names, what the release does not have is left out."""
    rates: dict[str, Measured] = {}
    for name, target in targets.items():
        try:
            rates[name] = steps(name, target, path, options.blocks, options.cases)
        except AdapterUnavailable as refused:
            if options.targets:
                raise
            print(f"left out: {refused}", file=sys.stderr)
        else:
            print(f"{name}: {rates[name].cells(1)}", file=sys.stderr, flush=True)
    return rates


def _costs(
    targets: dict[str, Target],
    rates: dict[str, Measured],
    path: Path,
    options: argparse.Namespace,
) -> list[str]:
    """What a replay over lanes costs, and where the time of the slowest target goes."""
    over_lanes = {name: target for name, target in targets.items() if "triton" in name}
    slowest = min(rates, key=lambda name: statistics.median(rates[name].cpu))
    return [
        *_replays(over_lanes, path, GOALS[releases.parse(options.release)[0]]),
        *_slowest(slowest, path, options.cases),
    ]


def _starts(targets: dict[str, Target], path: Path, count: int, goals: Goals) -> list[str]:
    lines = [
        "## From the start of a worker to its first verdict, in seconds",
        "",
        f"{count} starts each; the goal is {goals.start:g} s.",
        "",
        "| target | by the clock | processor |",
        "|---|---|---|",
    ]
    for name, target in targets.items():
        lines.append(f"| `{name}` | {starts(name, path, probe_case(target), count).cells(1)} |")
    return [*lines, ""]


def _steps(rates: dict[str, Measured], options: argparse.Namespace, goals: Goals) -> list[str]:
    lanes = any("triton" in name for name in rates)
    over_lanes = f", and {goals.over_lanes:g} for Triton's kernels over lanes" if lanes else ""
    return [
        "## Steps a second",
        "",
        f"{options.blocks} blocks of {options.cases} drawn cases, each run as a campaign runs it;"
        f" the goal",
        f"is {goals.steps:g}{over_lanes}.",
        "",
        "| target | by the clock | processor |",
        "|---|---|---|",
        *(f"| `{name}` | {figure.cells(1)} |" for name, figure in rates.items()),
        "",
    ]


def _replays(targets: dict[str, Target], path: Path, goals: Goals) -> list[str]:
    wanted = [
        (name, rows, context)
        for name, target in targets.items()
        for rows, context in ((4, 64), (8, 256))
        if target.unsupported(runner_case(target, rows, context).config) is None
    ]
    if not wanted:
        return []
    return [
        "## One replay of a whole runner, in seconds",
        "",
        f"{_REPLAYS} replays each, kernels over lanes; captured at 1, 2, 4 and 8 rows, two heads of"
        " 16,",
        f"requests of half the context and more; the goal is {goals.replay:g} s.",
        "",
        "| target | rows | context | by the clock | processor |",
        "|---|---|---|---|---|",
        *(
            f"| `{name}` | {rows} | {context} | {replays(name, path, rows, context).cells(3)} |"
            for name, rows, context in wanted
        ),
        "",
    ]


def _slowest(name: str, path: Path, cases: int) -> list[str]:
    """Where the time of the slowest target goes."""
    return [
        f"## Where the time of `{name}` goes",
        "",
        "The slowest of these targets: shares of the processor's time by package, while it runs",
        "drawn cases; what is built into Python and torch counts for its caller. Python's profiler",
        "makes calls dearer than they are.",
        "",
        "| package | share |",
        "|---|---|",
        *shares.table(name, path, cases),
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help="all where none is named")
    parser.add_argument("--release", default="sglang==0.5.23", metavar="PACKAGE==VERSION")
    parser.add_argument("--steps-only", action="store_true", help="measure steps a second alone")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--cases", type=int, default=60)
    add_write(parser)
    parser.add_argument("--replay", nargs=3, metavar=("TARGET", "ROWS", "CONTEXT"))
    options = parser.parse_args()
    if options.replay:
        name, rows, context = options.replay
        figure = replays_here(name, int(rows), int(context))
        print("\n".join(" ".join(map(str, each)) for each in (figure.wall, figure.cpu)))
        return
    text = report(options)
    publish(text, options)


if __name__ == "__main__":
    main()
