"""Runs of the same setup, night after night: what was new in each, and what was gone.

A night is one finished run; which runs belong together is decided by their setup alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fuzzgraph.run.events import RunSummary


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One run among those before and after it."""

    label: str
    """Day and hour, UTC; or the seed where the clock was not kept."""
    cases: int
    seconds: float
    pairs: int
    fresh: tuple[str, ...]
    """Findings that no earlier night had."""
    again: tuple[str, ...]
    gone: tuple[str, ...]
    """Findings of the night before that did not show in this one."""
    failed: bool
    here: bool = False
    """Whether this is the run that the report is about."""

    @property
    def findings(self) -> int:
        return len(self.fresh) + len(self.again)


def trend(summary: RunSummary, earlier: Iterable[RunSummary], keep: int = 30) -> list[TrendPoint]:
    """The runs of `summary`'s setup in order, `summary` last; at most `keep` of them."""
    alike = [
        one
        for one in earlier
        if one.setup == summary.setup and one.started and one.started < summary.started
    ]
    runs = [*sorted(alike, key=lambda one: one.started), summary]
    known: set[str] = set()
    before: tuple[str, ...] = ()
    told: list[TrendPoint] = []
    for run in runs:
        ids = tuple(reported.id for reported in run.findings)
        told.append(
            TrendPoint(
                label=run.started[:16].replace("T", " ") or f"seed {run.seed}",
                cases=run.cases,
                seconds=run.seconds,
                pairs=run.coverage.pairs,
                fresh=tuple(one for one in ids if one not in known),
                again=tuple(one for one in ids if one in known),
                gone=tuple(one for one in before if one not in ids),
                failed=bool(run.error or run.damaged) or run.reason == "killed",
                here=run is summary,
            )
        )
        known.update(ids)
        before = ids
    return told[-keep:]
