"""Scores the fuzzer: examples and seconds until a planted fault is found, and what it shrinks to.

Cases come from the built-in target's ordinary strategies, none is tuned to a fault. All runs are
in this process, on one core; seconds are processor time, so that a busy machine counts the same.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.execution import Execution
from fuzzgraph.faults.catalogue import fault_named, setup_of, target_with
from fuzzgraph.finding import Finding
from fuzzgraph.run.spec import DEFAULT_SETUP, Setup
from fuzzgraph.strategies import DEFAULT, block_size, cases, draw, minimise
from fuzzgraph.targets.builtin.target import BuiltinTarget


class FaultScore(msgspec.Struct, frozen=True, kw_only=True):
    """How one fault is found."""

    name: str
    source: str
    clause: str
    found: bool
    """Whether every seed found it."""
    oracle: str
    """Oracle of the first finding of the shrunk case; '' where nothing was found."""
    oracles: tuple[str, ...]
    """All oracles that speak up on the shrunk case."""
    examples: int
    """Cases up to the first finding, median of the seeds."""
    seconds: float
    """Processor seconds up to the first finding, median of the seeds."""
    steps: int
    requests: int
    found_in: int
    """Seeds that found it."""
    case: Case | None = None
    """The shrunk case."""


class HealthyScore(msgspec.Struct, frozen=True, kw_only=True):
    """How often the engine without faults is accused."""

    cases: int
    findings: int
    accused: tuple[Case, ...] = ()
    """Cases that gave a finding."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What `fuzzgraph faults` reports."""

    faults: tuple[FaultScore, ...]
    healthy: HealthyScore
    seeds: int


@dataclass(frozen=True, slots=True)
class Found:
    """The first finding of one seed."""

    case: Case
    findings: tuple[Finding, ...]
    examples: int
    seconds: float


Progress = Callable[[FaultScore], None]


class _Stop(BaseException):
    """Ends Hypothesis' loop; no Exception, so that it is not taken for a failing example."""


def score(
    names: Sequence[str],
    *,
    seeds: int = 5,
    max_examples: int = 2000,
    healthy_cases: int = 1000,
    progress: Progress = lambda _: None,
) -> Score:
    """Search for each named fault with each seed, and run the healthy engine beside them.

    Raises:
        UsageError: a name is unknown.
    """
    faults = [fault_named(name) for name in names]
    scored = []
    for fault in faults:
        scored.append(_score_one(fault.name, seeds, max_examples))
        progress(scored[-1])
    healthy = score_healthy(healthy_cases)
    return Score(faults=tuple(scored), healthy=healthy, seeds=seeds)


def _score_one(name: str, seeds: int, max_examples: int) -> FaultScore:
    fault = fault_named(name)
    setup = setup_of(fault)
    searches = [
        find_fault(target_with(fault), seed, max_examples, setup) for seed in range(1, seeds + 1)
    ]
    found = [one for one in searches if one is not None]
    case, findings = shrink(target_with(fault), found[0], setup) if found else (None, ())
    return FaultScore(
        name=name,
        source=fault.source,
        clause=fault.clause,
        found=len(found) == seeds,
        found_in=len(found),
        oracle=findings[0].oracle if findings else "",
        oracles=tuple(dict.fromkeys(finding.oracle for finding in findings)),
        examples=int(median(one.examples if one else max_examples for one in searches)),
        seconds=round(median(one.seconds for one in found), 2) if found else 0.0,
        steps=len(case.steps) if case else 0,
        requests=_requests(case) if case else 0,
        case=case,
    )


def _requests(case: Case) -> int:
    return len({row.request for step in case.steps for row in step.rows})


def find_fault(
    target: BuiltinTarget, seed: int, max_examples: int, setup: Setup = DEFAULT_SETUP
) -> Found | None:
    """The first finding within so many generated cases, or None."""
    execution = Execution(target, setup)
    begin = time.process_time()
    found: list[Found] = []
    examples = 0

    def run(case: Case) -> None:
        nonlocal examples
        examples += 1
        findings = _findings(execution, case)
        if findings:
            found.append(Found(case, findings, examples, time.process_time() - begin))
            raise _Stop

    _draw(target, seed, max_examples, run)
    execution.close()
    return found[0] if found else None


def _findings(execution: Execution, case: Case) -> tuple[Finding, ...]:
    try:
        return execution.run_case(case).findings
    except InvalidCase:  # the pools are too small for it
        return ()


def _draw(target: BuiltinTarget, seed: int, count: int, run: Callable[[Case], None]) -> None:
    """Hand up to `count` cases to `run`, block by block as in a campaign."""
    for block in itertools.count():
        size = min(block_size(block), count)
        if not size:
            return
        number = _block_number(seed, block)
        try:
            draw(cases(target.capabilities, DEFAULT.at(number)), number, size, run)
        except _Stop:
            return
        count -= size


def _block_number(seed: int, block: int) -> int:
    digest = hashlib.sha256(f"faults/{seed}/{block}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def shrink(
    target: BuiltinTarget, found: Found, setup: Setup = DEFAULT_SETUP
) -> tuple[Case, tuple[Finding, ...]]:
    """The smallest case with the same first finding, and all findings on it."""
    execution = Execution(target, setup)
    key = found.findings[0].key

    def still_fails(case: Case) -> bool:
        findings = _findings(execution, case)
        return bool(findings) and findings[0].key == key

    small = minimise(found.case, still_fails)
    findings = _findings(execution, small)
    execution.close()
    return small, findings


def score_healthy(count: int, *, seeds: Iterable[int] = (1,)) -> HealthyScore:
    """Run so many cases of each seed on the engine without faults."""
    target = BuiltinTarget()
    execution = Execution(target)
    accused: list[Case] = []
    ran = 0

    def run(case: Case) -> None:
        nonlocal ran
        ran += 1
        if _findings(execution, case):
            accused.append(case)

    for seed in seeds:
        _draw(target, seed, count, run)
    execution.close()
    return HealthyScore(cases=ran, findings=len(accused), accused=tuple(accused))
