"""Which targets copy from or to pinned memory without waiting, and what shows with the host ahead.

Each case runs with --overlap and without; what differs besides the findings of oracle overlap is a
fault of ours.

python -m benchmarks.overlap --engine sglang --release 0.5.23 --examples 20 --seed 5
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

from msgspec.structs import replace

from fuzzgraph.case import Case
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.finding import Finding, FindingKey
from fuzzgraph.open_target import open_setup
from fuzzgraph.run.runner import VerdictLike
from fuzzgraph.run.spec import Graphs, Setup
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import target_names


@dataclass
class Seen:
    """What one target's cases showed."""

    cases: int = 0
    steps: int = 0
    unrepeatable: int = 0
    late: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)
    """What oracle overlap says."""
    different: int = 0
    """Cases whose other findings are not those without --overlap."""
    skipped: Counter[str] = field(default_factory=Counter)


def main() -> int:
    """Print a line for each target, and the lines that give late copies below it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="by default all of the engine")
    parser.add_argument("--engine", default="sglang")
    parser.add_argument("--release", default="")
    parser.add_argument("--graphs", default="emulated")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=5)
    asked = parser.parse_args()
    of_engine = [each for each in target_names() if each.startswith(f"{asked.engine}-")]
    names = asked.targets or of_engine
    for name in names:
        try:
            seen = _seen(name, asked.release, asked.graphs, asked.seed, asked.examples)
        except FuzzGraphError as error:
            print(f"{name}: did not run: {str(error).splitlines()[0]}", flush=True)
            continue
        print(_told(name, seen), flush=True)
    return 0


def _seen(name: str, release: str, graphs: Graphs, seed: int, examples: int) -> Seen:
    seen = Seen()
    drawn: list[Case] = []
    setup = Setup(target=name, release=release, graphs=graphs)
    with closing(open_setup(setup)) as opened:
        draw(cases(opened.target.capabilities, DEFAULT), seed, examples, drawn.append)
        without = [_keys(opened.runner.run_case(case)) for case in drawn]
    with closing(open_setup(replace(setup, overlap=True))) as opened:
        for case, keys in zip(drawn, without, strict=True):
            verdict = opened.runner.run_case(case)
            seen.cases += 1
            seen.steps += verdict.steps
            seen.unrepeatable += verdict.unrepeatable
            seen.late.update(verdict.late_copies)
            seen.found += [each.message for each in verdict.findings if _is_late(each)]
            seen.different += _keys(verdict) != keys
            if verdict.skipped:
                seen.skipped[verdict.skipped] += 1
    return seen


def _keys(verdict: VerdictLike) -> set[FindingKey]:
    return {finding.key for finding in verdict.findings if not _is_late(finding)}


def _is_late(finding: Finding) -> bool:
    return finding.oracle == "overlap" or finding.detail.get("run") == "ahead"


def _told(name: str, seen: Seen) -> str:
    lines = [
        f"{name}: {seen.cases} cases, {sum(seen.skipped.values())} skipped, {seen.steps} steps,"
        f" {seen.late.total()} late copies, {seen.unrepeatable} steps not judged,"
        f" {len(seen.found)} findings, {seen.different} cases differ otherwise"
    ]
    lines += [f"  {count} late at {line}" for line, count in seen.late.most_common()]
    lines += [f"  found: {what}" for what in seen.found]
    lines += [f"  {count} skipped: {why[:110]}" for why, count in seen.skipped.most_common(2)]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
