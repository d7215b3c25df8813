"""Each oracle catches a fault that no other sees, spares the healthy engine, and can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.oracles import ORACLES
from fuzzgraph.ports import Target
from fuzzgraph.targets import open_target

sys.path.insert(0, str(Path(__file__).parent))

from exclusive import EXCLUSIVES, Exclusive  # noqa: E402

by_oracle = pytest.mark.parametrize("known", EXCLUSIVES, ids=lambda known: known.oracle)


def findings(target: Target, known: Exclusive, *, without: str = "") -> tuple[Finding, ...]:
    oracles = [oracle for oracle in ORACLES if oracle.name != without]
    execution = Execution(target, oracles=oracles)
    found = execution.run_case(known.case).findings
    execution.close()
    return found


def test_every_oracle_has_a_fault_of_its_own() -> None:
    assert {known.oracle for known in EXCLUSIVES} == {oracle.name for oracle in ORACLES}


@by_oracle
def test_the_oracle_alone_catches_its_fault_and_names_the_buffer(known: Exclusive) -> None:
    found = findings(open_fault(known.fault), known)
    assert {finding.oracle for finding in found} == {known.oracle}
    assert found[0].buffer == known.buffer


@by_oracle
def test_the_oracle_is_silent_on_the_healthy_twin(known: Exclusive) -> None:
    assert findings(open_target("builtin"), known) == ()


@by_oracle
def test_without_the_oracle_its_fault_goes_unseen(known: Exclusive) -> None:
    assert findings(open_fault(known.fault), known, without=known.oracle) == ()
