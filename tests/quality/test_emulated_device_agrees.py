"""The emulated device and the recorder give the same verdicts, on planted faults and without.

This holds `DeviceGraphs` against the recorder without a device: the order of guard, capture, poison
and replay. What a real device does otherwise than the emulated one, it cannot show.
"""

from __future__ import annotations

import pytest

from fuzzgraph.faults import FAULTS, open_fault, setup_of
from fuzzgraph.targets import open_target
from tests.quality.agreement import both, on_drawn_cases
from tests.quality.test_planted_faults import stored

_USES = "only of a recorded graph is known which buffers it uses"
DIFFERENCES = {
    "vllm-pr-43909-weight-released-after-capture": _USES,
    "vllm-pr-55341-workspace-grows-after-capture": _USES,
    "sglang-pr-25729-upgrade-beside-attention": "a device's graph orders its streams by itself",
}
"""Fault -> why a device graph finds something else than the recorder."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_gives_the_same_findings(name: str) -> None:
    recorder, emulated = both(lambda: open_fault(name), stored(name), setup_of(FAULTS[name]))
    assert recorder[0]
    assert (emulated == recorder) == (name not in DIFFERENCES)


@pytest.mark.parametrize(("target", "examples"), [("builtin", 60), ("builtin-triton", 15)])
def test_healthy_cases_give_no_finding_on_either(target: str, examples: int) -> None:
    agreement = on_drawn_cases(lambda: open_target(target), 7, examples)
    assert agreement.cases == examples
    assert agreement.different == []
    assert agreement.accused == 0
