"""Where a finding came in and where it was mended, over releases that never were."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fuzzgraph.bisect import bisect, release_range
from fuzzgraph.campaign import Opened
from fuzzgraph.case import Case
from fuzzgraph.errors import AdapterUnavailable, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import Setup
from tests.fakes import FakeRunner, case, finding, opener

VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")
SETUP = Setup(target="sglang-aiter")


def broken(one: Case) -> tuple[Finding, ...]:
    return (finding(),)


def dies(one: Case) -> tuple[Finding, ...]:
    return (finding("survival", "survives", "", message="open raised KeyError"),)


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what each release makes of the case: good, bad, flaky, dies, missing by first letter."""

    def set_history(letters: str) -> None:
        kinds = dict(zip(VERSIONS, letters, strict=True))

        def open_setup(setup: Setup) -> Opened:
            kind = kinds[setup.release]
            if kind == "m":
                raise AdapterUnavailable(f"sglang {setup.release} has no such runner")
            shows = {"g": lambda _: (), "d": dies}.get(kind, broken)
            runner = FakeRunner(shows, rate="1/3" if kind == "f" else "")
            return opener(runner)(setup)

        monkeypatch.setattr("fuzzgraph.open_target.open_setup", open_setup)

    return set_history


def boundaries(good: str, bad: str) -> tuple[list[str], list[str]]:
    found = bisect(case(2), SETUP, VERSIONS, good=good, bad=bad)
    return [one.after for one in found.broken], [one.after for one in found.fixed]


def test_the_first_broken_release_is_named(history: Callable[[str], None]) -> None:
    history("gggbbb")
    assert boundaries("1.0", "1.5") == (["1.3"], [])


def test_the_first_fixed_release_is_named(history: Callable[[str], None]) -> None:
    history("bbgggg")
    assert boundaries("1.5", "1.0") == ([], ["1.2"])


def test_a_bug_that_comes_back_is_seen(history: Callable[[str], None]) -> None:
    history("gbbgbb")
    assert boundaries("1.0", "1.5") == (["1.1", "1.4"], ["1.3"])


def test_a_release_that_cannot_run_the_case_is_left_out_and_named(
    history: Callable[[str], None],
) -> None:
    history("ggmdbb")
    found = bisect(case(2), SETUP, VERSIONS, good="1.0", bad="1.5")
    (boundary,) = found.broken
    assert (boundary.before, boundary.after, boundary.skipped) == ("1.1", "1.4", ("1.2", "1.3"))
    assert found.releases[2].why == "sglang 1.2 has no such runner"
    assert found.releases[3].why == "open raised KeyError"


def test_a_finding_that_shows_now_and_then_is_called_flaky(history: Callable[[str], None]) -> None:
    history("gfbbbb")
    found = bisect(case(2), SETUP, VERSIONS, good="1.0", bad="1.5")
    assert [one.verdict for one in found.releases[:3]] == ["good", "flaky", "bad"]
    assert [one.after for one in found.broken] == ["1.1"]


def test_a_good_end_that_shows_the_finding_is_refused(history: Callable[[str], None]) -> None:
    history("bbbbbb")
    with pytest.raises(UsageError, match="--good='1.0' is bad: it shows the finding 3/3"):
        bisect(case(2), SETUP, VERSIONS, good="1.0", bad="1.5")


def test_a_bad_end_without_a_finding_is_refused(history: Callable[[str], None]) -> None:
    history("gggggg")
    with pytest.raises(UsageError, match="--bad='1.5' shows nothing on this case"):
        bisect(case(2), SETUP, VERSIONS, good="1.0", bad="1.5")


def test_only_the_finding_that_is_asked_for_counts(history: Callable[[str], None]) -> None:
    history("gggbbb")
    with pytest.raises(UsageError, match="not reference"):
        bisect(case(2), SETUP, VERSIONS, good="1.0", bad="1.5", wanted="reference")


def test_all_releases_between_the_ends_are_walked_oldest_first() -> None:
    assert release_range(VERSIONS, "1.4", "1.2") == ("1.2", "1.3", "1.4")


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [("1.2", "1.2", "both '1.2'"), ("1.2", "9.9", "--bad='9.9' is not a known release")],
)
def test_ends_that_make_no_walk_are_refused(good: str, bad: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        release_range(VERSIONS, good, bad)
