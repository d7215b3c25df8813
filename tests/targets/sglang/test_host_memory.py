"""Kernels of released sglang get no memory of the host, which they are refused on a GPU."""

from __future__ import annotations

import pytest

from tests.targets.sglang.released import Workers, decode_case
from tests.targets.sglang.test_draft_layers import TRITON, full
from tests.targets.sglang.test_stepwise_drafts import drafts

_MUTANTS = "tests.targets.sglang.host_memory_mutants:"
pytestmark = [pytest.mark.sglang, pytest.mark.slow]


def test_a_kernel_that_a_preparation_hands_the_hosts_lengths_is_told(workers: Workers) -> None:
    found = workers.findings("0.5.23", drafts(), f"{_MUTANTS}prepared_by_the_hosts_lengths")
    told = {each.buffer for each in found if each.detail.get("rule") == "side"}
    assert "fused_metadata_copy.lens_src" in told


def test_a_capture_that_launches_on_the_hosts_lengths_is_refused(workers: Workers) -> None:
    case = full(TRITON)
    (found,) = workers.findings("0.5.23", case, f"{_MUTANTS}captured_with_the_hosts_lengths")
    assert (found.oracle, found.stage) == ("survival", "capture")
    assert "argument page_kernel_lens_ptr is memory of the host" in found.message


def test_a_step_that_launches_on_the_mirror_that_it_was_handed_is_refused(workers: Workers) -> None:
    case = decode_case((3, 5))
    (found,) = workers.findings("0.5.23", case, f"{_MUTANTS}eager_by_the_hosts_lengths")
    assert (found.oracle, found.stage) == ("survival", "eager")
    assert "is memory of the host" in found.message
