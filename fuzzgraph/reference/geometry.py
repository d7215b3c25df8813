"""Says which keys each query sees, from the logical batch alone, as one padded rectangle in numpy.

It reads no table, plan or offsets of the engine. `attention` computes with the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzzgraph import block_index, fp4_index
from fuzzgraph.case import EngineConfig
from fuzzgraph.compressor_layer import CANDIDATE_BLOCK, compression_ratio
from fuzzgraph.content import content_for, next_token
from fuzzgraph.reference.draft_tree import draft_tree
from fuzzgraph.world import Batch, IntArray, Ragged

Scorer = Callable[[IntArray, IntArray, IntArray, IntArray], npt.NDArray[np.float64]]
"""Scores of keys as `fp4_index.scores` makes them."""
COMPRESSED_WINDOW = 128
"""Tokens that a query sees uncompressed where the past is compressed, itself included."""


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """T queries against up to L keys each."""

    tokens: IntArray
    """[T] token id of each query; in mode draft by row, branch, step."""
    positions: IntArray
    """[T]"""
    rows: IntArray
    """[T] batch row of each query."""
    key_tokens: IntArray
    """[T, L]"""
    key_positions: IntArray
    """[T, L]"""
    visible: npt.NDArray[np.bool_]
    """[T, L] whether the query sees the key; every query sees itself, but see `draft_reach`."""
    predicted: IntArray | None = None
    """[T] token that each draft step predicts; None outside mode draft."""


@lru_cache(maxsize=4)
def queries_of(batch: Batch, config: EngineConfig) -> Queries:
    """The queries of a batch with the keys that attention defines for them."""
    # Kept for a few batches: truth, yardstick and second opinion of a step ask for the same.
    if batch.mode == "draft":
        return _draft(batch, config)
    cached = batch.cached_lens[batch.token_rows]
    # `number` is each token's place among its row's new tokens.
    first = np.cumsum(batch.new_lens) - batch.new_lens
    number = np.arange(batch.num_tokens) - first[batch.token_rows]
    columns = np.arange(batch.seq_lens.max(initial=0))
    if batch.tree_parents is not None and config.spec_topk > 1:
        visible = _tree_visible(batch, columns, number, cached)
    elif config.drafted_blocks == "whole" or config.image_encoder:
        visible = columns < batch.seq_lens[batch.token_rows][:, None]
    else:
        visible = columns <= (cached + number)[:, None]  # causal, the query itself included
    if config.drafted_window:  # by column, which is a position: a block is a chain
        visible &= columns >= drafted_start(batch, config)[batch.token_rows][:, None]
    index = _padded(batch.kv_tokens, columns, batch.token_rows)
    positions = batch.kv_positions.values[index]
    _apply_bounds(visible, positions, batch.positions, config)
    found = Queries(
        tokens=batch.input_ids,
        positions=batch.positions,
        rows=batch.token_rows,
        key_tokens=batch.kv_tokens.values[index],
        key_positions=positions,
        visible=visible,
    )
    _apply_selection(found, config)
    return found if config.kv_compression == "none" else _compressed(found, config)


def _compressed(all_keys: Queries, config: EngineConfig) -> Queries:
    """The window's keys, and behind them one key for each whole group of tokens.

    The key of a group is that of its first token. Source: sglang 0.5.12 to 0.5.23,
    deepseek_v4_backend.py (SWA_WINDOW) and dsv4/metadata.py: a query at position p sees the last
    128 tokens and the groups that end at or before p. An indexer keeps the best `index_topk` of the
    groups of 1, 2 or 4, which where it selects among candidates are those of whole blocks.
    """
    seen, ratio = all_keys.visible, compression_ratio(config)
    in_window = seen & (all_keys.key_positions > (all_keys.positions - COMPRESSED_WINDOW)[:, None])
    if not ratio:
        return replace(all_keys, visible=in_window)
    groups = seen.shape[1] // ratio
    firsts = slice(0, groups * ratio, ratio)
    tokens, whole = all_keys.key_tokens[:, firsts], seen[:, ratio - 1 : groups * ratio : ratio]
    if config.index_layer == "candidates":
        whole = whole & _candidates(_group_scores(all_keys, firsts, config), whole, config)
    if ratio != 128 and 0 < config.index_topk < groups:
        layer = fp4_index.candidate_scores if config.index_layer == "candidates" else None
        scores = _group_scores(all_keys, firsts, config, layer)
        whole = whole & _among_best(scores, whole, config.index_topk)
    return replace(
        all_keys,
        key_tokens=np.hstack([all_keys.key_tokens, tokens]),
        key_positions=np.hstack([all_keys.key_positions, all_keys.key_positions[:, firsts]]),
        visible=np.hstack([in_window, whole]),
    )


def _candidates(
    scores: npt.NDArray[np.float64], whole: npt.NDArray[np.bool_], config: EngineConfig
) -> npt.NDArray[np.bool_]:
    """[T, groups] whether a group lies in one of the blocks that the layer before has kept.

    These are the `candidate_blocks` whose best group is best, and the newest block for one of them.
    Source: sglang 0.5.21 to 0.5.23, dsv4/candidate_blocks.py (amax_topk_blocks).
    """
    count, size = config.candidate_blocks, CANDIDATE_BLOCK
    blocks = -(-whole.shape[1] // size)
    if count >= blocks:
        return whole
    padded = np.full((len(whole), blocks * size), -np.inf)
    padded[:, : whole.shape[1]] = np.where(whole, scores, -np.inf)
    best = padded.reshape(len(whole), blocks, size).max(2)
    seen = best > -np.inf
    rows = np.flatnonzero(seen.any(1))
    best[rows, seen[rows].sum(1) - 1] = np.inf  # groups are seen from the first on
    kept = _among_best(best, seen, count)
    found: npt.NDArray[np.bool_] = np.repeat(kept, size, axis=1)[:, : whole.shape[1]]
    return found


def _group_scores(
    all_keys: Queries, firsts: slice, config: EngineConfig, scorer: Scorer | None = None
) -> npt.NDArray[np.float64]:
    """[T, groups] what an indexer thinks of groups, whose first tokens' columns `firsts` are.

    Args:
        scorer: of an indexer in FP4; None for that of a layer that selects among all keys.
    """
    tokens = all_keys.key_tokens[:, firsts]
    if compression_ratio(config) < 4:
        places = all_keys.key_positions[:, firsts]
        scored = scorer or fp4_index.scores
        return scored(all_keys.tokens, all_keys.positions, tokens, places)
    by_token, by_place = content_for(config).key_scores
    of_tokens = by_token[all_keys.tokens[:, None], tokens]
    of_places = by_place[all_keys.positions][:, : tokens.shape[1]]
    return _weighted_scores(all_keys, of_tokens, of_places, config)


def _padded(ragged: Ragged, columns: IntArray, rows: IntArray) -> IntArray:
    """[len(rows), len(columns)] indices into `values` of each row's entries."""
    # Columns behind a row's end lead into the next row, or are clamped behind the last one. Such
    # keys are never visible, so it does not matter what they are.
    index: IntArray = ragged.offsets[rows][:, None] + columns
    return np.minimum(index, max(len(ragged.values) - 1, 0))


def _apply_bounds(
    visible: npt.NDArray[np.bool_], keys: IntArray, queries: IntArray, config: EngineConfig
) -> None:
    # By position and not by column: in a draft tree several keys have the same position. The window
    # counts the tokens before the query, as engines do.
    if config.sliding_window:
        visible &= keys >= (queries - config.sliding_window)[:, None]
    # Chunks lie at fixed places, whatever the query's own: Llama 4's layers with positions of their
    # own (transformers modeling_llama4.py, chunked_attention).
    if chunk := config.attention_chunk_size:
        visible &= (keys // chunk) == (queries // chunk)[:, None]


def _apply_selection(found: Queries, config: EngineConfig) -> None:
    """Leave the best `index_topk` keys or blocks visible, by what an indexer thinks of them."""
    count, visible = config.index_topk, found.visible
    if not 0 < count < visible.shape[1] or config.kv_compression != "none":
        return
    if config.pooled_block:  # by the keys themselves, and by each head: `pooled_keys`
        return
    if config.index_group > 1:
        _apply_selection_of_groups(found, config.index_group, count)
        return
    by_token, by_place = content_for(config).key_scores
    of_tokens = by_token[found.tokens[:, None], found.key_tokens]
    of_places = by_place[found.positions[:, None], found.key_positions]
    if config.index_block:
        scores = of_tokens + of_places
        visible &= _in_best_blocks(scores, visible, count, config.index_block)
    else:
        scores = _weighted_scores(found, of_tokens, of_places, config)
        visible &= _among_best(scores, visible, count)


def _weighted_scores(
    queries: Queries,
    of_tokens: npt.NDArray[np.float64],
    of_places: npt.NDArray[np.float64],
    config: EngineConfig,
) -> npt.NDArray[np.float64]:
    """[T, L] the scores of keys by both halves of their queries, which indexers give weights."""
    by_token, by_place = content_for(config).index_weights
    of_tokens = by_token[queries.tokens][:, None] * of_tokens
    return of_tokens + by_place[queries.positions][:, None] * of_places


def _in_best_blocks(
    scores: npt.NDArray[np.float64], visible: npt.NDArray[np.bool_], count: int, size: int
) -> npt.NDArray[np.bool_]:
    """[T, L] whether a key lies in one of the query's best `count` blocks of `size` keys.

    A block is as good as its best key that the query sees, and the newest one that it sees is
    better than all others. Source: sglang 0.5.16 to 0.5.23, minimax_sparse/decode/
    flash_with_topk_idx.py (SCORE_TYPE "max", local_blocks 1).
    """
    blocks = -(-visible.shape[1] // size)
    padded = np.full((len(visible), blocks * size), -np.inf)
    padded[:, : visible.shape[1]] = np.where(visible, scores, -np.inf)
    best = padded.reshape(len(visible), blocks, size).max(2)
    seen = best > -np.inf
    rows = np.flatnonzero(seen.any(1))
    best[rows, seen[rows].sum(1) - 1] = np.inf  # keys are seen from the first on
    kept = _among_best(best, seen, min(count, blocks))
    found: npt.NDArray[np.bool_] = np.repeat(kept, size, axis=1)[:, : visible.shape[1]]
    return found


def _apply_selection_of_groups(found: Queries, size: int, count: int) -> None:
    """Leave the best `count` groups visible, and the keys behind the last whole one.

    A group is whole for a query that sees its last key. Source: sglang 0.5.20 to 0.5.23,
    qsa/kernel.py (torch_expand_qsa_block_indices) and qsa/metadata.py (compressed_decode_view).
    """
    groups = found.visible.shape[1] // size
    if count >= groups:
        return
    inside = slice(0, groups * size)
    tokens = found.key_tokens[:, inside].reshape(-1, groups, size)
    whole = found.visible[:, size - 1 : groups * size : size]
    scores = block_index.block_scores(
        found.tokens, found.positions, tokens, found.key_positions[:, inside][:, ::size]
    )
    kept = ~whole | _among_best(scores, whole, count)
    found.visible[:, inside] &= np.repeat(kept, size, axis=1)


def _among_best(
    scores: npt.NDArray[Any], visible: npt.NDArray[np.bool_], count: int
) -> npt.NDArray[np.bool_]:
    """[T, L] whether a key is one of the query's best `count`, of those that it sees."""
    scores = np.where(visible, scores, -np.inf)
    # Scores of a query differ; a query that sees fewer keys has no finite one here, and keeps all.
    last = np.partition(scores, -count, axis=1)[:, -count]
    found: npt.NDArray[np.bool_] = scores >= last[:, None]
    return found


def _tree_visible(
    batch: Batch, columns: IntArray, number: IntArray, cached: IntArray
) -> npt.NDArray[np.bool_]:
    """A draft token sees what was cached, itself and its ancestors."""
    assert batch.tree_parents is not None
    lines = lines_of(batch.tree_parents)[batch.token_rows, number]
    draft = columns - cached[:, None]
    # Columns before the drafts (negative) and behind them are clipped to look up anything at all;
    # the two comparisons below decide for them.
    on_line = np.take_along_axis(lines, draft.clip(0, lines.shape[1] - 1), axis=1)
    visible: npt.NDArray[np.bool_] = (draft < 0) | (on_line & (draft < lines.shape[1]))
    return visible


def lines_of(parents: IntArray) -> npt.NDArray[np.bool_]:
    """[rows, draft, draft] whether the second token is the first one or an ancestor of it."""
    count = parents.shape[1]
    above = parents[:, :, None] == np.arange(count)
    lines = np.broadcast_to(np.eye(count, dtype=bool), above.shape).copy()
    for token in range(1, count):  # a parent precedes its children, so its line is complete
        lines[:, token] |= (above[:, token, :, None] & lines).any(1)
    return lines


def drafted_start(batch: Batch, config: EngineConfig) -> IntArray:
    """[rows] first position that a drafted block sees: that of a page, see `drafted_window`."""
    if not config.drafted_window or config.drafted_blocks == "none":
        return np.zeros(batch.raw_bs, dtype=np.int64)
    start = np.maximum(batch.cached_lens - config.drafted_window, 0)
    found: IntArray = start - start % config.page_size
    return found


def drafts_see(batch: Batch, config: EngineConfig) -> npt.NDArray[np.bool_]:
    """[rows, longest] which tokens of its past each row's draft sees, at every step.

    The window ends where the draft begins, and does not move with its steps. Source: sglang
    kernels/ops/speculative/cache_locs.py, generate_draft_decode_kv_indices.
    """
    lens, columns = batch.seq_lens[:, None], np.arange(batch.seq_lens.max(initial=0))
    has = columns < lens
    if not config.draft_window_size:
        return has
    recent = columns >= lens - config.draft_window_size
    return has & (recent | (columns < config.draft_sink_size))


def _draft(batch: Batch, config: EngineConfig) -> Queries:
    """`spec_steps` queries on each branch: they see the row's keys and their own branch so far, or
    the row's keys alone."""
    steps, topk = config.spec_steps, config.spec_topk
    # Step by step, each branch feeds its predicted token back: [steps + 1, rows, branches].
    tokens: IntArray = np.empty((steps + 1, batch.raw_bs, topk), dtype=np.int64)
    tokens[0] = batch.input_ids.reshape(-1, topk)
    branches = np.arange(topk)
    for step in range(steps):
        tokens[step + 1] = next_token(tokens[step], step, branches)
    if config.draft_branches == "chosen":
        tokens = draft_tree(batch, config).tokens
    tokens = np.ascontiguousarray(np.moveaxis(tokens, 0, -1))  # row, branch, step
    # The keys of each query: the row's own tokens, then `steps` columns for its branch.
    own = np.arange(steps)
    rows = np.repeat(np.arange(batch.raw_bs), topk * steps)
    step_of = np.tile(own, batch.raw_bs * topk)
    index = _padded(batch.kv_tokens, np.arange(batch.seq_lens.max(initial=0)), rows)
    starts = batch.seq_lens[rows]
    branch_tokens = np.repeat(tokens[:, :, :steps].reshape(-1, steps), steps, axis=0)
    key_positions = np.hstack([batch.kv_positions.values[index], starts[:, None] + own])
    past = drafts_see(batch, config)[rows]
    seen = own <= step_of[:, None]
    visible = np.hstack([past, seen & (config.draft_reach == "drafts")])
    positions = starts + step_of
    _apply_bounds(visible, key_positions, positions, config)
    if config.kv_compression == "window":  # of the past, at every step
        visible &= key_positions >= (starts - COMPRESSED_WINDOW)[:, None]
    found = Queries(
        tokens=tokens[:, :, :steps].ravel(),
        positions=positions,
        rows=rows,
        key_tokens=np.hstack([batch.kv_tokens.values[index], branch_tokens]),
        key_positions=key_positions,
        visible=visible,
        predicted=tokens[:, :, 1:].ravel(),
    )
    if config.index_group > 1:
        found = _behind_their_past(found, starts, steps)
    if config.shared_selection:
        _apply_selection_before(found, batch, config)
    else:
        _apply_selection(found, config)
    return found


def _apply_selection_before(found: Queries, batch: Batch, config: EngineConfig) -> None:
    """Leave of each row's past what the last token of it has selected.

    Source: sglang 0.5.20 to 0.5.23, qwen_sparse_attn_backend.py (QSAMTPSharedSparseIndices).
    """
    starts = batch.seq_lens[found.rows]
    before = found.key_positions < starts[:, None]
    last = replace(
        found,
        tokens=batch.kv_tokens.values[batch.kv_tokens.offsets[found.rows + 1] - 1],
        positions=starts - 1,
        visible=found.visible & before,
    )
    _apply_selection(last, config)
    found.visible[:] = last.visible | (found.visible & ~before)


def _behind_their_past(found: Queries, starts: IntArray, steps: int) -> Queries:
    """The same with the keys of each query's branch, `steps` many, right behind the `starts` many
    of its past: the column of a key is its position then, by which groups are made."""
    columns = np.arange(found.key_tokens.shape[1])
    longest = len(columns) - steps
    behind = columns - starts[:, None]
    # Of a shorter row the columns in between come last; nothing sees them.
    others = np.where(behind < steps, longest + behind, columns - steps)
    order = np.where(behind < 0, columns, others)
    return replace(
        found,
        key_tokens=np.take_along_axis(found.key_tokens, order, axis=1),
        key_positions=np.take_along_axis(found.key_positions, order, axis=1),
        visible=np.take_along_axis(found.visible, order, axis=1),
    )


def encoder_keys(batch: Batch, rows: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """([T, Lenc] encoder tokens, [T, Lenc] whether the query's row has them)."""
    columns = np.arange(batch.encoder_lens.max(initial=0))
    index = _padded(batch.encoder_tokens, columns, rows)
    return batch.encoder_tokens.values[index], columns < batch.encoder_lens[rows][:, None]
