"""What a tree shows and its base does not, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.gate.against_base import AgainstBase

CASE = Case(
    schema_version=1,
    config=EngineConfig(),
    steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=1),)),) * 4,
)


def finding(buffer: str, step: int = 0, oracle: str = "footprint") -> Finding:
    return Finding(
        oracle=oracle, clause="writes", target="t", step=step, mode="decode", buffer=buffer,
        symptom="red_zone_hit", stage="replay", message=f"{buffer} at {step}",
    )  # fmt: skip


class Fixed:
    """Shows the same findings on every case."""

    def __init__(self, *findings: Finding, skipped: str = "", rate: str = "") -> None:
        self.findings, self.skipped, self.rate = findings, skipped, rate

    def run_case(self, case: Case) -> Verdict:
        return Verdict(case, "t", self.findings, steps=1, skipped=self.skipped)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        shows = any(one.key == finding.key for one in self.findings)
        rate = self.rate or f"{times if shows else 0}/{times}"
        return msgspec.structs.replace(finding, confirmed=rate)


Pair = Callable[[Fixed, Fixed], AgainstBase]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made: list[AgainstBase] = []

    def pair(head: Fixed, base: Fixed) -> AgainstBase:
        made.append(AgainstBase(head, base))
        return made[-1]

    yield pair
    for one in made:
        one.close()


def names(against: AgainstBase) -> tuple[list[str], list[str], list[str]]:
    """Buffers of what is new, of what stands, of what seems mended."""
    new = [one.buffer for one in against.run_case(CASE).findings]
    seen = against.differences
    return (
        new,
        [one.finding.buffer for one in seen.standing.values()],
        [one.finding.buffer for one in seen.mended.values()],
    )


def test_new_standing_and_mended_findings_are_told_apart(pair: Pair) -> None:
    head = Fixed(finding("new", oracle="eager"), finding("old"))
    assert names(pair(head, Fixed(finding("old")))) == (["new"], ["old"], [])
    base = Fixed(finding("old"), finding("mended", oracle="history"))
    assert names(pair(Fixed(finding("old")), base)) == ([], ["old"], ["mended"])


def test_what_a_mended_failure_of_the_step_may_have_hidden_is_not_blamed(pair: Pair) -> None:
    head, base = Fixed(finding("seen now", oracle="eager")), Fixed(finding("mended"))
    against = pair(head, base)
    assert names(against) == ([], [], ["mended"])
    (one,) = against.differences.uncovered.values()
    assert (one.finding.buffer, one.cases) == ("seen now", 1)


def test_an_engine_that_shows_the_same_is_silent(pair: Pair) -> None:
    assert names(pair(Fixed(finding("old")), Fixed(finding("old")))) == ([], ["old"], [])
    assert names(pair(Fixed(), Fixed())) == ([], [], [])


def test_nothing_is_said_of_steps_that_one_of_them_did_not_reach(pair: Pair) -> None:
    """Each stops at its first step with findings."""
    early, late = finding("early", 1), finding("late", 3, oracle="eager")
    assert names(pair(Fixed(late), Fixed(early))) == ([], [], ["early"])
    assert names(pair(Fixed(early), Fixed(late))) == (["early"], [], [])


def test_a_finding_under_another_name_stands(pair: Pair) -> None:
    against = pair(Fixed(finding("new_name")), Fixed(finding("old_name")))
    assert names(against) == ([], ["new_name"], [])
    (standing,) = against.differences.standing.values()
    assert standing.was is not None and standing.was.buffer == "old_name"


def test_a_second_finding_of_a_kind_is_new_beside_one_that_stands(pair: Pair) -> None:
    head = Fixed(finding("old"), finding("another"))
    assert names(pair(head, Fixed(finding("old")))) == (["another"], ["old"], [])


def test_it_is_confirmed_only_if_the_base_never_shows_it(pair: Pair) -> None:
    new = finding("new")
    confirmed = pair(Fixed(new), Fixed()).confirm(CASE, new, 3)
    assert (confirmed.confirmed, confirmed.detail["on_base"]) == ("3/3", "0/3")
    sometimes = pair(Fixed(new), Fixed(rate="1/3")).confirm(CASE, new, 3)
    assert (sometimes.confirmed, sometimes.detail["on_base"]) == ("0/3", "1/3")


def test_a_mended_finding_has_to_show_on_the_base_and_not_on_the_tree(pair: Pair) -> None:
    old = finding("old")
    against = pair(Fixed(), Fixed(old))
    against.run_case(CASE)
    against.confirm_mended()
    (mended,) = against.differences.mended.values()
    assert (mended.confirmed, mended.on_head) == ("3/3", "0/3")
    flaky = pair(Fixed(rate="1/3"), Fixed(old))
    flaky.run_case(CASE)
    flaky.confirm_mended()
    assert not flaky.differences.mended


def test_a_case_that_one_of_them_does_not_run_says_nothing(pair: Pair) -> None:
    verdict = pair(Fixed(finding("new")), Fixed(skipped="no such mode")).run_case(CASE)
    assert verdict.findings == () and verdict.skipped == "the base does not run it: no such mode"


def test_both_run_before_an_error_of_one_is_raised(pair: Pair) -> None:
    class Failing(Fixed):
        def run_case(self, case: Case) -> Verdict:
            raise ValueError("base")

    with pytest.raises(ValueError, match="base"):
        pair(Fixed(), Failing()).run_case(CASE)
    with pytest.raises(ValueError, match="base"):
        pair(Failing(), Fixed()).run_case(CASE)
