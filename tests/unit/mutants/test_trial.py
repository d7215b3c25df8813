"""When a mutant counts as found, as one that does not start, and as neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from fuzzgraph.case import Case
from fuzzgraph.errors import FuzzGraphError, InvalidCase, TargetFailed
from fuzzgraph.finding import Finding
from fuzzgraph.mutants import trial
from fuzzgraph.mutants.records import Result
from fuzzgraph.mutants.trial import CONFIGS_TO_START, Known, Trial, identity
from fuzzgraph.run.events import finding_id
from fuzzgraph.run.spec import Setup
from tests.fakes import FakeRunner, FakeTarget, case, finding
from tests.unit.mutants.records import mutant

Bugs = Callable[[Case], tuple[Finding, ...]]
CASES = [case(1, page_size=size) for size in range(1, 2 * CONFIGS_TO_START)]
"""Each has another config."""


def lost(stage: str = "capture") -> Finding:
    """The engine raised before the first step."""
    raised = finding("survival", "survives", "", step=-1, message="capture raised ValueError")
    return msgspec.structs.replace(raised, symptom="exception", stage=stage)


def shows(finding: Finding) -> Bugs:
    """An engine that shows it in every case."""
    return lambda case: (finding,)


def made(monkeypatch: pytest.MonkeyPatch, bugs: Bugs) -> tuple[Trial, FakeRunner]:
    runner = FakeRunner(bugs)
    monkeypatch.setattr(trial, "Execution", lambda target, setup: runner)
    return Trial(cast(Any, FakeTarget()), Setup(), CASES, lambda stage, step: None), runner


def judged(
    monkeypatch: pytest.MonkeyPatch, bugs: Bugs, *known: Finding, seconds: float = 1e9
) -> Result:
    anywhere = Known({identity(one): frozenset() for one in known})
    return made(monkeypatch, bugs)[0].judged(mutant("a"), seconds, anywhere)


def test_the_first_finding_gives_a_mutant_away(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, lambda one: (finding(),) if one == CASES[2] else ())
    assert (found.outcome, found.cases) == ("found", 3)
    assert (found.oracle, found.clause, found.buffer) == ("footprint", "writes", "kv_indices")


def test_what_the_unchanged_engine_shows_gives_nothing_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = judged(monkeypatch, lambda one: (finding(),), finding())
    assert (found.outcome, found.cases) == ("survived", len(CASES))


def test_what_the_unchanged_engine_shows_in_other_cases_gives_a_mutant_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran, _ = made(monkeypatch, lambda one: (finding(),) if one in CASES[1:3] else ())
    quiet = ran.quiet(1e9)
    assert quiet.shown_by == {identity(finding()): (1, 2)}
    known = Known({one: frozenset(cases) for one, cases in quiet.shown_by.items()}, 4)

    def verdict(number: int) -> tuple[str, int]:
        changed, _ = made(monkeypatch, lambda one: (finding(),) if one == CASES[number] else ())
        result = changed.judged(mutant("a"), 1e9, known)
        return result.outcome, result.cases

    assert verdict(1) == ("survived", len(CASES))
    assert verdict(3) == ("found", 4)
    assert verdict(4) == ("survived", len(CASES)), "nobody has run that one unchanged"


def test_an_error_that_the_unchanged_engine_raises_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised = {"error": "RuntimeError: sizes", "where": "/x/a.py:3 in plan"}
    known = msgspec.structs.replace(finding("survival"), detail=raised)
    for error, where, outcome in (
        ("RuntimeError: other sizes", "/x/a.py:4 in plan", "survived"),
        ("KeyError: 4", "/x/a.py:3 in plan", "found"),
        ("RuntimeError: sizes", "/x/b.py:3 in capture", "found"),
    ):
        now = msgspec.structs.replace(known, detail={"error": error, "where": where})
        assert judged(monkeypatch, shows(now), known).outcome == outcome


def test_an_engine_that_starts_with_no_config_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = judged(monkeypatch, lambda one: (lost(),))
    assert (found.outcome, found.cases) == ("does_not_start", CONFIGS_TO_START)
    assert found.said == "capture raised ValueError"


def test_an_engine_that_starts_with_some_configs_is_found_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = judged(monkeypatch, lambda one: () if one == CASES[3] else (lost(),))
    assert (found.outcome, found.oracle, found.cases) == ("found", "survival", 4)


def test_an_engine_that_fails_to_start_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, lambda one: (lost("open"),) if one == CASES[-1] else ())
    assert (found.outcome, found.oracle) == ("found", "survival")


def test_what_a_stand_in_refuses_at_the_start_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = msgspec.structs.replace(lost(), detail={"error": "CaptureError: .item()"})
    assert judged(monkeypatch, lambda one: (refused,)).outcome == "found"
    raised = msgspec.structs.replace(lost(), detail={"error": "ValueError: no device"})
    assert judged(monkeypatch, lambda one: (raised,)).outcome == "does_not_start"


def test_an_error_in_the_first_step_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = finding("survival", "survives", "", step=0, message="prepare raised")
    assert judged(monkeypatch, lambda one: (raised,)).outcome == "found"


def test_a_failure_of_the_targets_own_code_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bugs(one: Case) -> tuple[Finding, ...]:
        raise TargetFailed("the stand-in has no stream")

    found = judged(monkeypatch, bugs)
    assert (found.outcome, found.said) == ("failed", "TargetFailed: the stand-in has no stream")


def test_a_case_that_does_not_fit_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def bugs(one: Case) -> tuple[Finding, ...]:
        if one == CASES[0]:
            raise InvalidCase("too many pages")
        return ()

    found = judged(monkeypatch, bugs)
    assert (found.outcome, found.cases) == ("survived", len(CASES) - 1)


def test_a_mutant_of_which_no_case_could_be_judged_has_not_survived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bugs(one: Case) -> tuple[Finding, ...]:
        raise InvalidCase("too many pages")

    found = judged(monkeypatch, bugs)
    assert (found.outcome, found.cases) == ("failed", 0)
    assert found.said == "no case was judged: too many pages"
    with pytest.raises(FuzzGraphError, match=r"ran no case in .* \(too many pages\)"):
        made(monkeypatch, bugs)[0].quiet(1e9)


def test_a_mutant_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = judged(monkeypatch, lambda one: (finding(),), seconds=0)
    assert (found.outcome, found.cases) == ("survived", 0)


def test_the_unchanged_engine_tells_each_finding_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, runner = made(monkeypatch, lambda one: (finding(), finding(step=2)))
    quiet = ran.quiet(1e9)
    assert quiet.cases == len(runner.ran) == len(CASES)
    ((name, line),) = quiet.findings.items()
    assert name == finding_id(finding().key) and line.startswith("footprint (kv_indices, decode)")
