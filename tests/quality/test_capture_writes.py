"""What warm-up and capture write is judged like what a replay writes."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.kernel_models.flash_attention import flash_attn_varlen_func
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.model import BuiltinModel


class FirstForwardWritesSlotSeven(BuiltinModel):
    """The very first forward, a warm-up, stores its keys in a slot that requests may get."""

    warm = True

    def store(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.warm:
            self.warm = False
            slots = torch.full_like(slots, 7)
        super().store(slots, k, v)


class FirstForwardMisusesAKernel(BuiltinModel):
    """The very first forward, a warm-up, hands a kernel offsets that decrease."""

    warm = True

    def store(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.warm:
            self.warm = False
            keys, offsets = torch.ones(1, 1, 8), torch.tensor([0, -1], dtype=torch.int32)
            flash_attn_varlen_func(keys, keys, keys, offsets, offsets.abs(), 1, 1)
        super().store(slots, k, v)


CASE = Case(
    schema_version=1,
    config=EngineConfig(capture_bs=(1,), max_context_len=4),
    steps=(ReplayStep(rows=(BatchRow(request=0),)),),
)


def test_a_slot_written_before_the_first_replay_is_a_finding() -> None:
    faulty = BuiltinTarget(replace(Components(), model=FirstForwardWritesSlotSeven))
    findings = Execution(faulty).run_case(CASE).findings
    assert [(one.oracle, one.step, one.detail["indices"]) for one in findings] == [
        ("footprint", -1, [7]),
        ("footprint", -1, [7]),
    ]


def test_a_kernel_that_was_misused_before_the_first_replay_is_a_finding_and_the_steps_run() -> None:
    faulty = BuiltinTarget(replace(Components(), model=FirstForwardMisusesAKernel))
    verdict = Execution(faulty).run_case(CASE)
    assert [(one.oracle, one.step, one.buffer) for one in verdict.findings] == [
        ("contract", -1, "cu_seqlens_q")
    ]
    assert verdict.steps == 1


def test_the_healthy_engine_captures_on_the_reserved_slot_alone() -> None:
    assert not Execution(BuiltinTarget()).run_case(CASE).findings
