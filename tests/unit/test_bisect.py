"""Where a finding came in and where it was mended, over releases that never were."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import NoReturn

import pytest

from fuzzgraph import open_target, releases, worker
from fuzzgraph.bisect import Bisection, Line, bisect, release_line
from fuzzgraph.bisect.releases import release_range
from fuzzgraph.bisect.search import most_runs, next_point
from fuzzgraph.campaign import Opened
from fuzzgraph.case import Case
from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import Setup
from tests.fakes import FakeRunner, case, finding, opener

SETUP = Setup(target="sglang-aiter")
Asked = list[str]


def version(number: int) -> str:
    return f"1.{number}"


def broken(one: Case) -> tuple[Finding, ...]:
    return (finding(),)


def dies(one: Case) -> tuple[Finding, ...]:
    return (finding("survival", "survives", "", message="open raised KeyError"),)


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Asked]:
    """Sets what each release makes of the case: good, bad, flaky, once, dies, missing by first
    letter. Gives the releases that are opened from then on."""

    def set_history(letters: str) -> Asked:
        kinds = {version(number): letter for number, letter in enumerate(letters)}
        asked: Asked = []

        def open_setup(setup: Setup) -> Opened:
            asked.append(setup.release)
            kind = kinds[setup.release]
            if kind == "m":
                raise AdapterUnavailable(f"sglang {setup.release} has no such runner")
            shows = {"g": lambda _: (), "d": dies}.get(kind, broken)
            runner = FakeRunner(shows, rate={"f": "1/3", "o": "0/3"}.get(kind, ""))
            return opener(runner)(setup)

        monkeypatch.setattr("fuzzgraph.open_target.open_setup", open_setup)
        return asked

    return set_history


def line(good: int, bad: int, last: int = 5) -> Line:
    versions = [version(number) for number in range(last + 1)]
    return release_line(SETUP, version(good), version(bad), versions)


def found(good: int, bad: int, last: int = 5, *, every: bool = False) -> Bisection:
    return bisect(case(2), line(good, bad, last), every=every)


def boundaries(one: Bisection) -> tuple[list[str], list[str]]:
    return [way.after for way in one.broken], [way.after for way in one.fixed]


def test_the_first_broken_release_is_named(history: Callable[[str], Asked]) -> None:
    history("gggbbb")
    assert boundaries(found(0, 5)) == (["1.3"], [])


def test_the_first_fixed_release_is_named(history: Callable[[str], Asked]) -> None:
    history("bbgggg")
    assert boundaries(found(5, 0)) == ([], ["1.2"])


@pytest.mark.parametrize("first_bad", range(1, 40))
def test_it_takes_no_more_runs_than_were_told_wherever_the_finding_came_in(
    first_bad: int, history: Callable[[str], Asked]
) -> None:
    asked = history("g" * first_bad + "b" * (40 - first_bad))
    assert boundaries(found(0, 39, 39)) == ([version(first_bad)], [])
    assert len(asked) == len(set(asked)) <= most_runs(40) == 8


def test_only_the_releases_that_are_asked_are_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    versions = [version(number) for number in range(40)]
    fetched: Asked = []

    def fetch(package: str, release: str) -> Path:
        fetched.append(f"{package} {release}")
        return tmp_path

    def start(setup: Setup, *, paths: list[Path], **_: object) -> NoReturn:
        assert paths == [tmp_path]
        shows = broken if versions.index(setup.release) >= 23 else lambda _: ()
        raise _Started(FakeRunner(shows))

    def open_setup(setup: Setup) -> Opened:
        try:
            return real(setup)
        except _Started as started:
            return opener(started.runner)(setup)

    real = open_target.open_setup
    monkeypatch.setattr(releases, "fetch", fetch)
    monkeypatch.setattr(releases, "available", lambda package: versions)
    monkeypatch.setattr(releases, "cache_folder", lambda: tmp_path / "none")
    monkeypatch.setattr(worker, "open_client", start)
    monkeypatch.setattr(open_target, "open_setup", open_setup)
    asked = release_line(SETUP, version(0), version(39))
    assert fetched == []
    one = bisect(case(2), asked)
    assert boundaries(one) == ([version(23)], [])
    assert fetched[:2] == ["sglang 1.39", "sglang 1.0"]
    assert sorted(set(fetched)) == sorted(f"sglang {answer.point}" for answer in one.answers)
    assert len(fetched) <= most_runs(40) == 8


class _Started(Exception):
    """A worker would run now, on the release that was fetched for it."""

    def __init__(self, runner: FakeRunner) -> None:
        super().__init__()
        self.runner = runner


def test_a_bug_that_comes_back_is_seen_where_all_are_asked(
    history: Callable[[str], Asked],
) -> None:
    asked = history("gbbgbb")
    assert boundaries(found(0, 5, every=True)) == (["1.1", "1.4"], ["1.3"])
    assert len(asked) == most_runs(6, every=True) == 6


def test_of_a_bug_that_comes_back_one_true_change_is_named_and_the_rest_is_left_open(
    history: Callable[[str], Asked],
) -> None:
    history("gbbgbb")
    one = found(0, 5)
    assert boundaries(one) in [(["1.1"], []), (["1.4"], [])]
    assert set(one.points) - {answer.point for answer in one.answers}


def test_a_release_that_cannot_run_the_case_is_left_out_and_named(
    history: Callable[[str], Asked],
) -> None:
    history("ggmdbb")
    one = found(0, 5)
    (boundary,) = one.broken
    assert (boundary.before, boundary.after, boundary.skipped) == ("1.1", "1.4", ("1.2", "1.3"))
    why = {answer.point: answer.why for answer in one.answers if answer.verdict == "skipped"}
    assert why == {"1.2": "sglang 1.2 has no such runner", "1.3": "open raised KeyError"}


@pytest.mark.parametrize("first_bad", range(1, 7))
def test_whichever_cannot_run_the_neighbours_of_the_change_are_right(first_bad: int) -> None:
    for number in range(6):
        for unable in combinations(range(1, 6), number):
            first, last = 0, 6
            asked = {first, last}
            while (point := next_point(first, last, asked)) is not None:
                asked.add(point)
                if point in unable:
                    continue
                first, last = (point, last) if point < first_bad else (first, point)
            assert first < first_bad <= last
            assert set(range(first + 1, last)) <= set(unable)


def test_many_that_cannot_run_do_not_make_it_ask_the_others_one_by_one(
    history: Callable[[str], Asked],
) -> None:
    history("g" * 14 + "m" * 12 + "g" * 10 + "b" * 4)
    one = found(0, 39, 39)
    assert boundaries(one) == (["1.36"], [])
    assert len(one.answers) <= most_runs(40) + 3


def test_a_finding_that_shows_now_and_then_is_called_flaky_and_counts_as_broken(
    history: Callable[[str], Asked],
) -> None:
    history("gfbbbb")
    one = found(0, 5)
    assert [answer.verdict for answer in one.answers[:2]] == ["good", "flaky"]
    assert boundaries(one) == (["1.1"], [])


def test_a_release_that_showed_it_once_is_not_called_good(history: Callable[[str], Asked]) -> None:
    history("gobbbb")
    assert boundaries(found(0, 5)) == (["1.1"], [])


def test_a_good_end_that_shows_the_finding_is_refused_before_others_are_asked(
    history: Callable[[str], Asked],
) -> None:
    asked = history("bbbbbb")
    with pytest.raises(UsageError, match="--good=1.0 is bad: it shows the finding 3/3"):
        found(0, 5)
    assert asked == ["1.5", "1.0"]


def test_a_good_end_that_cannot_run_the_case_is_refused(history: Callable[[str], Asked]) -> None:
    history("mbbbbb")
    with pytest.raises(UsageError, match="--good=1.0 is skipped: it cannot run the case: sglang"):
        found(0, 5)


def test_a_bad_end_without_a_finding_is_refused(history: Callable[[str], Asked]) -> None:
    asked = history("gggggg")
    with pytest.raises(UsageError, match="--bad=1.5 shows nothing on this case"):
        found(0, 5)
    assert asked == ["1.5"]


def test_a_bad_end_that_shows_it_now_and_then_is_refused(history: Callable[[str], Asked]) -> None:
    history("gbbbbf")
    with pytest.raises(UsageError, match="--bad=1.5 is flaky: it shows the finding 1/3"):
        found(0, 5)


def test_only_the_finding_that_is_asked_for_counts(history: Callable[[str], Asked]) -> None:
    history("gggbbb")
    with pytest.raises(UsageError, match="not reference"):
        bisect(case(2), line(0, 5), wanted="reference")


def test_all_releases_between_the_ends_are_walked_oldest_first() -> None:
    known = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")
    assert release_range(known, "1.4", "1.2") == ("1.2", "1.3", "1.4")


def test_a_list_of_releases_is_taken_in_the_order_of_releases() -> None:
    taken = release_line(SETUP, "0.5.9", "0.5.10", ["0.5.10", "0.5.9.post1", "0.5.9", "0.5.10"])
    assert [point.name for point in taken.points] == ["0.5.9", "0.5.9.post1", "0.5.10"]


@pytest.mark.parametrize(
    ("good", "bad", "only", "said"),
    [
        ("1.2", "1.2", ["1.2", "1.3"], "both '1.2'"),
        ("1.2", "9.9", ["1.2", "1.3"], "--bad='9.9' is not a known release"),
        ("1.2", "1.3", ["1.2", "1.3", "1.4"], "1.4 does not lie between --good=1.2 and --bad=1.3"),
        ("../1", "1.3", [], "release='../1' is not a release name"),
        ("1.2", "1.3", ["1.2", "", "1.3"], "release='' is not a release name"),
    ],
)
def test_ends_that_make_no_line_are_refused(
    good: str, bad: str, only: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        release_line(SETUP, good, bad, only)


def test_a_target_without_releases_is_refused() -> None:
    with pytest.raises(UsageError, match="target='builtin' belongs to no package"):
        release_line(Setup(), "1", "2")
