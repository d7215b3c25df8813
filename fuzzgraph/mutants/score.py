"""What a measurement comes to: how many of the mutants that matter were found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from fuzzgraph.mutants.log import Log
from fuzzgraph.mutants.records import Ground, Judgement, Result, Sought, Verdict

_UNJUDGED = Judgement()


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant that nothing gave away, and what a person says of it."""

    result: Result
    judgement: Verdict
    dimension: str = ""
    why: str = ""


class ByOperator(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table by kind of change."""

    operator: str
    started: int
    found: int


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One target, one seed."""

    sought: Sought
    ground: Ground
    found: int
    survived: int
    failed: int
    """Changes over which the target's own code or FuzzGraph failed: they count as not found."""
    does_not_start: int
    equivalent: int
    unreachable: int
    holes: int
    unjudged: int
    survivors: tuple[Survivor, ...]
    results: tuple[Result, ...]
    operators: tuple[ByOperator, ...]
    oracles: dict[str, int]
    """Of the first finding of each mutant that was found."""
    dimensions: dict[str, int]
    """Missing dimension -> survivors that need it."""

    @property
    def started(self) -> int:
        return self.found + self.survived + self.failed

    @property
    def counted(self) -> int:
        """Those that could have been found."""
        return self.started - self.equivalent - self.unreachable

    @property
    def percent(self) -> float:
        return 100 * self.found / self.counted if self.counted else 0.0

    @property
    def unreachable_percent(self) -> float:
        """Share of the mutants that start and are not equivalent."""
        whole = self.started - self.equivalent
        return 100 * self.unreachable / whole if whole else 0.0


def score(log: Log, judged: Mapping[str, Judgement]) -> Score:
    """Count a finished log."""
    assert log.sought is not None and log.ground is not None
    results = tuple(log.results.values())
    outcomes = Counter(one.outcome for one in results)
    survivors = tuple(
        _survivor(one, judged.get(one.mutant.id, _UNJUDGED))
        for one in results
        if one.outcome in ("survived", "failed")
    )
    said = Counter(one.judgement for one in survivors)
    return Score(
        sought=log.sought,
        ground=log.ground,
        found=outcomes["found"],
        survived=outcomes["survived"],
        failed=outcomes["failed"],
        does_not_start=outcomes["does_not_start"],
        equivalent=said["equivalent"],
        unreachable=said["unreachable"],
        holes=said["hole"],
        unjudged=said["unjudged"],
        survivors=survivors,
        results=results,
        operators=tuple(_by_operator(results)),
        oracles=_most_first(one.oracle for one in results if one.outcome == "found"),
        dimensions=_most_first(
            one.dimension for one in survivors if one.judgement == "unreachable"
        ),
    )


def _survivor(result: Result, said: Judgement) -> Survivor:
    return Survivor(result=result, judgement=said.judgement, dimension=said.dimension, why=said.why)


def _by_operator(results: Iterable[Result]) -> list[ByOperator]:
    started = [one for one in results if one.outcome != "does_not_start"]
    names = sorted({one.mutant.operator for one in started})
    return [
        ByOperator(
            operator=name,
            started=sum(one.mutant.operator == name for one in started),
            found=sum(one.mutant.operator == name and one.outcome == "found" for one in started),
        )
        for name in names
    ]


def _most_first(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())
