"""The reference against attention computed one query and one key at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph import fp4_index
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.content import STATE_SUMS, content_for, next_token
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected, second_opinion, yardstick
from fuzzgraph.reference.shard import padded_tokens
from fuzzgraph.world import Batch


def batch_of(mode: Any, *rows: tuple[int, ...], mrope: bool = False, **config: Any) -> Any:
    """(batch, config) of one step; a row is (seq_len, new_tokens, encoder_len)."""
    if mode == "prefill":
        config.setdefault("capture_tokens", (8, 16))
    made = EngineConfig(modes=(mode,), **config)
    step = ReplayStep(
        mode=mode,
        mrope=mrope,
        rows=tuple(
            BatchRow(request=i, seq_len=row[0], new_tokens=row[1], encoder_len=(*row, 0)[2])
            for i, row in enumerate(rows)
        ),
    )
    case = Case(schema_version=1, config=made, steps=(step,), seed=11, page_order="shuffled")
    return plan(validate(case))[0], made


Key = tuple[int, int]
"""(token, position)"""


def keys_seen(batch: Batch, config: EngineConfig) -> list[tuple[Key, int, list[Key]]]:
    """(query, its row, the keys it sees) of every query, by the definition, in Python."""
    seen: list[tuple[Key, int, list[Key]]] = []
    for row in range(batch.raw_bs):
        keys = list(
            zip(
                batch.kv_tokens.row(row).tolist(), batch.kv_positions.row(row).tolist(), strict=True
            )
        )
        if batch.mode == "draft":
            seen += [(q, row, k) for q, k in _drafts(batch, config, row, keys)]
            continue
        cached = len(keys) - int(batch.new_lens[row])
        for i, query in enumerate(keys[cached:]):
            if batch.tree_parents is None:
                line = list(range(i + 1))
            else:
                line = _ancestors(batch.tree_parents[row].tolist(), i)
            seen.append((query, row, keys[:cached] + [keys[cached + j] for j in line]))
    if config.sliding_window:
        low = config.sliding_window
        seen = [(q, r, [key for key in k if key[1] >= q[1] - low]) for q, r, k in seen]
    if size := config.attention_chunk_size:
        seen = [(q, r, [key for key in k if key[1] // size == q[1] // size]) for q, r, k in seen]
    if config.index_topk and config.kv_compression == "none":
        for at, (q, r, k) in enumerate(seen):
            scored = _index_score(q, config)
            best = sorted((-scored(*key), key) for key in k)
            seen[at] = q, r, [key for _, key in best[: config.index_topk]]
    if config.kv_compression != "none":
        seen = [(q, r, _compressed(q, k, config)) for q, r, k in seen]
    return seen


def _compressed(query: Key, keys: list[Key], config: EngineConfig) -> list[Key]:
    """The last 128 keys, and the first one of each whole group; of small ones the best."""
    sizes = {"window": len(keys) + 1, "c1": 1, "c2": 2, "c4": 4, "c128": 128}
    size = sizes[config.kv_compression]
    groups = list(range(len(keys) // size))
    if size <= 4 and config.index_topk:
        scored = _index_score(query, config) if size == 4 else _fp4_score(query)
        places = [group if size == 4 else size * group for group in groups]
        if config.index_layer == "candidates":
            firsts = [keys[size * group] for group in groups]
            groups = _in_candidates(firsts, scored, config.candidate_blocks)
            scored = _fp4_score(query, fp4_index.candidate_heads, fp4_index.candidate_weights())
        best = sorted(groups, key=lambda group: scored(keys[size * group][0], places[group]))
        groups = sorted(best[-config.index_topk :])
    return keys[-128:] + [keys[size * group] for group in groups]


def _in_candidates(firsts: list[Key], scored: Callable[[int, int], float], count: int) -> list[int]:
    """Groups of the newest block of eight, and of the others that have the best ones."""
    blocks = [range(start, min(start + 8, len(firsts))) for start in range(0, len(firsts), 8)]
    newest = blocks[-1:]
    others = sorted(blocks[:-1], key=lambda block: max(scored(*firsts[each]) for each in block))
    kept = newest + (others[-(count - 1) :] if count > 1 else [])
    return sorted(each for block in kept for each in block)


def _index_score(query: Key, config: EngineConfig) -> Callable[[int, int], float]:
    """What an indexer's query makes of the key of a token at a place, head by head."""
    content = content_for(config)
    token, place = (torch.from_numpy(half) for half in content.index_queries)
    by_token, by_place = (torch.from_numpy(half) for half in content.index_keys)
    token, place = (
        half * torch.from_numpy(signs)[:, None]
        for half, signs in zip((token, place), content.index_weights, strict=True)
    )

    def score(key_token: int, key_place: int) -> float:
        halves = token[query[0]] @ by_token[key_token], place[query[1]] @ by_place[key_place]
        return float(sum(halves))

    return score


def _fp4_score(
    query: Key,
    query_heads: Callable[..., Any] = fp4_index.query_heads,
    weights: Any = fp4_index.head_weights(),  # noqa: B008
) -> Callable[[int, int], float]:
    """The same of an indexer in FP4, whose keys have the positions of their groups' first tokens:
    head by head."""
    heads = query_heads(*(np.array([each]) for each in query[:2]))[0]
    by_token = fp4_index.key_tokens()

    def score(key_token: int, position: int) -> float:
        place = fp4_index.key_places(np.array([position]))[0]
        products = heads @ np.concatenate((by_token[key_token], place))
        return float(weights @ products.clip(0))

    return score


def _ancestors(parents: list[int], token: int) -> list[int]:
    line = []
    while token >= 0:
        line.append(token)
        token = parents[token]
    return line


def _drafts(batch: Batch, config: EngineConfig, row: int, keys: list[Key]) -> Any:
    for branch in range(config.spec_topk):
        token = int(batch.input_ids[row * config.spec_topk + branch])
        own: list[Key] = []
        for step in range(config.spec_steps):
            own.append((token, len(keys) + step))
            yield own[-1], keys + own
            token = int(next_token(torch.tensor(token), step, branch))


def by_definition(batch: Batch, config: EngineConfig) -> torch.Tensor:
    content = content_for(config)
    out = []
    for number, (query, row, keys) in enumerate(keys_seen(batch, config)):
        mrope = None if batch.mrope is None else torch.tensor([batch.mrope[number]])
        q, _, _ = content.embed_qkv(torch.tensor([query[0]]), torch.tensor([query[1]]), mrope)
        tokens, positions = torch.tensor(keys).unbind(1)
        value = _attend(q[0], content.kv_planes(tokens, positions), config)
        encoder = batch.encoder_tokens.row(row)
        if len(encoder):
            value = value + _attend(q[0], content.encoder_planes(encoder), config)
        out.append(value)
    return torch.stack(out)


def _attend(
    q: torch.Tensor, planes: tuple[torch.Tensor, ...], config: EngineConfig
) -> torch.Tensor:
    content = content_for(config)
    k = planes[0].double() * content.k_scale
    v = k[..., : config.v_head_dim] if len(planes) == 1 else planes[1].double() * content.v_scale
    group = config.num_q_heads // config.num_kv_heads
    heads = []
    for head in range(config.num_q_heads):
        logits = k[:, head // group] @ q[head].double() / config.head_dim**0.5
        if config.logit_cap:
            logits = config.logit_cap * torch.tanh(logits / config.logit_cap)
        heads.append(torch.softmax(logits, 0) @ v[:, head // group])
    return torch.stack(heads)


DECODE = ((5, 1), (1, 1), (9, 1))
ROUNDED = ("selective_scan", "gated_delta", "channel_delta", "linear", "gated_conv")
VERIFY = ((5, 4), (4, 4), (9, 4))
ROOM: dict[str, Any] = {"max_context_len": 300, "kv_pool_pages": 600}
LONG = ((132, 1), (3, 1), (257, 1), (128, 1))
RAGGED = ((5, 2), (4, 0), (9, 3), (2, 2))
BATCHES: dict[str, Any] = {
    "decode": ("decode", DECODE, {}),
    "grouped heads": ("decode", DECODE, {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 6}),
    "latent": ("decode", DECODE, {"attention": "mla", "num_q_heads": 3, "head_dim": 6}),
    "fp8": ("decode", DECODE, {"kv_dtype": "float8_e4m3fn"}),
    "latent fp8": (
        "decode",
        DECODE,
        {"attention": "mla", "head_dim": 6, "kv_dtype": "float8_e4m3fn", "dtype": "bfloat16"},
    ),
    "bfloat16": ("decode", DECODE, {"dtype": "bfloat16", "num_q_heads": 2}),
    "float16": ("decode", DECODE, {"dtype": "float16", "v_head_dim": 7}),
    "window": ("decode", DECODE, {"sliding_window": 3}),
    "chunks": ("decode", DECODE, {"attention_chunk_size": 3}),
    "chunks of a verify": (
        "target_verify",
        VERIFY,
        {"draft_tokens": 4, "attention_chunk_size": 3},
    ),
    "capped": ("decode", DECODE, {"logit_cap": 1, "num_q_heads": 2}),
    "selection": ("decode", DECODE, {"index_topk": 3}),
    "selection of a few": ("decode", DECODE, {"index_topk": 2, "attention": "mla", "head_dim": 6}),
    "selection of all": ("decode", DECODE, {"index_topk": 16}),
    "selection in a chain": ("target_verify", VERIFY, {"draft_tokens": 4, "index_topk": 2}),
    "compressed window": ("decode", LONG, {"kv_compression": "window", **ROOM}),
    "compressed by 4": ("decode", LONG, {"kv_compression": "c4", **ROOM}),
    "best of those compressed by 4": (
        "decode",
        LONG,
        {"kv_compression": "c4", "index_topk": 5, **ROOM},
    ),
    "compressed by 1": ("decode", LONG, {"kv_compression": "c1", **ROOM}),
    "compressed by 2": ("decode", LONG, {"kv_compression": "c2", **ROOM}),
    "best compressed by 1": (
        "decode",
        LONG,
        {"kv_compression": "c1", "index_topk": 5, **ROOM},
    ),
    "best compressed by 2": (
        "decode",
        LONG,
        {"kv_compression": "c2", "index_topk": 5, **ROOM},
    ),
    "best of candidates": (
        "decode",
        LONG,
        {
            "kv_compression": "c1",
            "index_topk": 20,
            "candidate_blocks": 4,
            "index_layer": "candidates",
            **ROOM,
        },
    ),
    "all candidates": (
        "decode",
        LONG,
        {
            "kv_compression": "c2",
            "candidate_blocks": 1,
            "index_topk": 64,
            "index_layer": "candidates",
            **ROOM,
        },
    ),
    "compressed by 128": ("decode", LONG, {"kv_compression": "c128", **ROOM}),
    "no table": ("decode", DECODE, {"max_context_len": 1 << 15}),
    "encoder": ("decode", ((5, 1, 3), (1, 1, 0), (9, 1, 6)), {"max_encoder_len": 6}),
    "optional input": ("decode", DECODE, {"mrope": True}),
    "ragged drafts": ("draft_extend", RAGGED, {"draft_tokens": 4}),
    "prefill": ("prefill", ((5, 5), (7, 3)), {}),
    "prefill window": ("prefill", ((9, 8), (7, 3)), {"sliding_window": 2}),
    "chain": ("target_verify", VERIFY, {"draft_tokens": 4}),
    "tree": ("target_verify", VERIFY, {"draft_tokens": 4, "spec_topk": 2}),
    "tree window": (
        "target_verify",
        VERIFY,
        {"draft_tokens": 4, "spec_topk": 3, "sliding_window": 2},
    ),
    "draft": ("draft", ((5, 0), (1, 0)), {"spec_topk": 2, "spec_steps": 3}),
    "draft window": (
        "draft",
        ((5, 0), (1, 0)),
        {"spec_topk": 2, "spec_steps": 3, "sliding_window": 1},
    ),
}


def made(name: str) -> tuple[Batch, EngineConfig]:
    mode, rows, options = BATCHES[name]
    batch, config = batch_of(mode, *rows, **options)
    return batch, config


@pytest.mark.parametrize("name", BATCHES)
def test_truth_is_what_attention_defines(name: str) -> None:
    batch, config = made(name)
    want = by_definition(batch, config)

    got = expected(batch, config).outputs["attention"]

    assert got.dtype == torch.float64
    assert got.shape == want.shape
    assert float((got - want).abs().max()) < 1e-12


def test_nobody_has_candidates_in_a_batch_without_requests() -> None:
    options = BATCHES["best of candidates"][2]
    batch, config = batch_of("decode", **options)
    assert len(expected(batch, config).outputs["attention"]) == 0


@pytest.mark.parametrize("name", BATCHES)
def test_the_yardstick_is_the_truth_up_to_its_dtype(name: str) -> None:
    batch, config = made(name)
    truth = expected(batch, config).outputs["attention"]

    plain = yardstick(batch, config)["attention"]

    error = float((plain.double() - truth).abs().max())
    assert plain.dtype == getattr(torch, config.dtype)
    assert 0.0 < error < 16 * torch.finfo(plain.dtype).eps


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", BATCHES)
def test_the_second_opinion_agrees(name: str) -> None:
    batch, config = made(name)
    truth = expected(batch, config).outputs["attention"]

    opinion = second_opinion(batch, config)["attention"]

    error = float((opinion.double() - truth).abs().max())
    assert opinion.dtype == getattr(torch, config.dtype)
    assert error < 4 * torch.finfo(opinion.dtype).eps


def test_physical_places_do_not_matter() -> None:
    batch, config = made("decode")
    moved = replace(
        batch,
        kv_slots=replace(batch.kv_slots, values=batch.kv_slots.values[::-1].copy()),
        req_pool_indices=batch.req_pool_indices + 1,
    )

    one, other = (expected(each, config).outputs["attention"] for each in (batch, moved))

    assert torch.equal(one, other)


def test_the_value_bound_covers_every_value_that_entered() -> None:
    batch, config = made("decode")
    content = content_for(config)
    _, values = content.kv_planes(batch.kv_tokens.values, batch.kv_positions.values)

    assert expected(batch, config).value_bound >= float(values.abs().max())


def test_an_idle_step_expects_empty_outputs() -> None:
    config = EngineConfig(num_q_heads=2)
    case = Case(schema_version=1, config=config, steps=(ReplayStep(mode="idle"),))

    truth = expected(plan(case)[0], config)

    assert truth.outputs["attention"].shape == (0, 2, 4)
    assert truth.value_bound == 0.0


def test_a_draft_step_names_the_token_predicted_after_each() -> None:
    batch, config = made("draft")
    want = []
    for lane, token in enumerate(batch.input_ids.tolist()):
        for step in range(config.spec_steps):
            token = int(next_token(torch.tensor(token), step, lane % config.spec_topk))
            want.append(token)

    assert expected(batch, config).outputs["draft_tokens"].tolist() == want


def test_recurrent_state_is_in_the_truth_and_what_rounds_behind_it_in_the_yardstick() -> None:
    batch, config = batch_of("decode", *DECODE, recurrent_state=True)
    brought = content_for(config).weights["state_in"].double()
    rows = [brought[torch.from_numpy(batch.kv_tokens.row(row).copy())] for row in range(3)]

    state = expected(batch, config).outputs["state"]

    assert torch.equal(state[:, :STATE_SUMS], torch.stack([row.sum(0) for row in rows])[:, :4])
    assert torch.equal(state[:, STATE_SUMS:], torch.stack([row[-1] for row in rows])[:, 4:])
    assert set(yardstick(batch, config)) == {"attention", *ROUNDED}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_recurrence_that_a_dtype_rounds_is_left_out_where_nobody_promises_it(name: str) -> None:
    batch, config = batch_of("decode", *DECODE, recurrent_state=True)
    assert name in expected(batch, config).outputs
    assert name in expected(batch, config, (name,)).outputs
    assert name not in expected(batch, config, ("state",)).outputs


@pytest.mark.parametrize(
    ("rank", "tokens"), [(0, [0, 1]), (1, [2]), (2, []), (3, [])], ids=lambda value: str(value)
)
def test_each_rank_expects_its_own_share_of_the_padded_tokens(rank: int, tokens: list[int]) -> None:
    # Three live rows are padded to 8, two for each of the four ranks.
    batch, config = batch_of(
        "decode", *DECODE, capture_bs=(2, 8), attn_tp_size=4, attn_tp_rank=rank
    )

    outputs = expected(batch, config).outputs

    assert torch.equal(outputs["moe"], outputs["attention"][tokens])


@pytest.mark.parametrize(
    ("mode", "rows", "config", "padded"),
    [
        ("decode", DECODE, {"capture_bs": (2, 4, 8)}, 4),
        ("decode", DECODE, {"capture_bs": (2,)}, 3),
        ("draft_extend", RAGGED, {"capture_bs": (8,), "draft_tokens": 5}, 40),
        ("draft", ((5, 0),), {"capture_bs": (4,), "spec_topk": 2}, 8),
        ("prefill", ((5, 5), (7, 3)), {"capture_tokens": (4, 16)}, 16),
    ],
    ids=["decode", "above the ladder", "draft_extend", "draft", "prefill"],
)
def test_padded_tokens_follow_from_the_ladder(
    mode: str, rows: Any, config: dict[str, Any], padded: int
) -> None:
    batch, made_config = batch_of(mode, *rows, **config)

    assert padded_tokens(batch, made_config) == padded
