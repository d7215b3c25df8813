"""Every planted fault is found on the case it was shrunk to, which the healthy engine passes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from fuzzgraph.case import Case, load_case
from fuzzgraph.errors import UsageError
from fuzzgraph.execution import Execution
from fuzzgraph.faults import FAULTS, fault_named, healthy_twin, open_fault, score, setup_of
from fuzzgraph.finding import CLAUSES, Finding
from fuzzgraph.repro import export_script
from fuzzgraph.run.events import Setup
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.faults.fault import Kind
from fuzzgraph.targets.builtin.overlap import Overlap

CASES = Path(__file__).resolve().parents[2] / "corpus" / "faults"
every_fault = pytest.mark.parametrize("name", FAULTS)


def stored(name: str) -> Case:
    return load_case(CASES / f"{name}.json")


def shown_by_operations(findings: Sequence[Finding]) -> Finding:
    """The first that is not about freed memory, of which no script tells; else the first of all."""
    return next((one for one in findings if one.symptom != "freed_memory"), findings[0])


@pytest.fixture(scope="module")
def healthy() -> Callable[[str], Execution]:
    """By the name of a fault, the engine that it was planted in."""

    @cache
    def opened(overlap: Overlap) -> Execution:
        fault = next(each for each in FAULTS.values() if each.overlap == overlap)
        return Execution(healthy_twin(fault), Setup(overlap=bool(overlap)), cache_size=4)

    return lambda name: opened(FAULTS[name].overlap)


@every_fault
def test_a_fault_is_found_on_its_stored_case_and_exported_as_a_script(name: str) -> None:
    setup = setup_of(FAULTS[name])
    case, execution = stored(name), Execution(open_fault(name), setup)
    findings = execution.run_case(case).findings
    execution.close()
    assert findings
    script = export_script(case, findings[0], setup, proven=False)
    assert ast.parse(script) and findings[0].clause in script


@every_fault
def test_the_healthy_engine_passes_the_case_of_a_fault(
    name: str, healthy: Callable[[str], Execution]
) -> None:
    assert healthy(name).run_case(stored(name)).findings == ()


@every_fault
def test_a_stored_case_is_as_small_as_its_trigger_allows(name: str) -> None:
    case = stored(name)
    requests = {row.request for step in case.steps for row in step.rows}
    assert (len(case.steps) <= 3 and len(requests) <= 3) or FAULTS[name].needs


@every_fault
def test_a_fault_cites_its_source_and_names_a_clause(name: str) -> None:
    fault = FAULTS[name]
    assert fault.source and fault.trigger and fault.clause in CLAUSES
    assert fault.components != Components()


def test_the_five_bugs_of_the_beginning_are_planted() -> None:
    wanted = {
        "sglang-pr-22598-indptr-at-pool-size",
        "sglang-pr-24587-kv-indices-in-pages",
        "sglang-pr-26742-upgrade-dropped",
        "sglang-pr-22404-capture-token-count",
        *(
            f"sglang-stale-req-pool-indices-{runner}"
            for runner in ("decode", "cpu-graph", "draft-extend", "draft")
        ),
    }
    assert wanted <= set(FAULTS)


def test_every_class_of_historical_bugs_has_a_fault() -> None:
    assert {fault.kind for fault in FAULTS.values()} == set(get_args(Kind))


def test_no_stored_case_is_left_over_from_a_fault_that_is_gone() -> None:
    assert {path.stem for path in CASES.glob("*.json")} == set(FAULTS)


def test_an_unknown_fault_is_refused_with_the_way_to_the_names() -> None:
    with pytest.raises(UsageError, match="fault='nope' is unknown.*fuzzgraph faults --list"):
        fault_named("nope")


def test_a_score_says_how_soon_a_fault_is_found_and_what_it_shrinks_to() -> None:
    result = score(
        ["sglang-stale-req-pool-indices-decode"], seeds=1, max_examples=200, healthy_cases=20
    )
    (one,) = result.faults
    assert one.found and one.oracle == "contract" and one.case is not None
    assert one.steps == 2 and one.requests <= 2
    assert (result.healthy.cases, result.healthy.findings) == (20, 0)


def test_a_fault_that_no_case_triggers_counts_as_missed() -> None:
    result = score(["sglang-pr-23037-results-are-views"], seeds=1, max_examples=1, healthy_cases=1)
    (one,) = result.faults
    assert not one.found and one.found_in == 0 and one.oracle == ""
