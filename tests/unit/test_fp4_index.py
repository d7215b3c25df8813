"""Queries and keys of an indexer that scores in FP4: exact there, and no two scores equal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph import fp4_index
from fuzzgraph.kernel_models.mxfp4 import fp4_numbers, packed
from fuzzgraph.world import VOCAB

TOKENS = np.arange(40) % VOCAB
POSITIONS = np.arange(40) * 211


def query_rows() -> np.ndarray:
    return fp4_index.query_heads(TOKENS, POSITIONS)


def key_rows() -> np.ndarray:
    by_token = fp4_index.key_tokens()[TOKENS]
    return np.hstack((by_token, fp4_index.key_places(POSITIONS)))


@pytest.mark.parametrize("rows", [query_rows(), key_rows()], ids=["queries", "keys"])
def test_what_an_indexer_multiplies_is_exact_in_fp4(rows: np.ndarray) -> None:
    assert (fp4_numbers(*packed(rows)) == rows).all()


def test_a_score_is_the_weighted_sum_of_its_heads_products() -> None:
    products = np.einsum("thd,kd->tkh", query_rows(), key_rows())
    each = np.broadcast_to(TOKENS, (40, 40)), np.broadcast_to(POSITIONS, (40, 40))
    scores = fp4_index.scores(TOKENS, POSITIONS, *each)
    assert (products @ fp4_index.head_weights() == scores).all()


def test_scores_are_exact_in_float32_and_no_two_of_a_query_are_equal() -> None:
    keys = np.arange(8192)[None]
    scores = fp4_index.scores(np.array([3]), np.array([77]), keys % VOCAB, keys)[0]
    assert (scores.astype(np.float32) == scores).all()
    assert len(np.unique(scores)) == 8192


def test_queries_of_other_positions_have_other_favourites() -> None:
    keys = np.arange(512)[None].repeat(8, 0)
    scores = fp4_index.scores(np.zeros(8, int), np.arange(8), np.zeros_like(keys), keys)
    assert len(set(scores.argmax(1).tolist())) > 4


# ---- a layer that selects among candidates


def test_what_a_layer_of_candidates_multiplies_is_exact_in_fp4_and_its_weights_in_bfloat16() -> (
    None
):
    rows = fp4_index.candidate_heads(TOKENS, POSITIONS)
    assert (fp4_numbers(*packed(rows)) == rows).all()
    weights = torch.from_numpy(fp4_index.candidate_weights())
    assert (weights.to(torch.bfloat16).double() == weights).all()


def test_a_score_among_candidates_is_the_weighted_sum_of_its_heads_products() -> None:
    products = np.einsum(
        "thd,kd->tkh", fp4_index.candidate_heads(TOKENS, POSITIONS), key_rows()
    ).clip(0)
    each = np.broadcast_to(TOKENS, (40, 40)), np.broadcast_to(POSITIONS, (40, 40))
    scores = fp4_index.candidate_scores(TOKENS, POSITIONS, *each)
    assert (products @ fp4_index.candidate_weights() == scores).all()


def test_scores_among_candidates_are_exact_in_bfloat16_and_no_two_of_a_query_are_equal() -> None:
    keys = np.arange(fp4_index.CANDIDATE_POSITIONS)[None]
    asked = np.array([3]), np.array([77])
    scores = torch.from_numpy(fp4_index.candidate_scores(*asked, keys * 5 % VOCAB, keys)[0])
    assert (scores.to(torch.bfloat16).double() == scores).all()
    assert len(scores.unique()) == fp4_index.CANDIDATE_POSITIONS
