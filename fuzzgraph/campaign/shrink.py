"""Confirms a finding and shrinks its case, as far as the time allows.

Confirming comes first and again at the end, for the shrunk case; the time for the second is kept.
What there is no time for is named in the result, and nothing of the finding is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzzgraph.campaign.stopping import Deadline
from fuzzgraph.case import Case, digest
from fuzzgraph.errors import InvalidCase, OutOfTime
from fuzzgraph.events import Emit, Left, Shrunk, is_full_rate
from fuzzgraph.finding import Finding
from fuzzgraph.run_spec import RunSpec
from fuzzgraph.runner import Runner

__all__ = ["Followed", "Minimise", "Shrinking"]

Minimise = Callable[[Case, Callable[[Case], bool]], Case]

_AGAIN = 1.5
"""Time kept for the second confirmation, in first ones: a run before it and one after it."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How far a finding was followed."""

    case: Case
    finding: Finding
    tries: int = 0
    seconds: float = 0.0
    left: tuple[Left, ...] = ()


class Shrinking:
    """Works on one finding at a time.

    Args:
        notice: told what a candidate shows besides the finding it is tried for.
    """

    def __init__(
        self,
        runner: Runner,
        plan: RunSpec,
        emit: Emit,
        *,
        minimise: Minimise,
        watch: Deadline,
        tick: Callable[[str], None],
        notice: Callable[[Case, tuple[Finding, ...]], None],
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._emit = emit
        self._minimise = minimise
        self._watch = watch
        self._tick = tick
        self._notice = notice

    def follow(self, name: str, case: Case, finding: Finding, slice_end: float) -> Followed:
        """The finding with its rate, and the smallest case found for it.

        Args:
            name: id of the finding.
            slice_end: when it should be done, in seconds of the campaign.
        """
        begin = self._watch.seconds
        if self._watch.interrupted or self._watch.seconds_left == 0.0:
            return Followed(case, finding, left=("confirm", "shrink"))
        self._tick(f"confirming {name}")
        try:
            finding = self._confirm(case, finding)
        except OutOfTime:
            return Followed(case, finding, left=("confirm", "shrink"))
        if finding.confirmed.startswith("0/"):
            return Followed(case, finding)
        now = self._watch.seconds
        kept_free = slice_end - _AGAIN * (now - begin)
        if kept_free <= now:
            return Followed(case, finding, left=("shrink",))
        return self._shrunk(name, case, finding, kept_free)

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
        return self._runner.confirm(case, finding, self._plan.confirm_times)

    def _shrunk(self, name: str, case: Case, finding: Finding, kept_free: float) -> Followed:
        """The smallest case found and the finding on it, or what was given where nothing holds."""
        begin = self._watch.seconds
        enough = begin + self._plan.shrink_seconds
        tries, cut = 0, False

        def still_fails(candidate: Case) -> bool:
            nonlocal tries, cut
            now = self._watch.seconds
            cut = cut or self._watch.interrupted or now > kept_free
            if cut or now > enough:
                return False
            tries += 1
            self._tick(f"shrinking {name}")
            try:
                return self._seen_in(candidate, finding) is not None
            except OutOfTime:
                cut = True
                return False

        small = self._minimise(case, still_fails)
        seconds = self._watch.seconds - begin
        try:
            small, confirmed = self._held(case, small, finding)
        except OutOfTime:
            small, confirmed, cut = case, finding, True
        self._tell(name, case, small, tries, seconds)
        return Followed(small, confirmed, tries, seconds, ("shrink",) if cut else ())

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

    def _tell(self, name: str, before: Case, after: Case, tries: int, seconds: float) -> None:
        self._emit(
            Shrunk(
                shard=self._plan.shard,
                id=name,
                before=digest(before),
                after=digest(after),
                steps=len(after.steps),
                requests=len({row.request for step in after.steps for row in step.rows}),
                tries=tries,
                seconds=round(seconds, 3),
            )
        )
