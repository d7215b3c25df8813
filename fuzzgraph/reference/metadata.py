"""Computes what live entries of replay metadata must hold, from the logical batch alone.

A declared field names its truth in `Field.repeats`: a function of this module, or an attribute of
the batch. No table, plan or length of the engine is read here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fuzzgraph.adapted_layer import rank_of, token_adapters_of_ranks
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.experts.placement import (
    expert_counts,
    local_experts,
    placed_experts,
    places,
    received_counts,
)
from fuzzgraph.fields import PADDED_OF_RANKS
from fuzzgraph.observation import Field, Observation
from fuzzgraph.reference.geometry import drafted_start, drafts_see, lines_of, queries_of
from fuzzgraph.reference.shard import live_tokens
from fuzzgraph.world import Batch, IntArray


def live_truth(field: Field, batch: Batch, config: EngineConfig) -> IntArray | None:
    """Flat values of the live entries; for offsets their steps. None where nothing is promised, or
    where what is follows from the graph's size and not from the batch."""
    if field.truth in ("", PADDED_OF_RANKS):
        return None
    name, *numbers = field.truth.split(":")
    if name in _TRUTHS:
        return _TRUTHS[name](batch, config, *map(int, numbers or ["0"]))
    found: IntArray | None = getattr(batch, name)
    # An optional input that the batch lacks: live rows then hold what padded rows hold.
    padding = field.padding_in(batch.mode)
    if found is None and padding.kind != "free":
        return np.full(batch.num_tokens, padding.value)
    return found


def capture_truth(field: Field, seen: Observation, mode: Mode, config: EngineConfig) -> int | None:
    """What every entry must hold when a graph of the observed size is captured, or None.

    The batch of a capture has no requests, so its rows hold what padded rows hold.
    """
    # Two exceptions: all tokens of a capture count as live, and encoders have their full length,
    # because a length of 0 would leave the cross attention out of the graph.
    if field.truth == PADDED_OF_RANKS:
        return seen.padded_tokens
    if field.name == "num_token_non_padded":
        return live_tokens(seen.padded_tokens, seen.padded_tokens, config)
    if field.name == "encoder_lens":
        return config.max_encoder_len
    padding = field.padding_in(mode)
    return None if padding.kind == "free" else padding.value


def _last_page_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Tokens in each row's last page; 0 for an empty row."""
    # 1 to page_size: a full last page counts page_size tokens, not 0.
    lens: IntArray = (batch.seq_lens - 1) % config.page_size + 1
    return np.where(batch.seq_lens > 0, lens, 0)


def _page_counts(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Pages that each row's keys lie in."""
    return -(-batch.seq_lens // config.page_size)


def _one_each(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """One for each row of the attention: a draft has a row for each branch."""
    branches = config.spec_topk if batch.mode == "draft" else 1
    return np.ones(batch.raw_bs * branches, dtype=np.int64)


def _token_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Keys that each new token of a chain sees, itself included."""
    return batch.positions + 1


def _draft_width(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """New tokens of each row in a verify: every row has a place for each draft token."""
    return np.full(batch.raw_bs, config.draft_tokens)


def _widened_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Keys of each row once it has computed a place for each draft token."""
    return batch.cached_lens + config.draft_tokens


def _drafted_past(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Keys of each row before its drafted block, of those that the block sees."""
    return batch.cached_lens - drafted_start(batch, config)


def _drafted_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """The same with those of the block."""
    return batch.seq_lens - drafted_start(batch, config)


def _listed_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Keys of each row that the metadata lists for attention."""
    # With a window only those that a new token can see. A verify lists all keys, because its mask
    # applies the window; a page table lists all pages of a row, from the first on.
    whole = batch.mode == "target_verify" or config.page_map == "page_table"
    if whole or not config.sliding_window:
        return batch.seq_lens
    return _windowed_lens(batch, config, 0)


def _windowed_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Keys of each row that its window shows to any of its new tokens, these included."""
    return np.minimum(batch.seq_lens, config.sliding_window + batch.new_lens)


def _windowed_past(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """The same without the new tokens: the first of them sees `sliding_window` keys before it."""
    return np.minimum(batch.cached_lens, config.sliding_window)


def _chunk_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Keys of each row in the chunk of its last token, see `attention_chunk_size`."""
    return (batch.seq_lens - 1) % config.attention_chunk_size + 1


def _draft_lens(batch: Batch, config: EngineConfig, step: int) -> IntArray:
    """Listed keys of each branch at a step of a draft, its own tokens so far among them if seen."""
    past: IntArray = drafts_see(batch, config).sum(1)
    own = step + 1 if config.draft_reach == "drafts" else 0
    lens = np.repeat(past + own, config.spec_topk)
    return np.minimum(lens, config.sliding_window + 1) if config.sliding_window else lens


def _encoder_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Encoder tokens of each row of the attention: a draft has a row for each branch."""
    branches = config.spec_topk if batch.mode == "draft" else 1
    return np.repeat(batch.encoder_lens, branches)


def _tree(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """[rows, draft, draft] flat: 1 where a draft token sees another one of its row."""
    if batch.tree_parents is None:
        return np.zeros(0, dtype=np.int64)
    seen = lines_of(batch.tree_parents)
    if config.sliding_window:
        # A token's depth is the number of tokens on its line; depths differ as positions do.
        depth = seen.sum(-1)
        seen = seen & (depth[:, :, None] - depth[:, None, :] <= config.sliding_window)
    return seen.astype(np.int64).ravel()


def _mask_lens(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Entries of the mask of each row."""
    return batch.new_lens * batch.seq_lens


def _mask_offsets(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    return np.append(0, np.cumsum(batch.new_lens * batch.seq_lens))


def _query_offsets(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    return np.append(0, np.cumsum(batch.new_lens))


def _row_starts(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """First of each row's new tokens among those of the batch."""
    return np.cumsum(batch.new_lens) - batch.new_lens


def _mask(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """1 where a new token sees a key: token after token, one entry for each key of its row."""
    found = queries_of(batch, config)
    below = np.arange(found.visible.shape[1]) < batch.seq_lens[found.rows][:, None]
    return found.visible[below].astype(np.int64)


def _chunks(batch: Batch, config: EngineConfig, step: int) -> IntArray:
    """Work items of each live token in a split plan."""
    if batch.mode == "draft":
        lens = _draft_lens(batch, config, step)
    else:
        lens = _listed_lens(batch, config, step)[batch.token_rows]
    return -(-lens // config.split_kv)  # rounded up: the last chunk may be shorter


def _chunk_offsets(batch: Batch, config: EngineConfig, step: int) -> IntArray:
    return np.append(0, np.cumsum(_chunks(batch, config, step)))


def _item_tokens(batch: Batch, config: EngineConfig, step: int) -> IntArray:
    """Token of each work item."""
    chunks = _chunks(batch, config, step)
    return np.repeat(np.arange(len(chunks)), chunks)


def _item_chunks(batch: Batch, config: EngineConfig, step: int) -> IntArray:
    """Which of its token's chunks each work item computes."""
    chunks = _chunks(batch, config, step)
    return np.arange(chunks.sum()) - np.repeat(np.cumsum(chunks) - chunks, chunks)


def _items_valid(batch: Batch, config: EngineConfig, step: int) -> IntArray:
    return np.ones(_chunks(batch, config, step).sum(), dtype=np.int64)


def _draft_states(batch: Batch, config: EngineConfig, token: int, pages: int = 0) -> IntArray:
    """Slot of the state behind one of the tokens that a verify computes of each row; its block,
    where states lie behind so many pages in one pool of blocks."""
    return batch.draft_state_slots[:, token] + pages


def _states_behind(batch: Batch, config: EngineConfig, pages: int) -> IntArray:
    """Block of each row's state, where states lie behind so many pages in one pool of blocks."""
    return batch.state_slots + pages


def _states_kept(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Which of its states each row goes on from, counted from 1; the first one after a prompt."""
    return np.maximum(batch.kept_tokens, 1)


def _adapter_ranks(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Rank of the LoRA adapter of each token's request, 0 without one."""
    adapters = batch.token_adapters.tolist()
    return np.array([rank_of(adapter) for adapter in adapters], dtype=np.int64)


def _rank_adapter_ranks(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """The same of each token of all data-parallel ranks, one rank behind another."""
    adapters = np.concatenate(token_adapters_of_ranks(batch, config)).tolist()
    return np.array([rank_of(adapter) for adapter in adapters], dtype=np.int64)


def _chosen_experts(batch: Batch, config: EngineConfig, place: int) -> IntArray:
    """The expert that the router gives each token in one of its places, the preferred one first, by
    where it lies; in the place behind them all the shared one, which lies behind all others."""
    if place == config.experts_per_token:
        return np.full(batch.num_tokens, places(config), dtype=np.int64)
    return placed_experts(batch, config)[:, place]


def _local_experts(batch: Batch, config: EngineConfig, place: int) -> IntArray:
    """The same as this rank counts its own experts, from 0 on; -1 for one of another rank. The
    shared one lies behind those of each rank."""
    chosen, mine = _chosen_experts(batch, config, place), local_experts(config)
    if place == config.experts_per_token:
        return np.full_like(chosen, len(mine))
    return np.where(np.isin(chosen, mine), chosen - mine.start, -1)


def _expert_counts(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Tokens of each expert."""
    return expert_counts(batch, config)


def _received_counts(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """Tokens of all data-parallel ranks that each of this rank's experts has."""
    return received_counts(batch, config)


def _computes_prompts(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """1 where any data-parallel rank computes prompts in this step."""
    return np.array([int(batch.others_prefill or batch.mode == "prefill")])


def _exchanges_at_once(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """1 where experts exchange tokens by kernels of low latency: those of few tokens of each rank,
    which neither prompts nor extended drafts count as."""
    if "draft_extend" in config.modes:
        return np.zeros(1, dtype=np.int64)
    return 1 - _computes_prompts(batch, config, 0)


def _nothing_left(batch: Batch, config: EngineConfig, _: int) -> IntArray:
    """0: of what an earlier step has left nothing may be there."""
    return np.zeros(1, dtype=np.int64)


# By name; numbers follow behind colons: a step of a draft, as in 'draft_lens:2', or a count.
_TRUTHS: dict[str, Callable[..., IntArray]] = {
    "last_page_lens": _last_page_lens,
    "page_counts": _page_counts,
    "one_each": _one_each,
    "token_lens": _token_lens,
    "draft_width": _draft_width,
    "widened_lens": _widened_lens,
    "drafted_past": _drafted_past,
    "drafted_lens": _drafted_lens,
    "listed_lens": _listed_lens,
    "windowed_lens": _windowed_lens,
    "windowed_past": _windowed_past,
    "chunk_lens": _chunk_lens,
    "draft_lens": _draft_lens,
    "listed_encoder_lens": _encoder_lens,
    "draft_states": _draft_states,
    "states_behind": _states_behind,
    "states_kept": _states_kept,
    "tree": _tree,
    "mask_lens": _mask_lens,
    "mask_offsets": _mask_offsets,
    "mask": _mask,
    "query_offsets": _query_offsets,
    "row_starts": _row_starts,
    "chunk_offsets": _chunk_offsets,
    "item_tokens": _item_tokens,
    "item_chunks": _item_chunks,
    "items_valid": _items_valid,
    "adapter_ranks": _adapter_ranks,
    "rank_adapter_ranks": _rank_adapter_ranks,
    "chosen_experts": _chosen_experts,
    "local_experts": _local_experts,
    "expert_counts": _expert_counts,
    "received_counts": _received_counts,
    "computes_prompts": _computes_prompts,
    "exchanges_at_once": _exchanges_at_once,
    "nothing_left": _nothing_left,
}
