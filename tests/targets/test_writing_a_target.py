"""The target that the documentation builds stays silent, and its broken twin is found."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from hypothesis import given, settings

from fuzzgraph.case import Case
from fuzzgraph.corpus import load
from fuzzgraph.execution import Execution
from fuzzgraph.strategies import CI, cases

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "corpus" / "cases"


def findings_in(execution: Execution, page: ModuleType, examples: int) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()

    @settings(max_examples=examples, database=None, deadline=None, derandomize=True)
    @given(cases(page.TinyTarget.capabilities, CI))
    def collect(case: Case) -> None:
        found.update((f.oracle, f.buffer) for f in execution.run_case(case).findings)

    collect()
    return found


def test_the_page_says_what_its_target_does(page: ModuleType) -> None:
    assert page.finding.clause == "metadata"


def test_the_target_of_the_page_stays_silent_on_generated_cases(page: ModuleType) -> None:
    assert not findings_in(Execution(page.TinyTarget()), page, 60)


def test_the_target_of_the_page_stays_silent_on_the_saved_cases(page: ModuleType) -> None:
    execution = Execution(page.TinyTarget())
    verdicts = [execution.run_case(entry.case) for entry in load(CORPUS).entries]
    assert not [verdict.findings for verdict in verdicts if verdict.findings]
    assert any(not verdict.skipped for verdict in verdicts)


def test_its_broken_twin_is_found_in_generated_cases(page: ModuleType) -> None:
    found = findings_in(Execution(page.ForgetfulTarget()), page, 60)
    assert ("contract", "req_pool_indices") in found
