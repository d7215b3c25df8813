"""What counts as found, missed and a false alarm, on runs that never happened."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fuzzgraph.case import digest
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.finding import Finding
from fuzzgraph.known_bugs import Expectation, KnownBug, Search, score, searches_for
from fuzzgraph.run.events import Reason, ReportedFinding, RunSummary, Setup, Source, finding_id
from fuzzgraph.run.spec import RunSpec
from tests.fakes import case, finding


def bug(
    *, broken: tuple[str, ...], fixed: tuple[str, ...] = (), buffer: str = "kv_indices"
) -> KnownBug:
    return KnownBug(
        source="engine PR 1",
        summary="A buffer is too small.",
        target="fake",
        broken=broken,
        fixed=fixed,
        expect=(Expectation(clause="writes", buffer=buffer),),
        confirmed="for this test",
    )


def reported(
    one: Finding, *, also: tuple[Finding, ...] = (), source: Source = "generated"
) -> ReportedFinding:
    shown = case(2, 1)
    return ReportedFinding(
        id=finding_id(one.key), finding=one, case=shown, digest=digest(shown), also=also,
        source=source, after_cases=7, after_seconds=1.5,
    )  # fmt: skip


class Releases:
    """A fuzz that finds in each release what it is told to, and remembers what it was asked."""

    def __init__(self, **found: list[ReportedFinding]) -> None:
        self._found = {name.replace("_", "."): each for name, each in found.items()}
        self.asked: list[tuple[str, int | None]] = []

    def __call__(self, search: Search) -> RunSummary:
        self.asked.append((search.release, search.wanted))
        found = tuple(self._found.get(f"v{search.release}", ()))
        setup = Setup(target=search.target, release=search.release)
        return RunSummary(
            fuzzgraph="0", spec=RunSpec(setup=setup, seed=1), cases=100, findings=found
        )


SEEN = finding(confirmed="3/3")


def test_a_bug_seen_in_every_broken_release_and_in_no_fixed_one_is_found() -> None:
    fuzz = Releases(v1_0=[reported(SEEN)], v1_1=[reported(SEEN)])
    (one,), others = score({"b": bug(broken=("1.0", "1.1"), fixed=("1.2",))}, fuzz)
    assert (one.found, one.false_alarms, others) == (True, 0, ())
    first = one.broken[0]
    assert (first.seconds, first.after_cases, first.steps, first.requests) == (1.5, 7, 2, 2)


def test_one_broken_release_without_it_is_a_miss() -> None:
    (one,), _ = score({"b": bug(broken=("1.0", "1.1"))}, Releases(v1_0=[reported(SEEN)]))
    assert not one.found
    assert [seen.found for seen in one.broken] == [True, False]


def test_the_same_finding_in_a_fixed_release_is_a_false_alarm() -> None:
    fuzz = Releases(v1_0=[reported(SEEN)], v1_1=[reported(SEEN)])
    (one,), _ = score({"b": bug(broken=("1.0",), fixed=("1.1",))}, fuzz)
    assert (one.found, one.false_alarms) == (True, 1)


def test_what_does_not_confirm_every_time_is_no_find() -> None:
    flaky = reported(finding(confirmed="2/3"))
    (one,), _ = score({"b": bug(broken=("1.0",))}, Releases(v1_0=[flaky]))
    assert not one.found


def test_a_case_of_a_corpus_is_no_find() -> None:
    saved = reported(SEEN, source="corpus")
    (one,), _ = score({"b": bug(broken=("1.0",))}, Releases(v1_0=[saved]))
    assert not one.found


def test_a_bug_that_shows_beside_another_finding_is_found() -> None:
    beside = reported(finding("contract", "metadata", confirmed="3/3"), also=(finding(),))
    (one,), others = score({"b": bug(broken=("1.0",))}, Releases(v1_0=[beside]))
    assert (one.found, others) == (True, ())


def test_a_release_is_fuzzed_once_for_all_bugs_of_its_target() -> None:
    bugs = {
        "wide": bug(broken=("1.0",), fixed=("1.1",)),
        "late": bug(broken=("1.0", "1.1"), buffer="page_table"),
    }
    fuzz = Releases(v1_0=[reported(SEEN)])
    score(bugs, fuzz)
    assert fuzz.asked == [("1.0", 2), ("1.1", None)]


def test_a_bug_that_shows_with_the_host_ahead_alone_has_a_run_of_its_own() -> None:
    plain = bug(broken=("1.0",))
    searches = searches_for({"plain": plain, "ahead": replace(plain, overlap=True)})
    assert [(each.name, each.overlap) for each in searches] == [
        ("fake==1.0", False),
        ("fake==1.0+overlap", True),
    ]


def test_a_finding_of_no_known_bug_is_listed_beside_the_scores() -> None:
    stranger = reported(finding(buffer="seq_lens", confirmed="3/3"))
    _, (other,) = score({"b": bug(broken=("1.0",))}, Releases(v1_0=[reported(SEEN), stranger]))
    assert (other.release, other.id) == ("1.0", stranger.id)


def test_a_bug_that_is_not_driven_is_listed_and_never_run() -> None:
    fuzz = Releases()
    idle = KnownBug(source="engine PR 2", summary="Compiled.", not_driven="it lies in C++")
    (one,), _ = score({"b": idle}, fuzz)
    assert (one.found, one.not_driven, fuzz.asked) == (False, "it lies in C++", [])


def test_a_mutant_is_acquitted_by_the_target_that_it_is_a_mutant_of() -> None:
    mutant = KnownBug(
        source="engine PR 3", summary="Upgrade lost.", target="fake:mutant", fixed_target="fake",
        broken=("1.0",), fixed=("1.0",), confirmed="for this test",
        expect=(Expectation(clause="writes", buffer="kv_indices"),),
    )  # fmt: skip
    asked: list[str] = []

    def fuzz(search: Search) -> RunSummary:
        asked.append(search.target)
        found = (reported(SEEN),) if search.target == "fake:mutant" else ()
        setup = Setup(target=search.target, release=search.release)
        return RunSummary(fuzzgraph="0", spec=RunSpec(setup=setup, seed=1), cases=9, findings=found)

    (one,), _ = score({"b": mutant}, fuzz)
    assert (one.found, one.false_alarms) == (True, 0)
    assert asked == ["fake:mutant", "fake"]


@pytest.mark.parametrize(
    ("reason", "error", "said"),
    [
        ("failed", "WorkerFailed: boom", "WorkerFailed: boom"),
        ("interrupted", "", "interrupted"),
        ("killed", "", "killed"),
    ],
)
@pytest.mark.parametrize("unfinished", ["1.0", "1.1"], ids=["broken", "fixed"])
def test_a_run_that_did_not_come_to_its_end_acquits_no_bug_and_misses_none(
    unfinished: str, reason: Reason, error: str, said: str
) -> None:
    def fuzz(search: Search) -> RunSummary:
        setup = Setup(target=search.target, release=search.release)
        if search.release == unfinished:
            return RunSummary(
                fuzzgraph="0", spec=RunSpec(setup=setup, seed=1), reason=reason, error=error
            )
        return RunSummary(fuzzgraph="0", spec=RunSpec(setup=setup, seed=1), cases=1)

    with pytest.raises(FuzzGraphError, match=rf"^fake=={unfinished}: .*\({said}\)"):
        score({"b": bug(broken=("1.0",), fixed=("1.1",))}, fuzz)


def test_a_run_that_checked_no_case_acquits_no_bug() -> None:
    def fuzz(search: Search) -> RunSummary:
        setup = Setup(target=search.target, release=search.release)
        found = (reported(SEEN),) if search.release == "1.0" else ()
        skipped = 0 if found else 9
        return RunSummary(
            fuzzgraph="0", spec=RunSpec(setup=setup, seed=1), cases=9, skipped=skipped,
            findings=found,
        )  # fmt: skip

    with pytest.raises(FuzzGraphError, match=r"^fake==1.1: no case was checked \(9 of 9 skipped"):
        score({"b": bug(broken=("1.0",), fixed=("1.1",))}, fuzz)
