"""Confirms a finding and shrinks its case, as far as the time allows.

Confirming comes first and again at the end, for the shrunk case; the time for the second is kept.
What there is no time for is named in the result, and nothing of the finding is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzzgraph.campaign.live_run import LiveRun
from fuzzgraph.case import Case, EngineConfig, digest
from fuzzgraph.errors import InvalidCase, OutOfTime
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import FindingNew, Left, Shrunk, is_full_rate
from fuzzgraph.run.runner import Runner

Minimise = Callable[[Case, Callable[[Case], bool]], Case]
"""Gives a smaller case for which the condition still holds."""
Unserved = Callable[[EngineConfig], str]
"""Why no server of the engine has a config; '' where one may."""

_AGAIN = 1.5
"""Time kept for the second confirmation, in first ones: a run before it and one after it."""


@dataclass(frozen=True, slots=True)
class ShrunkFinding:
    """How far a finding was confirmed and shrunk."""

    case: Case
    finding: Finding
    tries: int = 0
    seconds: float = 0.0
    left: tuple[Left, ...] = ()


def smallest(
    case: Case, still_fails: Callable[[Case], bool], minimise: Minimise, unserved: Unserved
) -> Case:
    """The smallest case whose config a server may have, if one is near the case or its smallest
    form; else that form."""

    def served_and_fails(candidate: Case) -> bool:
        return not unserved(candidate.config) and still_fails(candidate)

    small = minimise(case, served_and_fails)
    if not unserved(small.config):
        return small
    return minimise(minimise(small, still_fails), served_and_fails)


class Shrinker:
    """Works on one finding at a time.

    Args:
        notice: told what a candidate shows besides the finding it is tried for.
        unserved: why no server has a config. A case whose config a server may have is preferred to
            any other, however small.
    """

    def __init__(
        self,
        run: LiveRun,
        runner: Runner,
        minimise: Minimise,
        notice: Callable[[Case, tuple[Finding, ...]], None],
        unserved: Unserved,
    ) -> None:
        self._run = run
        self._runner = runner
        self._minimise = minimise
        self._notice = notice
        self._unserved = unserved

    def shrink(self, new: FindingNew, until: float) -> ShrunkFinding:
        """The finding with its rate, and the smallest case found for it.

        Args:
            until: when it should be done, in seconds of the run.
        """
        budget, case, finding = self._run.budget, new.case, new.finding
        begin = budget.seconds
        if budget.interrupted or budget.seconds_left == 0.0:
            return ShrunkFinding(case, finding, left=("confirm", "shrink"))
        self._run.tick(f"confirming {new.id}")
        try:
            finding = self._confirm(case, finding)
        except OutOfTime:
            return ShrunkFinding(case, finding, left=("confirm", "shrink"))
        if finding.confirmed.startswith("0/"):
            return ShrunkFinding(case, finding)
        now = budget.seconds
        shrink_until = until - _AGAIN * (now - begin)
        if shrink_until <= now:
            return ShrunkFinding(case, finding, left=("shrink",))
        return self._shrunk(new.id, case, finding, shrink_until)

    def findings(self, case: Case) -> tuple[Finding, ...]:
        """What a case shows.

        Raises:
            OutOfTime: it was cut off.
        """
        try:
            return self._runner.run_case(case).findings
        except InvalidCase:  # a candidate of the shrink that contradicts itself
            return ()

    def _confirm(self, case: Case, finding: Finding) -> Finding:
        return self._runner.confirm(case, finding, self._run.spec.confirm_times)

    def _shrunk(self, name: str, case: Case, finding: Finding, until: float) -> ShrunkFinding:
        """The smallest case found and the finding on it, or what was given where nothing holds."""
        budget = self._run.budget
        begin = budget.seconds
        enough = begin + self._run.spec.shrink_seconds
        tries, cut = 0, False

        def still_fails(candidate: Case) -> bool:
            nonlocal tries, cut
            now = budget.seconds
            cut = cut or budget.interrupted or now > until
            if cut or now > enough:
                return False
            tries += 1
            self._run.tick(f"shrinking {name}")
            try:
                return self._seen_in(candidate, finding) is not None
            except OutOfTime:
                cut = True
                return False

        small = smallest(case, still_fails, self._minimise, self._unserved)
        seconds = budget.seconds - begin
        try:
            small, confirmed = self._held(case, small, finding)
        except OutOfTime:
            small, confirmed, cut = case, finding, True
        self._emit(name, case, small, tries, seconds)
        return ShrunkFinding(small, confirmed, tries, seconds, ("shrink",) if cut else ())

    def _held(self, case: Case, small: Case, finding: Finding) -> tuple[Case, Finding]:
        """The small case if fresh sessions show the finding on it as well as on the first one."""
        seen = self._seen_in(small, finding) if small != case else None
        confirmed = self._confirm(small, seen) if seen else finding
        if not is_full_rate(confirmed.confirmed) and is_full_rate(finding.confirmed):
            return case, finding
        return small, confirmed

    def _seen_in(self, case: Case, finding: Finding) -> Finding | None:
        shown = self.findings(case)
        if any(other.key != finding.key for other in shown):
            self._notice(case, shown)
        return next((seen for seen in shown if seen.key == finding.key), None)

    def _emit(self, name: str, before: Case, after: Case, tries: int, seconds: float) -> None:
        self._run.emit(
            Shrunk(
                shard=self._run.spec.shard,
                id=name,
                before=digest(before),
                after=digest(after),
                steps=len(after.steps),
                requests=len({row.request for step in after.steps for row in step.rows}),
                tries=tries,
                seconds=round(seconds, 3),
            )
        )
