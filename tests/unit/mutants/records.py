"""Records of measurements that no engine made."""

from __future__ import annotations

from typing import Any

from fuzzgraph.mutants.log import Log
from fuzzgraph.mutants.records import Ground, LogLine, Mutant, Outcome, Result, Sought
from fuzzgraph.run.spec import Setup


def sought(**changes: Any) -> Sought:
    given: dict[str, Any] = {
        "setup": Setup(target="mine:Target"),
        "seed": 1,
        "sample": 2,
        "seconds": 6.0,
    }
    return Sought(**(given | changes))


def ground() -> Ground:
    return Ground(lines=30, candidates=90, traced_cases=50, cases=100, seconds=24.0)


def mutant(name: str, **changes: str) -> Mutant:
    given: dict[str, Any] = {
        "id": name, "module": "engine.plans", "function": "Plan.fill", "line": 7,
        "operator": "off_by_one", "before": "x = 1", "after": "x = 2",
    }  # fmt: skip
    return Mutant(**(given | changes))


def result(name: str, outcome: Outcome = "survived", **changes: Any) -> Result:
    oracle = "contract" if outcome == "found" else ""
    return Result(mutant=mutant(name), outcome=outcome, **({"oracle": oracle} | changes))


def log_of(*results: Result) -> Log:
    made = Log()
    lines: tuple[LogLine, ...] = (sought(), ground(), *results)
    for line in lines:
        made.add(line)
    return made
