"""How often a step makes the host wait for a device, whatever the engine shows and hands over."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fuzzgraph.case import Case
from fuzzgraph.execution import Execution
from fuzzgraph.memory.side_requests import SESSION_CPU
from fuzzgraph.run.spec import Setup
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.targets import open_target
from tests.device_waits import DeviceWaits
from tests.two_memories import TwoMemories

MOST = 12
"""Waits of a step: three runs bring over what they showed, and one what the capture saw; red zones,
pools, states behind the eager run, the graph's outputs, and results that are kept (twice) are each
asked about once; the state and what must be left of it are each copied there once."""


def _drawn(count: int) -> list[Case]:
    found: list[Case] = []
    draw(cases(open_target("builtin").capabilities, DEFAULT.at(3)), 3, count, found.append)
    return found


def _waits(case: Case) -> tuple[int, Counter[str]]:
    """Steps of a case and what made the host wait in them, once its session is open."""
    target = open_target("builtin")
    with TwoMemories(raises=True).watching() as memories:
        execution = Execution(target, Setup(target="builtin", graphs="emulated"))
        execution.run_case(case)
        with DeviceWaits(memories).counting() as seen:
            verdict = execution.run_case(case)
        execution.close()
    assert not verdict.findings
    return verdict.steps, seen


@pytest.mark.parametrize("case", _drawn(8))
def test_a_step_waits_for_the_device_a_fixed_number_of_times(case: Case) -> None:
    steps, seen = _waits(case)
    assert 0 < sum(seen.values()) <= MOST * steps, seen


def test_what_reads_a_device_or_copies_to_it_is_counted() -> None:
    with TwoMemories().watching() as memories, DeviceWaits(memories).counting() as seen:
        device, host = torch.arange(3, device=SESSION_CPU), torch.arange(3)
        device.tolist()
        int(device[0])
        torch.equal(device, device)
        device[device > 1]
        host.to(SESSION_CPU)
        device.cpu()
        # None of these.
        host.tolist()
        device.to(torch.int32)
        device[1:] + 1
    assert seen == Counter(["tolist", "__int__", "equal", "__getitem__", "to", "cpu"])
