"""Runs each case on a tree and on its base, and lets through what only the tree shows.

It is a `Runner`, so that a campaign over it searches, confirms, shrinks and exports as it always
does. A smaller case counts only if the tree still shows the finding and the base still does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.errors import OutOfTime
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding, FindingKey
from fuzzgraph.run.records import is_full_rate
from fuzzgraph.run.runner import Runner, VerdictLike

Answer = TypeVar("Answer")


@dataclass(slots=True)
class Standing:
    """A finding that both show, or that one shows under another name."""

    finding: Finding
    """As the tree shows it."""
    case: Case
    """The first that shows it; not shrunk."""
    cases: int = 0
    was: Finding | None = None
    """As the base shows it, where that has another name."""


@dataclass(slots=True)
class Mended:
    """A finding of the base that the tree does not show."""

    finding: Finding
    case: Case
    cases: int = 0
    confirmed: str = ""
    """Fresh sessions of the base that show it."""
    on_head: str = ""
    """Fresh sessions of the tree that show it."""


@dataclass(slots=True)
class Differences:
    """What came up beside new findings."""

    standing: dict[FindingKey, Standing] = field(default_factory=dict)
    uncovered: dict[FindingKey, Standing] = field(default_factory=dict)
    """Shown by the tree, at a step where the base failed in a way that is mended: that failure may
    have hidden it."""
    mended: dict[FindingKey, Mended] = field(default_factory=dict)


class AgainstBase:
    """The runner of a tree that keeps to itself what its base shows too.

    Args:
        head, base: each in a process of its own, so that both run at the same time.
    """

    def __init__(self, head: Runner, base: Runner) -> None:
        self._head = head
        self._base = base
        self._pool = ThreadPoolExecutor(2)
        self.differences = Differences()

    def close(self) -> None:
        """End the threads; the runners are closed by those who opened them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def run_case(self, case: Case) -> VerdictLike:
        """What the tree shows of a case and the base does not.

        Both stop at their first step with findings, so that nothing is known of the steps behind.
        """
        head, base = self._both(lambda runner: runner.run_case(case))
        if head.skipped or base.skipped:
            return _with(head, (), head.skipped or f"the base does not run it: {base.skipped}")
        new = self._compared(case, head.findings, base.findings)
        return _with(head, new)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        """The finding with its rate on the tree, '0/N' where the base shows it in a fresh session.

        The detail tells the base's rate as `on_base`.
        """
        head, base = self._confirmed(case, finding, times)
        shown = base.confirmed
        rate = head.confirmed if shown.startswith("0/") else f"0/{times}"
        detail = {**head.detail, "on_base": shown}
        return msgspec.structs.replace(head, confirmed=rate, detail=detail)

    def confirm_mended(self, times: int = 3) -> None:
        """Ask for each finding that seems mended; those that do not hold are dropped.

        What there is no time for stays without rates.
        """
        for key, one in list(self.differences.mended.items()):
            try:
                head, base = self._confirmed(one.case, one.finding, times)
            except OutOfTime:
                return
            one.confirmed, one.on_head = base.confirmed, head.confirmed
            if not is_full_rate(one.confirmed) or not one.on_head.startswith("0/"):
                del self.differences.mended[key]

    def _confirmed(self, case: Case, finding: Finding, times: int) -> tuple[Finding, Finding]:
        return self._both(lambda runner: runner.confirm(case, finding, times))

    def _both(self, ask: Callable[[Runner], Answer]) -> tuple[Answer, Answer]:
        other = self._pool.submit(ask, self._base)
        try:
            mine = ask(self._head)
        except BaseException:
            other.cancel()
            other.exception()  # it may not go on beside the next case
            raise
        return mine, other.result()

    def _compared(
        self, case: Case, head: tuple[Finding, ...], base: tuple[Finding, ...]
    ) -> tuple[Finding, ...]:
        """The new ones, in their order."""
        shown = {one.key: one for one in base}
        own = {one.key: one for one in head}
        gone = [one for key, one in shown.items() if key not in own]
        new = []
        for one in own.values():
            if one.key in shown:
                self._stands(case, one, None)
            elif was := _under_another_name(one, gone):
                gone.remove(was)
                self._stands(case, one, was)
            elif _reached(base, one.step):
                new.append(one)
        for one in gone:
            if _reached(head, one.step):
                self._seems_mended(case, one)
        hidden = {one.step for one in gone}
        for one in new:
            if one.step in hidden:
                _count(self.differences.uncovered, case, one)
        return tuple(one for one in new if one.step not in hidden)

    def _stands(self, case: Case, finding: Finding, was: Finding | None) -> None:
        _count(self.differences.standing, case, finding, was)

    def _seems_mended(self, case: Case, finding: Finding) -> None:
        if finding.key not in self.differences.standing:
            self.differences.mended.setdefault(finding.key, Mended(finding, case)).cases += 1


def _count(
    counts: dict[FindingKey, Standing],
    case: Case,
    finding: Finding,
    was: Finding | None = None,
) -> None:
    counts.setdefault(finding.key, Standing(finding, case, was=was)).cases += 1


def _reached(findings: Iterable[Finding], step: int) -> bool:
    """Whether a run with these findings came as far as a step."""
    return all(one.step >= step for one in findings)


def _under_another_name(finding: Finding, gone: Iterable[Finding]) -> Finding | None:
    """What the base shows at the same step of the same kind, where a buffer was renamed."""
    for other in gone:
        same = (other.oracle, other.clause, other.mode, other.step, other.symptom)
        if same == (
            finding.oracle, finding.clause, finding.mode, finding.step, finding.symptom,
        ):  # fmt: skip
            return other
    return None


def _with(verdict: VerdictLike, findings: tuple[Finding, ...], skipped: str = "") -> Verdict:
    return replace(cast("Verdict", verdict), findings=findings, skipped=skipped or verdict.skipped)
