"""Whole cases on a device: silent on the healthy engine, loud on planted faults."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.case import Case
from fuzzgraph.run.spec import Setup
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import open_target
from fuzzgraph.worker import open_client
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
    capabilities = open_target(kernels).capabilities
    found: list[str] = []
    with open_client(Setup(target=kernels, graphs="device", device="cuda")) as client:

        def run(case: Case) -> None:
            found.extend(finding.message for finding in client.run_case(case).findings)

        draw(cases(capabilities, DEFAULT), 7, 60, run)
        assert client.restarts == client.deaths == 0
    assert not found


@pytest.mark.parametrize("name", _FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    """In a process of its own: some faults make a kernel fail, which ends all of its process."""
    with open_client(Setup(fault=name, graphs="device", device="cuda")) as client:
        assert client.run_case(stored(name)).findings
