"""Asks one release or commit: whether the case shows the finding there, in how many sessions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from fuzzgraph import open_target
from fuzzgraph.bisect.line import Line, Point
from fuzzgraph.bisect.records import Answer, Judgement
from fuzzgraph.case import Case
from fuzzgraph.errors import FuzzGraphError, UsageError
from fuzzgraph.finding import Finding, FindingKey
from fuzzgraph.run.events import finding_id, is_full_rate


def find_it(
    line: Line, point: Point, case: Case, *, wanted: str, times: int
) -> tuple[Finding, Answer]:
    """The finding to follow, and the answer of the point that has to show it.

    Args:
        wanted: id or oracle of the finding; '' for the first one.

    Raises:
        UsageError: the point cannot run the case, or does not show the finding.
    """
    with line.setup_at(point) as setup, closing(open_target.open_setup(setup)) as opened:
        verdict = opened.runner.run_case(case)
        if verdict.skipped:
            raise UsageError(
                f"--bad={point.short}: target {setup.target!r} cannot run the case: "
                f"{verdict.skipped}. Name another end, or change the case."
            )
        finding = _chosen(point, verdict.findings, wanted)
        rate = opened.runner.confirm(case, finding, times).confirmed
    return finding, _judged(point, rate, shown=True)


def _chosen(point: Point, findings: Sequence[Finding], wanted: str) -> Finding:
    for finding in findings:
        if wanted in ("", finding_id(finding.key), finding.oracle):
            return finding
    shown = ", ".join(finding_id(finding.key) for finding in findings) or "nothing"
    raise UsageError(
        f"--bad={point.short} shows {shown} on this case, not {wanted or 'a finding'}. Name a "
        "release or commit, or a finding, that fits."
    )


def ask(line: Line, point: Point, case: Case, finding: Finding, times: int) -> Answer:
    """Whether a point shows the finding; one that cannot run the case is skipped, and says why."""
    try:
        with line.setup_at(point) as setup, closing(open_target.open_setup(setup)) as opened:
            verdict = opened.runner.run_case(case)
            obstacle = verdict.skipped or _obstacle(verdict.findings, finding.key)
            if obstacle:
                return _answer(point, "skipped", why=obstacle)
            shown = any(one.key == finding.key for one in verdict.findings)
            rate = opened.runner.confirm(case, finding, times).confirmed
    except FuzzGraphError as error:
        return _answer(point, "skipped", why=str(error).splitlines()[0])
    return _judged(point, rate, shown=shown)


def _obstacle(findings: Sequence[Finding], wanted: FindingKey) -> str:
    """An engine that does not come back has not shown that it lacks the finding."""
    if any(finding.key == wanted for finding in findings):
        return ""
    return next((one.message for one in findings if one.oracle == "survival"), "")


def _judged(point: Point, rate: str, *, shown: bool) -> Answer:
    """One that showed it once, and in no session after that, is not good."""
    if is_full_rate(rate):
        return _answer(point, "bad", rate=rate)
    none = rate.startswith("0/") and not shown
    return _answer(point, "good" if none else "flaky", rate=rate)


def _answer(point: Point, verdict: Judgement, *, rate: str = "", why: str = "") -> Answer:
    return Answer(point=point.name, subject=point.subject, verdict=verdict, rate=rate, why=why)
