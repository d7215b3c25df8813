"""A model's head behind attention: weights that tell tokens and columns apart, and what ranks
share of it."""

from __future__ import annotations

import msgspec
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.language_head import (
    HIDDEN,
    LOGITS,
    PADDED_VOCABULARY,
    VOCABULARY,
    head_outputs,
    head_weight,
    hidden_of_ranks,
    logits_coarseness,
    padded_head_weight,
    rank_logits,
)
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.world import Batch

CONFIG = EngineConfig(
    num_q_heads=2, head_dim=8, v_head_dim=8, dp_size=4, dp_rank=2, gathered_logits=True
)


def batch_of(config: EngineConfig) -> Batch:
    """One step of two rows beside ranks of 3, 0 and 1."""
    rows = tuple(BatchRow(request=name, seq_len=3 + name) for name in range(2))
    step = ReplayStep(mode="decode", rows=rows, other_ranks=(3, 0, 1))
    case = validate(Case(schema_version=1, config=config, steps=(step,)))
    return plan(case)[0]


@pytest.mark.parametrize("columns", [8, 16, 64])
def test_each_token_has_weights_of_its_own(columns: int) -> None:
    rows = {tuple(row) for row in head_weight(columns).tolist()}
    assert len(rows) > 0.9 * VOCABULARY


@pytest.mark.parametrize("columns", [1, 8, 64])
def test_weights_are_exact_in_half_precision_and_small(columns: int) -> None:
    weight = head_weight(columns)
    assert torch.equal(weight.half().float(), weight)
    assert weight.abs().sum(1).max() <= 2


def test_rows_behind_the_vocabulary_are_zero() -> None:
    padded = padded_head_weight(16)
    assert padded.shape == (PADDED_VOCABULARY, 16)
    assert not padded[VOCABULARY:].any()


def test_a_cap_bounds_logits_and_keeps_their_signs() -> None:
    attended = torch.linspace(-4, 4, 32, dtype=torch.float64).view(2, 2, 8)
    plain = head_outputs(attended, CONFIG, torch.float64)[LOGITS]
    capped_config = msgspec.structs.replace(CONFIG, final_logit_cap=2)
    capped = head_outputs(attended, capped_config, torch.float64)[LOGITS]
    assert capped.abs().max() < 2 < plain.abs().max()
    assert torch.equal(capped.sign(), plain.sign())


def test_half_precision_stays_within_the_coarseness() -> None:
    attended = torch.linspace(-4, 4, 32, dtype=torch.float64).view(2, 2, 8)
    truth = head_outputs(attended, CONFIG, torch.float64)[LOGITS]
    rounded = head_outputs(attended.half(), CONFIG, torch.float16)[LOGITS]
    assert (rounded.double() - truth).abs().max() <= logits_coarseness(torch.float16)


def test_several_layers_stand_side_by_side() -> None:
    attended = torch.ones(3, 2, 8, dtype=torch.float64)
    config = msgspec.structs.replace(
        CONFIG, modes=("target_verify",), returned_hidden="aux", dp_size=1, dp_rank=0
    )
    shown = head_outputs(attended, config, torch.float64)[HIDDEN]
    assert torch.equal(shown, torch.cat((-attended.flatten(1), attended.flatten(1)), 1))


def test_parts_of_all_ranks_make_the_logits_of_a_token() -> None:
    batch = batch_of(CONFIG)
    own = torch.linspace(-2, 2, 32, dtype=torch.float64).view(2, 2, 8)
    parts = []
    for rank in range(4):
        weight = padded_head_weight(16).double()[16 * rank :][:16]
        parts.append(own.flatten(1) @ weight.T)
    mine = rank_logits(own, batch, CONFIG, torch.float64)
    assert mine.shape == (3 + 0 + 2 + 1, 16)
    assert torch.equal(mine[3:5], parts[2])
    whole = head_outputs(own, CONFIG, torch.float64)[LOGITS]
    assert torch.equal(torch.cat(parts, 1)[:, :VOCABULARY], whole)


def test_hidden_states_of_other_ranks_differ_by_rank() -> None:
    first, idle, own, last = hidden_of_ranks(batch_of(CONFIG), CONFIG)
    assert [len(each) for each in (first, idle, own, last)] == [3, 0, 0, 1]
    assert not torch.equal(first[0], last[0])


def test_logits_are_worked_out_where_they_are_promised() -> None:
    batch = batch_of(CONFIG)
    assert LOGITS in expected(batch, CONFIG, (LOGITS,)).outputs
    assert LOGITS not in expected(batch, CONFIG, ("attention",)).outputs
