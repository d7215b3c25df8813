"""The emulated device and the recorder give the same verdicts, on planted faults and without.

This holds `DeviceGraphs` against the recorder without a device: the order of guard, capture, poison
and replay. What a real device does otherwise than the emulated one, it cannot show.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzzgraph.faults import FAULTS, open_fault
from fuzzgraph.targets import open_target
from tests.quality.agreement import both, breakable_runner_mended, on_drawn_cases
from tests.quality.test_planted_faults import stored

DIFFERENCES: dict[str, str] = {}
"""Fault -> why a device graph finds something else than the recorder. There is none while the
breakable runner is mended."""

BREAKABLE = "tokenspeed-pr-741-break-leaves-tail"
"""The planted fault that needs a breakable runner."""


@pytest.fixture
def mended() -> Iterator[None]:
    with breakable_runner_mended():
        yield


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_gives_the_same_findings(name: str) -> None:
    recorder, emulated = both(lambda: open_fault(name), stored(name))
    assert recorder[0]
    assert (emulated == recorder) == (name not in DIFFERENCES)


def test_the_breakable_runner_is_still_to_be_mended() -> None:
    """Where this fails, drop it, and `breakable_runner_mended`."""
    recorder, emulated = both(lambda: open_target("builtin"), stored(BREAKABLE))
    assert recorder[0] == frozenset()
    assert {key[0] for key in emulated[0]} == {"survival"}


@pytest.mark.slow
@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize(("target", "examples"), [("builtin", 60), ("builtin-triton", 15)])
def test_healthy_cases_give_no_finding_on_either(target: str, examples: int) -> None:
    agreement = on_drawn_cases(lambda: open_target(target), 7, examples)
    assert agreement.cases == examples
    assert agreement.different == []
    assert agreement.accused == 0
