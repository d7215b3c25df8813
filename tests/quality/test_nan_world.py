"""The NaN world sees a masked load that ends in 0 * NaN, which finite poison cannot show."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.model import BuiltinModel


class WeighsAStrangerWithZero(BuiltinModel):
    """Adds the last slot's value with weight 0, as a tile without a load mask does."""

    def attention(self, q: torch.Tensor, out: torch.Tensor, batch: AttentionBatch) -> None:
        super().attention(q, out, batch)
        out.add_(self.kv.values()[-1].float().sum() * 0.0)


CASE = Case(
    schema_version=1,
    config=EngineConfig(capture_bs=(1,), max_context_len=4),
    steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=2),)),),
)
FAULTY = BuiltinTarget(replace(Components(), model=WeighsAStrangerWithZero))


def test_a_zero_weight_on_a_strangers_value_is_found_with_its_own_symptom() -> None:
    findings = Execution(FAULTY, Setup(strict_nan=True)).run_case(CASE).findings
    assert findings
    assert {(one.oracle, one.symptom) for one in findings} == {("noninterference", "nan_mismatch")}
    assert "slots the batch does not own" in findings[0].message


def test_without_the_nan_world_it_does_not_show() -> None:
    assert not Execution(FAULTY).run_case(CASE).findings


def test_the_healthy_engine_is_silent_in_the_nan_world() -> None:
    assert not Execution(BuiltinTarget(), Setup(strict_nan=True)).run_case(CASE).findings
