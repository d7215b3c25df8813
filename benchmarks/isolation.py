"""What a process of its own costs the built-in engine.

    python benchmarks/isolation.py --blocks 20 --cases 100 --write reports/isolation.md

Blocks of the same generated cases are run in this process and through a worker, alternately and in
changing order, so that other work on the machine hits both. Compared are wall time and the
processor time of parent and child; each pair of blocks gives one ratio, and the median counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pages import add_write, publish

from fuzzgraph.case import Case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.open_target import open_setup, strategy_of
from fuzzgraph.run.runner import Runner
from fuzzgraph.run.spec import Setup
from fuzzgraph.run_options import checked_setup
from fuzzgraph.strategies import draw
from fuzzgraph.worker import open_client

BOUND = 0.15
"""Share of the throughput."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """Seconds that a block of cases took."""

    wall: float
    processor: float


def processor(pids: Sequence[int]) -> float:
    """Seconds of a processor that these processes have had."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def spend(runner: Runner, cases: Sequence[Case], pids: Sequence[int]) -> Spent:
    """Run a block."""
    busy, begin = processor(pids), time.perf_counter()
    for case in cases:
        with suppress(InvalidCase):
            runner.run_case(case)
    return Spent(time.perf_counter() - begin, processor(pids) - busy)


def drawn(count: int, blocks: int) -> list[list[Case]]:
    """The cases, as a campaign draws them."""
    opened = open_setup(checked_setup("builtin"))
    strategy = strategy_of(opened, "ci")
    found: list[list[Case]] = []
    for block in range(blocks):
        cases: list[Case] = []
        draw(strategy(block), block, count, cases.append)
        found.append(cases)
    opened.close()
    return found


def measure(blocks: list[list[Case]]) -> list[tuple[Spent, Spent]]:
    """For each block what it took here and in a worker; the first block only warms both up."""
    opened = open_setup(checked_setup("builtin"))
    client = open_client(Setup(target="builtin"))
    assert client.pid is not None
    pairs = []
    for number, cases in enumerate(blocks):
        spent: dict[bool, Spent] = {}
        for isolated in (False, True) if number % 2 else (True, False):
            runner: Runner = client if isolated else opened.runner
            pids = [os.getpid(), client.pid] if isolated else [os.getpid()]
            spent[isolated] = spend(runner, cases, pids)
        if number:
            pairs.append((spent[False], spent[True]))
    client.close()
    opened.close()
    return pairs


def cost(pairs: list[tuple[Spent, Spent]], kind: str) -> tuple[float, float, float]:
    """Throughput lost: median, and the quartiles around it."""
    ratios = [1.0 - getattr(here, kind) / getattr(there, kind) for here, there in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, low, high


def page(pairs: list[tuple[Spent, Spent]], cases: int, command: str) -> str:
    """The report."""
    middle = cost(pairs, "wall")[0]
    verdict = "kept" if middle <= BOUND else "not kept"
    lines = [
        "# What isolation costs",
        "",
        f"The built-in engine at default sizes on {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {len(pairs)} pairs of blocks of {cases} cases,",
        "in this process and in a worker alternately:",
        "",
        f"    {command}",
        "",
        "| throughput lost | median | quartiles |",
        "|---|---|---|",
    ]
    for kind, words in (("wall", "by wall time"), ("processor", "by processor time of both")):
        at, low, high = cost(pairs, kind)
        lines.append(f"| {words} | {at:.1%} | {low:.1%} to {high:.1%} |")
    here = sum(one.wall for one, _ in pairs)
    there = sum(one.wall for _, one in pairs)
    count = cases * len(pairs)
    lines += [
        "",
        f"{count / here:.1f} cases a second here, {count / there:.1f} in a worker, over all",
        f"blocks. Bound {BOUND:.0%}: {verdict}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--cases", type=int, default=100, help="of each block")
    add_write(parser)
    asked = parser.parse_args()
    pairs = measure(drawn(asked.cases, asked.blocks + 1))
    command = f"python benchmarks/isolation.py --blocks {asked.blocks} --cases {asked.cases}"
    text = page(pairs, asked.cases, command)
    publish(text, asked)


if __name__ == "__main__":
    main()
