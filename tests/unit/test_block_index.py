"""Queries and keys of an indexer of groups: exact in bfloat16, and no two scores equal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph import block_index
from fuzzgraph.block_index import GROUP, HEADS, WIDTH
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.layout import plan
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.world import VOCAB

_RANDOM = np.random.default_rng(7)
TOKENS = np.arange(VOCAB)
POSITIONS = _RANDOM.integers(0, 2048, VOCAB)
KEY_TOKENS = _RANDOM.integers(0, VOCAB, (VOCAB, 512, GROUP))
FIRSTS = np.broadcast_to(np.arange(512) * GROUP, (VOCAB, 512))


def as_bfloat16(rows: np.ndarray) -> np.ndarray:
    return torch.from_numpy(rows).bfloat16().double().numpy()


def normed_queries() -> np.ndarray:
    raw = block_index.raw_rows(TOKENS, TOKENS % GROUP)[:, : HEADS * WIDTH]
    heads = raw.reshape(VOCAB, HEADS, WIDTH)
    normed = heads / (heads**2).mean(-1, keepdims=True) ** 0.5 * block_index.query_gain()
    each = [block_index.rotated(as_bfloat16(normed[:, head]), POSITIONS) for head in range(HEADS)]
    return np.stack(each, axis=1)


def normed_keys() -> np.ndarray:
    pairs = zip(KEY_TOKENS, FIRSTS, strict=True)
    return np.stack([as_bfloat16(block_index.normed_keys(*pair)) for pair in pairs])


@pytest.mark.parametrize("place", range(GROUP))
def test_what_an_indexer_projects_is_exact_in_bfloat16(place: int) -> None:
    raw = block_index.raw_rows(TOKENS, np.full_like(TOKENS, place))
    assert (as_bfloat16(raw) == raw).all()


def test_a_score_is_the_sum_of_both_heads_products_over_the_root_of_their_width() -> None:
    products = np.einsum("thd,tgd->thg", normed_queries(), normed_keys())
    scores = np.maximum(products, 0).sum(1) / WIDTH**0.5
    found = block_index.block_scores(TOKENS, POSITIONS, KEY_TOKENS, FIRSTS)
    assert (scores == found).all()


def test_scores_are_exact_in_float32_and_no_two_of_a_query_are_equal() -> None:
    found = block_index.block_scores(TOKENS, POSITIONS, KEY_TOKENS, FIRSTS)
    assert (found.astype(np.float32) == found).all()
    assert all(len(np.unique(row)) == len(row) for row in found)


def test_another_token_in_a_group_and_another_first_position_make_another_score() -> None:
    scores = block_index.block_scores(TOKENS, POSITIONS, KEY_TOKENS, FIRSTS)
    others = KEY_TOKENS.copy()
    others[..., 2] = (others[..., 2] + 1) % VOCAB
    changed = block_index.block_scores(TOKENS, POSITIONS, others, FIRSTS) != scores
    assert changed.mean() > 0.2
    moved = block_index.block_scores(TOKENS, POSITIONS, KEY_TOKENS, FIRSTS + 1) != scores
    assert moved.mean() > 0.4


def seen(length: int, index_topk: int) -> np.ndarray:
    """Which keys the newest token of a row sees."""
    config = EngineConfig(max_context_len=64, index_topk=index_topk, index_group=4)
    step = ReplayStep(rows=(BatchRow(request=0, seq_len=length),))
    (batch,) = plan(Case(schema_version=1, config=config, steps=(step,)))
    visible: np.ndarray = queries_of(batch, config).visible[0]
    return visible


@pytest.mark.parametrize("length", [5, 8, 31, 32, 33, 62])
@pytest.mark.parametrize("index_topk", [1, 3])
def test_a_query_sees_whole_groups_and_all_tokens_behind_the_last_one(
    length: int, index_topk: int
) -> None:
    visible = seen(length, index_topk)
    whole = length // GROUP
    groups = visible[: whole * GROUP].reshape(whole, GROUP)
    assert visible[whole * GROUP :].all()
    assert (groups.all(1) == groups.any(1)).all()
    assert groups.all(1).sum() == min(index_topk, whole)
