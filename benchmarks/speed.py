"""How fast cases run with everything on, against the bare run of the same cases, in one process.

Two figures, taken block by block so that both see the same machine: cases a second end to end
(Hypothesis' generation, every run that the oracles need, all checks), and the cost of that relative
to the bare run (sessions cached alike, capture, prepare, replay, one reference). Medians and
spreads over the blocks; the shapes of the cases are counted beside them. Taken twice: for decode at
tiny shapes, and for all that a campaign draws by default. Blocks are as long as a campaign's after
its first thousand cases.

    python benchmarks/speed.py [--blocks 12] [--write reports/speed.md]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections import Counter
from dataclasses import dataclass

import torch
from pages import add_write, publish

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case
from fuzzgraph.execution import Execution
from fuzzgraph.strategies import BLOCK, DEFAULT, cases, draw
from fuzzgraph.targets import open_target


def tiny(capabilities: Capabilities) -> Capabilities:
    """Decode at tiny shapes, with every feature that decode has."""
    return capabilities.replace(
        modes=("decode", "idle"),
        page_sizes=(1, 2, 3, 16),
        max_batch=4,
        max_context_len=16,
    )


@dataclass(frozen=True)
class Block:
    """One block of cases, timed both ways."""

    drawn: tuple[Case, ...]
    full_seconds: float
    generation_seconds: float
    bare_seconds: float
    findings: int

    @property
    def rate(self) -> float:
        """Cases a second, generation included."""
        return len(self.drawn) / (self.full_seconds + self.generation_seconds)

    @property
    def ratio(self) -> float:
        """Cost of the full run over that of the bare one, generation excluded from both."""
        return self.full_seconds / self.bare_seconds


def run_block(number: int, capabilities: Capabilities, full: Execution, bare: Execution) -> Block:
    """Draw a block and run it as a campaign does, then all its cases bare on sessions of their own.

    One after the other, not case by case: a campaign has no other engine between two of its cases.
    """
    drawn: list[Case] = []
    full_seconds = 0.0
    findings = 0

    def run(case: Case) -> None:
        nonlocal full_seconds, findings
        start = time.perf_counter()
        findings += bool(full.run_case(case).findings)
        full_seconds += time.perf_counter() - start
        drawn.append(case)

    start = time.perf_counter()
    draw(cases(capabilities, DEFAULT.at(number)), number, BLOCK, run)
    middle = time.perf_counter()
    for case in drawn:
        bare.run_bare(case)
    bare_seconds = time.perf_counter() - middle
    return Block(tuple(drawn), full_seconds, middle - start - full_seconds, bare_seconds, findings)


def shapes(blocks: list[Block]) -> list[str]:
    """What the cases looked like, so that the figures mean something."""
    drawn = [case for block in blocks for case in block.drawn]
    steps = [len(case.steps) for case in drawn]
    rows = [len(step.rows) for case in drawn for step in case.steps]
    contexts = Counter(case.config.max_context_len for case in drawn)
    heads = Counter((case.config.num_q_heads, case.config.head_dim) for case in drawn)
    modes = Counter(step.mode for case in drawn for step in case.steps)
    ladder = [case.config.capture_bs[-1] for case in drawn if case.config.capture_bs]
    return [
        f"{len(drawn)} cases, {statistics.mean(steps):.2f} steps each on average;"
        f" requests per step: median {statistics.median(rows):.0f}, maximum {max(rows)}",
        f"largest captured batch: median {statistics.median(ladder):.0f}, maximum {max(ladder)};"
        f" max_context_len: {_shares(contexts)}",
        f"(query heads, head dim): {_shares(heads)}",
        f"modes: {_shares(modes)}",
    ]


def _shares(counter: Counter) -> str:  # type: ignore[type-arg]
    total = counter.total()
    return ", ".join(f"{key} {count / total:.0%}" for key, count in counter.most_common(6))


def spread(values: list[float], unit: str = "") -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.1f}{unit} (from {low:.1f} to {high:.1f})"


def measure(capabilities: Capabilities, count: int) -> list[Block]:
    """So many blocks, after one that warms caches and code paths and is not counted."""
    full, bare = Execution(open_target("builtin")), Execution(open_target("builtin"))
    blocks = [run_block(number, capabilities, full, bare) for number in range(count + 1)]
    full.close()
    bare.close()
    return blocks[1:]


def table(title: str, blocks: list[Block]) -> list[str]:
    """The figures of one kind of cases as Markdown."""
    generation = [1e3 * b.generation_seconds / len(b.drawn) for b in blocks]
    full = [1e3 * b.full_seconds / len(b.drawn) for b in blocks]
    bare = [1e3 * b.bare_seconds / len(b.drawn) for b in blocks]
    return [
        f"## {title}",
        "",
        "| figure | value |",
        "|---|---|",
        f"| cases a second, end to end, everything on | {spread([b.rate for b in blocks])} |",
        f"| cost against the bare run | {spread([b.ratio for b in blocks], ' times')} |",
        f"| generation, ms a case | {spread(generation)} |",
        f"| full run, ms a case | {spread(full)} |",
        f"| bare run, ms a case | {spread(bare)} |",
        f"| findings (the engine is healthy) | {sum(b.findings for b in blocks)} |",
        "",
        "Shapes: " + ";\n".join(shapes(blocks)) + ".",
        "",
    ]


def report(count: int) -> str:
    """All figures."""
    capabilities = open_target("builtin").capabilities
    lines = [
        "# Speed of the built-in engine on the recorder, one core",
        "",
        f"Median over {count} blocks of {BLOCK} generated cases (least to greatest), as long as a",
        "campaign's after its first thousand cases.",
        "Written by `make bench-speed`.",
        "",
        *table("Decode, tiny shapes", measure(tiny(capabilities), count)),
        *table("All modes and shapes of the default profile", measure(capabilities, count)),
        f"torch {torch.__version__} with one thread, Python {platform.python_version()},"
        f" {platform.machine()}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=8)
    add_write(parser)
    options = parser.parse_args()
    text = report(options.blocks)
    publish(text, options)


if __name__ == "__main__":
    main()
