"""In which releases a case shows a finding: where it was introduced, and where it was fixed.

Every release between the two ends is tried: a bug may be fixed and come back, which a binary search
would miss. A release that cannot run the case is skipped and named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Literal

import msgspec

from fuzzgraph import open_target
from fuzzgraph.case import Case
from fuzzgraph.errors import FuzzGraphError, UsageError
from fuzzgraph.finding import Finding, FindingKey
from fuzzgraph.open_target import Opened
from fuzzgraph.run.events import Setup, finding_id, is_full_rate

Judgement = Literal["good", "bad", "flaky", "skipped"]


class ReleaseVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one release makes of the case."""

    release: str
    verdict: Judgement
    """`flaky`: it showed in some fresh sessions only. `skipped`: it could not run the case."""
    rate: str = ""
    """Fresh sessions that showed the finding, e.g. '3/3'."""
    why: str = ""
    """Why it was skipped."""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """Two neighbours, skipped ones left out, of which only one shows the finding."""

    before: str
    after: str
    skipped: tuple[str, ...] = ()
    """Releases between them that could not run the case."""


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a finding."""

    finding: Finding
    releases: tuple[ReleaseVerdict, ...]
    broken: tuple[Boundary, ...] = ()
    """Where it was introduced: `after` is a first broken release."""
    fixed: tuple[Boundary, ...] = ()
    """Where it was fixed: `after` is a first fixed release."""


def release_range(known: Sequence[str], good: str, bad: str) -> tuple[str, ...]:
    """The releases from one end to the other, oldest first.

    Args:
        known: all releases, oldest first.

    Raises:
        UsageError: an end is not among them, or both are the same.
    """
    for option, version in (("--good", good), ("--bad", bad)):
        if version not in known:
            raise UsageError(
                f"{option}={version!r} is not a known release. Known, newest last: "
                f"{', '.join(known[-8:])}."
            )
    if good == bad:
        raise UsageError(f"--good and --bad are both {good!r}. Name two releases.")
    first, last = sorted((known.index(good), known.index(bad)))
    return tuple(known[first : last + 1])


def bisect(
    case: Case,
    setup: Setup,
    versions: Sequence[str],
    *,
    good: str,
    bad: str,
    wanted: str = "",
    times: int = 3,
    progress: Callable[[ReleaseVerdict], None] = lambda verdict: None,
) -> Bisection:
    """Ask each release, the two ends first.

    Args:
        setup: the target; its release is ignored.
        versions: oldest first, both ends included.
        wanted: id or oracle of the finding to follow; '' for the first one that `bad` shows.
        times: fresh sessions for each verdict.

    Raises:
        UsageError: `bad` does not show the finding, or `good` does; an end cannot run the case.
    """
    finding = _finding_of(case, setup, bad, wanted)

    def asked(version: str) -> ReleaseVerdict:
        verdict = _verdict(case, setup, version, finding, times)
        progress(verdict)
        return verdict

    ends = {version: asked(version) for version in (bad, good)}
    _check_end(ends[bad], "bad")
    _check_end(ends[good], "good")
    verdicts = [ends[version] if version in ends else asked(version) for version in versions]
    broken, fixed = _boundaries(verdicts)
    return Bisection(finding=finding, releases=tuple(verdicts), broken=broken, fixed=fixed)


def _finding_of(case: Case, setup: Setup, release: str, wanted: str) -> Finding:
    with closing(_opened(setup, release)) as opened:
        verdict = opened.runner.run_case(case)
    if verdict.skipped:
        raise UsageError(
            f"--bad={release!r}: target {setup.target!r} cannot run the case: {verdict.skipped}."
        )
    for finding in verdict.findings:
        if wanted in ("", finding_id(finding.key), finding.oracle):
            return finding
    shown = ", ".join(finding_id(finding.key) for finding in verdict.findings) or "nothing"
    raise UsageError(
        f"--bad={release!r} shows {shown} on this case, not {wanted or 'a finding'}. Name a "
        "release or a finding that fits."
    )


def _opened(setup: Setup, release: str) -> Opened:
    return open_target.open_setup(msgspec.structs.replace(setup, release=release))


def _verdict(
    case: Case, setup: Setup, release: str, finding: Finding, times: int
) -> ReleaseVerdict:
    try:
        with closing(_opened(setup, release)) as opened:
            verdict = opened.runner.run_case(case)
            if verdict.skipped:
                return ReleaseVerdict(release=release, verdict="skipped", why=verdict.skipped)
            other = _obstacle(verdict.findings, finding.key)
            if other:
                return ReleaseVerdict(release=release, verdict="skipped", why=other)
            rate = opened.runner.confirm(case, finding, times).confirmed
    except FuzzGraphError as error:
        why = str(error).splitlines()[0]
        return ReleaseVerdict(release=release, verdict="skipped", why=why)
    if is_full_rate(rate):
        return ReleaseVerdict(release=release, verdict="bad", rate=rate)
    none = rate.startswith("0/")
    return ReleaseVerdict(release=release, verdict="good" if none else "flaky", rate=rate)


def _obstacle(findings: Sequence[Finding], wanted: FindingKey) -> str:
    """An engine that does not come back has not shown that it lacks the finding."""
    if any(finding.key == wanted for finding in findings):
        return ""
    return next((one.message for one in findings if one.oracle == "survival"), "")


def _check_end(end: ReleaseVerdict, must: Judgement) -> None:
    if end.verdict != must:
        said = f"cannot run the case: {end.why}" if end.why else f"shows the finding {end.rate}"
        raise UsageError(f"--{must}={end.release!r} is {end.verdict}: it {said}. Name another end.")


def _boundaries(
    verdicts: Sequence[ReleaseVerdict],
) -> tuple[tuple[Boundary, ...], tuple[Boundary, ...]]:
    """(where it was introduced, where it was fixed); a flaky release counts as broken."""
    order = [verdict.release for verdict in verdicts]
    told = [verdict for verdict in verdicts if verdict.verdict != "skipped"]
    came: list[Boundary] = []
    went: list[Boundary] = []
    for one, two in pairwise(told):
        if (one.verdict == "good") == (two.verdict == "good"):
            continue
        between = order[order.index(one.release) + 1 : order.index(two.release)]
        boundary = Boundary(before=one.release, after=two.release, skipped=tuple(between))
        (came if one.verdict == "good" else went).append(boundary)
    return tuple(came), tuple(went)
