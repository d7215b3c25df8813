"""Findings name the run that is wrong, and no truth comes from the engine that is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, load_case
from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.speculation import DraftRunner
from fuzzgraph.world import Batch

CASES = Path(__file__).resolve().parents[2] / "corpus" / "faults"


def case(*rows: BatchRow, mode: str = "decode", **config: object) -> Case:
    return Case(
        schema_version=1,
        config=EngineConfig(**config),  # type: ignore[arg-type]
        steps=(ReplayStep(mode=mode, rows=rows),),  # type: ignore[arg-type]
    )


def findings(target: BuiltinTarget, one: Case) -> tuple[Finding, ...]:
    return Execution(target, cache_size=0).run_case(one).findings


class EagerForgetsPositions(GraphRunner):
    def prepare_eager(self, batch: Batch) -> None:
        super().prepare_eager(batch)
        self.current().static.registry.buffers["positions"].zero_()


def test_an_eager_run_that_is_wrong_is_named_and_the_replay_is_not() -> None:
    one = case(BatchRow(request=0, seq_len=4))
    found = findings(BuiltinTarget(replace(Components(), decode=EagerForgetsPositions)), one)
    assert {(f.oracle, f.stage) for f in found} == {("eager", "eager")}
    assert "the eager run's attention" in found[0].message
    assert findings(BuiltinTarget(), one) == ()


@pytest.mark.parametrize(
    "name",
    ["rtp-llm-pr-378-plan-not-re-run", "vllm-ascend-pr-10895-last-page-length-stale"],
)
def test_a_plan_that_is_not_made_again_is_history_and_no_read_of_other_memory(name: str) -> None:
    found = findings(open_fault(name), load_case(CASES / f"{name}.json"))
    assert "history" in {finding.clause for finding in found}
    assert "reads" not in {finding.clause for finding in found}


def test_a_count_at_capture_is_not_judged_by_the_code_that_wrote_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = (BatchRow(request=0, seq_len=3), BatchRow(request=1, seq_len=5))
    one = case(*rows, capture_bs=(2,), attn_tp_size=2)
    assert findings(BuiltinTarget(), one) == ()
    monkeypatch.setattr(LocalTokens, "at_capture", lambda self, padded: padded)
    (finding,) = findings(BuiltinTarget(), one)
    assert (finding.buffer, finding.stage) == ("num_token_non_padded", "capture")


class LastDraftUnstored(DraftRunner):
    """What the last step of a draft stores is lost again; nothing has read it since."""

    def replay(self, batch: Batch) -> None:
        super().replay(batch)
        for plane in self.context.tables.kv.planes:
            plane[torch.from_numpy(batch.slot_mapping[-1:])] = 0.0


def test_the_kv_of_a_draft_is_what_the_model_defines_for_the_tokens_it_predicts() -> None:
    one = case(
        BatchRow(request=0, seq_len=4, new_tokens=0), mode="draft", modes=("draft",), spec_steps=2
    )
    found = findings(BuiltinTarget(replace(Components(), draft=LastDraftUnstored)), one)
    assert {finding.oracle for finding in found} == {"reference"}
    assert {finding.buffer for finding in found} == {"kv_pool.k", "kv_pool.v"}
    assert findings(BuiltinTarget(), one) == ()
