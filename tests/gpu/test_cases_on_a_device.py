"""Whole cases on a device: silent on the healthy engine, loud on planted faults."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.case import Case
from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.run.spec import Setup
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import open_target
from tests.quality.test_planted_faults import stored

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or HIP device"),
]

_FAULTS = (
    "sglang-pr-24587-kv-indices-in-pages",
    "sglang-pr-6998-block-table-reallocated",
    "vllm-pr-25490-plan-remembers-last-batch",
)


@pytest.mark.parametrize("kernels", ["builtin", "builtin-triton"])
def test_the_healthy_engine_gives_no_finding(kernels: str) -> None:
    execution = Execution(open_target(kernels), Setup(graphs="device", device="cuda"))
    found: list[str] = []

    def run(case: Case) -> None:
        found.extend(finding.message for finding in execution.run_case(case).findings)

    draw(cases(execution.target.capabilities, DEFAULT), 7, 60, run)
    execution.close()
    assert not found


@pytest.mark.parametrize("name", _FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    execution = Execution(open_fault(name), Setup(graphs="device", device="cuda"))
    findings = execution.run_case(stored(name)).findings
    execution.close()
    assert findings
