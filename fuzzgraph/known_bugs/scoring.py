"""Scores the fuzzer over real releases: found where the bug is, silent about it where it is not.

Every release is fuzzed once for all bugs of the same target: a run on a release that has bugs ends
when all of them are found, one that has to acquit a bug takes its whole time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.finding import Finding
from fuzzgraph.known_bugs.catalogue import KnownBug
from fuzzgraph.run.events import ReportedFinding, RunSummary, is_full_rate


class ReleaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one bug on one release."""

    release: str
    cases: int
    """Cases of the whole run."""
    found: bool = False
    """A generated case shows it, shrunk, in every fresh session."""
    clause: str = ""
    buffer: str = ""
    seconds: float = 0.0
    """Until the first case that shows it."""
    after_cases: int = 0
    steps: int = 0
    """Of the shrunk case, as `requests`."""
    requests: int = 0
    confirmed: str = ""
    message: str = ""
    case_path: str = ""


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that is none of the catalogue's: judge it."""

    target: str
    release: str
    id: str
    message: str
    case_path: str


class BugScore(msgspec.Struct, frozen=True, kw_only=True):
    """One bug over its releases."""

    name: str
    source: str
    target: str
    found: bool
    """In every broken release."""
    false_alarms: int
    """Fixed releases in which the same finding came up."""
    broken: tuple[ReleaseResult, ...] = ()
    fixed: tuple[ReleaseResult, ...] = ()
    not_driven: str = ""


@dataclass(slots=True)
class Search:
    """What one release is fuzzed for."""

    target: str
    release: str
    overlap: bool = False
    """Whether with the host a step ahead."""
    has: dict[str, KnownBug] = field(default_factory=dict)
    lacks: dict[str, KnownBug] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.target}=={self.release}{'+overlap' * self.overlap}"

    @property
    def wanted(self) -> int | None:
        """How many bugs end the run; None for one that takes its whole time."""
        return None if self.lacks else len(self.has)

    def bug_of(self, finding: Finding) -> str | None:
        """The bug that a finding is, of those that the release has."""
        return next((name for name, bug in self.has.items() if bug.is_seen_in(finding)), None)


FuzzRelease = Callable[[Search], RunSummary]
"""Fuzzes a release; may end once all wanted bugs are shrunk, for the reason "findings"."""


def searches_for(bugs: Mapping[str, KnownBug]) -> list[Search]:
    """Every release of the bugs once, with what it has and what it lacks."""
    searches: dict[tuple[str, str, bool], Search] = {}

    def of(target: str, release: str, overlap: bool) -> Search:
        place = (target, release, overlap)
        return searches.setdefault(place, Search(*place))

    for name, bug in bugs.items():
        for release in bug.broken:
            of(bug.target, release, bug.overlap).has[name] = bug
        for release in bug.fixed:
            of(bug.fixed_target or bug.target, release, bug.overlap).lacks[name] = bug
    return list(searches.values())


def score(
    bugs: Mapping[str, KnownBug],
    fuzz: FuzzRelease,
    progress: Callable[[str, ReleaseResult, bool], None] = lambda name, seen, wanted: None,
    *,
    jobs: int = 1,
) -> tuple[tuple[BugScore, ...], tuple[Other, ...]]:
    """Fuzz each release of the bugs, and tell what was found of each.

    Args:
        bugs: by name; those that are not driven are only listed.
        fuzz: fuzzes one release.
        progress: is told of every bug and release as soon as its run is over, with whether the
            release has the bug.
        jobs: how many releases are fuzzed at a time, each by a thread's call of `fuzz`.

    Returns:
        the scores in the order of `bugs`, and what else was found.

    Raises:
        FuzzGraphError: a run failed or was interrupted; it neither acquits a bug nor misses one.
    """
    seen: dict[tuple[str, str, bool], ReleaseResult] = {}
    others: list[Other] = []
    for search, summary in _fuzzed(searches_for(bugs), fuzz, jobs):
        _refuse_unfinished(search, summary)
        asked = {**search.has, **search.lacks}
        for name, bug in asked.items():
            result = _result_of(bug, search.release, summary)
            seen[name, search.release, name in search.has] = result
            progress(name, result, name in search.has)
        others += _others(asked.values(), search, summary)
    return tuple(_scored(name, bug, seen) for name, bug in bugs.items()), tuple(others)


def _fuzzed(
    searches: Sequence[Search], fuzz: FuzzRelease, jobs: int
) -> Iterator[tuple[Search, RunSummary]]:
    """Each with its run, in order; what was not begun when one fails is not begun any more."""
    if jobs == 1:
        yield from ((search, fuzz(search)) for search in searches)
        return
    pool = ThreadPoolExecutor(jobs)
    try:
        yield from zip(searches, pool.map(fuzz, searches), strict=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _refuse_unfinished(search: Search, summary: RunSummary) -> None:
    if summary.error or summary.reason in ("failed", "interrupted", "killed"):
        raise FuzzGraphError(
            f"{search.name}: the run did not come to its end ({summary.error or summary.reason}) "
            f"after {summary.cases} cases, which says nothing of its bugs. Run it again."
        )
    if not summary.checked:
        raise FuzzGraphError(
            f"{search.name}: no case was checked ({summary.skipped} of {summary.cases} skipped), "
            "which says nothing of its bugs. Give it more --time, or see why in its folder."
        )


def _result_of(bug: KnownBug, release: str, summary: RunSummary) -> ReleaseResult:
    for reported in summary.findings:
        finding = _that_shows(bug, reported)
        if finding is not None:
            return ReleaseResult(
                release=release,
                cases=summary.cases,
                found=reported.source == "generated" and is_full_rate(reported.finding.confirmed),
                clause=finding.clause,
                buffer=finding.buffer,
                seconds=reported.after_seconds,
                after_cases=reported.after_cases,
                steps=len(reported.case.steps),
                requests=len({row.request for s in reported.case.steps for row in s.rows}),
                confirmed=reported.finding.confirmed,
                message=finding.message,
                case_path=reported.case_path,
            )
    return ReleaseResult(release=release, cases=summary.cases)


def _that_shows(bug: KnownBug, reported: ReportedFinding) -> Finding | None:
    """The finding by which a case shows the bug; one that came up beside another counts too."""
    return next((f for f in (reported.finding, *reported.also) if bug.is_seen_in(f)), None)


def _others(bugs: Iterable[KnownBug], search: Search, summary: RunSummary) -> list[Other]:
    known = list(bugs)
    return [
        Other(
            target=search.target,
            release=search.release,
            id=reported.id,
            message=reported.finding.message,
            case_path=reported.case_path,
        )
        for reported in summary.findings
        if not any(_that_shows(bug, reported) for bug in known)
    ]


def _scored(
    name: str, bug: KnownBug, seen: Mapping[tuple[str, str, bool], ReleaseResult]
) -> BugScore:
    broken = tuple(seen[name, release, True] for release in bug.broken)
    fixed = tuple(seen[name, release, False] for release in bug.fixed)
    return BugScore(
        name=name,
        source=bug.source,
        target=bug.target,
        found=bool(broken) and all(one.found for one in broken),
        false_alarms=sum(bool(one.clause) for one in fixed),
        broken=broken,
        fixed=fixed,
        not_driven=bug.not_driven,
    )
