"""What a window shows of a row, counted from the batch alone."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, group_configs
from fuzzgraph.layout import plan
from fuzzgraph.observation import Field
from fuzzgraph.reference import live_truth
from fuzzgraph.targets.offline import fields


def _listed(field: Field, *lens: int) -> list[int]:
    """Steps of the offsets for a verify of two drafts behind a window of four tokens."""
    rows = tuple(BatchRow(request=row, seq_len=n, new_tokens=2) for row, n in enumerate(lens))
    config = EngineConfig(modes=("target_verify",), swa_window=3, max_context_len=32)
    step = ReplayStep(mode="target_verify", rows=rows)
    (batch,) = plan(Case(schema_version=1, config=config, steps=(step,)))
    found = live_truth(field, batch.more_groups[0], group_configs(config)[1])
    assert found is not None
    return [int(each) for each in found]


def test_a_verify_lists_the_window_of_its_first_draft_and_all_drafts() -> None:
    assert _listed(fields.offsets("kv_indptr", repeats="windowed_lens"), 9, 5, 2) == [5, 5, 2]


def test_the_past_of_a_window_leaves_the_drafts_out() -> None:
    assert _listed(fields.offsets("kv_indptr", repeats="windowed_past"), 9, 5, 2) == [3, 3, 0]


def test_of_chunks_the_last_one_of_each_row_counts() -> None:
    rows = tuple(BatchRow(request=row, seq_len=n) for row, n in enumerate((1, 3, 4, 8, 9)))
    config = EngineConfig(attention_chunk_size=4, capture_bs=(8,))
    (batch,) = plan(Case(schema_version=1, config=config, steps=(ReplayStep(rows=rows),)))
    field = fields.lengths("seqused_k", fill=1, repeats="chunk_lens")
    found = live_truth(field, batch, config)
    assert found is not None and found.tolist() == [1, 3, 4, 4, 1]


def _of_exchange(step: ReplayStep, **settings: Any) -> list[int]:
    """Whether any rank computes prompts, and whether experts exchange at once."""
    config = EngineConfig(dp_size=2, **settings)
    (batch,) = plan(Case(schema_version=1, config=config, steps=(step,)))
    names = "computes_prompts", "exchanges_at_once"
    found = [live_truth(fields.value("flag", repeats=name), batch, config) for name in names]
    return [int(each[0]) for each in found if each is not None]


def test_experts_exchange_at_once_unless_a_rank_computes_prompts() -> None:
    row = BatchRow(request=0, seq_len=3)
    alone = ReplayStep(rows=(row,), other_ranks=(2,))
    beside = ReplayStep(rows=(row,), other_ranks=(2,), others_prefill=True)
    assert _of_exchange(alone) == [0, 1]
    assert _of_exchange(beside) == [1, 0]


def test_a_draft_extend_counts_as_prompts_for_an_exchange() -> None:
    row = BatchRow(request=0, seq_len=5, new_tokens=2)
    step = ReplayStep(mode="draft_extend", rows=(row,), other_ranks=(2,))
    assert _of_exchange(step, modes=("draft_extend",), draft_tokens=2) == [0, 0]
