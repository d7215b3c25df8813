"""Tokens, weights and KV are the same everywhere and exact in every dtype."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import (
    INDEXED_CONTEXT,
    STATE_SUMS,
    Content,
    content_for,
    next_token,
    token_ids,
)
from fuzzgraph.layout import plan
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB


def some_tokens(count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    positions = np.arange(count) % 16
    return torch.from_numpy(token_ids(3, np.asarray(1), positions)), torch.from_numpy(positions)


def test_the_hash_is_splitmix64() -> None:
    # First outputs of the published generator from state 0: its counter runs from one step on.
    first = hash_counters(0, np.arange(1, 4, dtype=np.uint64))

    assert [hex(int(bits)) for bits in first] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_tokens_of_one_place_are_the_same_in_any_company() -> None:
    together = token_ids(7, np.arange(4)[:, None], np.arange(9))
    alone = token_ids(7, np.asarray([2]), np.asarray([5]))

    assert together[2, 5] == alone[0]
    assert together.min() >= 0
    assert together.max() < VOCAB


@pytest.mark.parametrize("change", ["seed", "request", "position"])
def test_tokens_differ_with_seed_request_and_position(change: str) -> None:
    at = {"seed": 0, "request": 0, "position": 0} | {change: 1}
    positions = np.arange(64)
    other = token_ids(at["seed"], np.asarray(at["request"]), positions + at["position"])

    same = (other == token_ids(0, np.asarray(0), positions)).mean()

    assert same < 0.25


def test_every_token_id_occurs() -> None:
    assert len(set(token_ids(0, np.asarray(0), np.arange(1000)).tolist())) == VOCAB


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_of_weights_are_exact_in_every_dtype(dtype: str) -> None:
    shape = {"num_q_heads": 2, "head_dim": 8, "v_head_dim": 6}
    config = EngineConfig(dtype=dtype, **shape)  # type: ignore[arg-type]
    tokens, positions = some_tokens()
    got = content_for(config).embed_qkv(tokens, positions, tokens)
    exact = content_for(EngineConfig(**shape)).embed_qkv(tokens, positions, tokens)  # type: ignore[arg-type]

    for part, truth in zip(got, exact, strict=True):
        assert torch.equal(part.float(), truth)
        assert torch.equal((truth * 16).round(), truth * 16)


def test_logits_stay_moderate_and_values_are_of_order_one() -> None:
    content = content_for(EngineConfig(num_q_heads=4, head_dim=64, v_head_dim=64))
    q, k, v = content.embed_qkv(*some_tokens())
    logits = torch.einsum("thd,sd->hts", q, k[:, 0]) / 8

    assert float(logits.abs().max()) < 6
    assert 0.5 < float(v.std()) < 3


def test_kv_of_history_is_what_the_model_would_have_written() -> None:
    content = content_for(EngineConfig(num_kv_heads=2, num_q_heads=2, head_dim=3, v_head_dim=5))
    tokens, positions = some_tokens()
    _, k, v = content.embed_qkv(tokens, positions)

    planes = content.kv_planes(tokens, positions)

    assert torch.equal(planes[0], k)
    assert torch.equal(planes[1], v)
    assert [plane.shape[1:] for plane in planes] == [torch.Size(s) for s in content.plane_shapes]


def test_a_long_context_gives_the_same_kv_without_a_table() -> None:
    long = content_for(EngineConfig(max_context_len=1 << 15, head_dim=4, v_head_dim=4))
    short = content_for(EngineConfig(max_context_len=16, head_dim=4, v_head_dim=4))
    assert not long.has_table
    assert short.has_table
    tokens, positions = some_tokens()

    for one, other in zip(
        long.kv_planes(tokens, positions), short.kv_planes(tokens, positions), strict=True
    ):
        assert torch.equal(one, other)


def test_latent_rows_are_one_plane_whose_first_columns_are_the_values() -> None:
    content = content_for(EngineConfig(attention="mla", head_dim=6, v_head_dim=4))
    tokens, positions = some_tokens()
    _, k, v = content.embed_qkv(tokens, positions)

    (latent,) = content.kv_planes(tokens, positions)

    assert torch.equal(latent, k)
    assert torch.equal(latent[..., :4], v)


@pytest.mark.parametrize("attention", ["mha", "mla"])
def test_fp8_holds_queries_keys_and_values_as_they_are(attention: Literal["mha", "mla"]) -> None:
    """So no engine differs from another by when it rounds them."""
    config = EngineConfig(
        kv_dtype="float8_e4m3fn", head_dim=8, v_head_dim=8 if attention == "mha" else 4,
        attention=attention,
    )  # fmt: skip
    content = content_for(config)
    tokens, positions = some_tokens()
    q, k, v = content.embed_qkv(tokens, positions, tokens)

    stored = content.kv_planes(tokens, positions)

    assert torch.equal(q.to(torch.float8_e4m3fn).float(), q)
    for plane, scale, truth in zip(
        stored, (content.k_scale, content.v_scale), (k, v), strict=False
    ):
        assert plane.dtype == torch.float8_e4m3fn
        assert torch.equal(plane.float() * scale, truth)


def fp4_content() -> Content:
    return content_for(EngineConfig(kv_dtype="nvfp4", head_dim=64, v_head_dim=64))


def test_fp4_holds_keys_and_values_as_they_are_and_fp8_queries() -> None:
    content = fp4_content()
    tokens, positions = some_tokens()
    q, *truth = content.embed_qkv(tokens, positions, tokens)

    stored = content.numbers(content.kv_planes(tokens, positions), torch.float64)

    assert torch.equal(q.to(torch.float8_e4m3fn).float(), q)
    for got, want in zip(stored, truth, strict=True):
        assert torch.equal(got, want.double())


def test_tokens_have_scales_of_their_own_so_that_another_ones_show() -> None:
    tokens = torch.arange(VOCAB)
    _, _, *scales = fp4_content().kv_planes(tokens, torch.zeros_like(tokens))

    for plane in scales:
        assert plane.dtype == torch.uint8
        assert len(torch.unique(plane.flatten(1), dim=0)) > VOCAB // 3


def test_key_and_value_scales_differ_so_that_a_swap_shows() -> None:
    content = content_for(EngineConfig(kv_dtype="float8_e4m3fn"))

    assert content.k_scale != content.v_scale
    assert {content.k_scale, content.v_scale}.isdisjoint({1.0})


def test_configs_of_one_shape_share_their_content() -> None:
    one = content_for(EngineConfig(page_size=1, capture_bs=(1,)))
    other = content_for(EngineConfig(page_size=16, capture_bs=(4,)))

    assert one is other
    assert one is not content_for(EngineConfig(head_dim=8))


def test_a_token_is_added_to_half_of_a_recurrent_state_and_takes_the_place_of_the_rest() -> None:
    config = EngineConfig(recurrent_state=True)
    rows = (BatchRow(request=0, seq_len=5), BatchRow(request=1, seq_len=1))
    (batch,) = plan(Case(schema_version=1, config=config, steps=(ReplayStep(rows=rows),)))
    content = content_for(config)

    before, after = content.state_rows(batch), content.state_rows(batch, after=True)

    added = content.weights["state_in"][torch.from_numpy(batch.input_ids)]
    assert torch.equal(after[:, :STATE_SUMS], (before + added)[:, :STATE_SUMS])
    assert torch.equal(after[:, STATE_SUMS:], added[:, STATE_SUMS:])
    assert before[1].eq(0).all()
    assert before[0].ne(0).any()


def test_next_token_works_on_tensors_and_arrays_alike() -> None:
    tokens = np.arange(VOCAB)

    of_array = next_token(tokens, 2, 1)
    of_tensor = next_token(torch.from_numpy(tokens), 2, 1)

    assert of_array.tolist() == of_tensor.tolist()
    assert sorted(of_array.tolist()) == tokens.tolist()


def test_built_tables_do_not_lie_in_the_memory_of_the_session_that_opens_next() -> None:
    from fuzzgraph.memory import GuardedMemory

    config = EngineConfig(max_context_len=23, max_encoder_len=2)
    memory = GuardedMemory()
    content = content_for(config).build()
    with memory.intercept("engine"):
        tables = [*content.weights.values(), *content.plane_table, *content.encoder_table]
    assert all(memory.region_of(table) is None for table in tables)


@pytest.mark.parametrize("context", [64, 512, 1200])
def test_no_two_keys_of_an_indexers_query_have_one_score(context: int) -> None:
    content = content_for(EngineConfig(max_context_len=context))
    by_token, by_place = content.key_scores
    assert (by_token % 28 == 0).all() and (by_token > 0).any() and (by_token == 0).any()
    # a token adds 28 or nothing, a place less than that
    assert (by_place >= 0).all() and by_place.max() < 28
    assert all(len(np.unique(row)) == len(row) >= context for row in by_place)


def test_what_is_drafted_past_the_longest_indexed_context_has_a_key() -> None:
    content = content_for(
        EngineConfig(max_context_len=INDEXED_CONTEXT, draft_tokens=16, spec_steps=16)
    )
    assert len(content.index_keys[1]) >= content.max_positions


def test_weights_of_an_indexers_heads_differ_between_tokens_and_between_places() -> None:
    shorter, longer = (content_for(EngineConfig(max_context_len=n)) for n in (64, 1200))
    for halves in zip(shorter.index_weights, longer.index_weights, strict=True):
        assert all({*half.tolist()} == {-1.0, 1.0} for half in halves)
        assert (halves[0] == halves[1][: len(halves[0])]).all()


def test_an_indexers_queries_and_keys_are_exact_in_fp8() -> None:
    content = content_for(EngineConfig(max_context_len=1200))
    for halves in (content.index_queries, content.index_keys):
        largest = max(half.max() for half in halves)
        for half in halves:
            scaled = torch.from_numpy(half / largest * 448).float()
            assert torch.equal(scaled.to(torch.float8_e4m3fn).float(), scaled)
    for row in content.index_queries[0]:
        assert row.max() == content.index_queries[0].max() > content.index_queries[1].max()
