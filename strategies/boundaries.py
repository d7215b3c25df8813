"""Sizes and lengths at which engines go wrong: one below, at and one above each edge."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from fuzzgraph.case import EngineConfig, Mode, group_configs
from fuzzgraph.case.verified_states import most_requests
from fuzzgraph.strategies.config_features import CONTEXT_BLOCKS

_CHUNKS = 4
"""Chunks whose ends are worth trying, beside the last one of a context."""


def _around(edge: int) -> tuple[int, int, int]:
    return edge - 1, edge, edge + 1


def _clipped(values: Iterable[int], low: int, high: int) -> tuple[int, ...]:
    return tuple(sorted({value for value in values if low <= value <= high} | {low}))


@lru_cache(maxsize=512)
def batch_sizes(config: EngineConfig, most: int, above_ladder: bool) -> tuple[int, ...]:
    """Live requests worth trying, ascending, at most `most` and what can be live.

    Sizes above the captured ladder only where `above_ladder`.
    """
    ladder = config.capture_bs
    high = min(most, most_requests(config), most if above_ladder else ladder[-1])
    sizes = {1, 2, high}
    for size in ladder:
        sizes.update(_around(size))
    return _clipped(sizes, 1, high)


@lru_cache(maxsize=512)
def token_counts(config: EngineConfig, most: int) -> tuple[int, ...]:
    """Tokens of a prefill batch worth trying, ascending, at most `most`.

    They lie around each captured count. Where `most` is above the ladder, which only an eager
    prefill can be, it and twice the ladder are among them: buffers for prefill are sized by other
    rules than captured ones.
    """
    counts = {1, 2, config.draft_tokens}
    for count in config.capture_tokens:
        counts.update(_around(count))
    if interval := config.state_track_interval:
        for count in range(1, most // interval + 1):
            counts.update(_around(interval * count))
    if most > config.capture_tokens[-1]:
        counts.update((2 * config.capture_tokens[-1], most))
    return _clipped(counts, 1, most)


@lru_cache(maxsize=512)
def seq_lens(config: EngineConfig, mode: Mode, least: int) -> tuple[int, ...]:
    """Lengths worth trying, ascending, from `least` to the context's end."""
    page, context = config.page_size, config.max_context_len
    drafts = config.draft_tokens
    lengths = {1, 2, 3, context // 2, context - 2, context - 1, context}
    for edge in (page, 2 * page, context - context % page):
        if page > 1:
            lengths.update(_around(edge))
    for block in CONTEXT_BLOCKS:  # of tokens, or of pages
        if block < context:
            lengths.update((*_around(block), *_around(block * page)))
    windows = {group.sliding_window for group in group_configs(config)}
    for edge in (*windows, config.split_kv, 2 * config.split_kv):
        if edge:
            lengths.update((edge - 1, edge, edge + 1))
    if chunk := config.attention_chunk_size:
        chunks = context // chunk
        for count in (*range(1, min(chunks, _CHUNKS) + 1), chunks):
            lengths.update((chunk * count, chunk * count + 1))
    # Lengths at which a state is kept or written, and the step before, from which many rows go on.
    if interval := config.state_track_interval or config.state_flush_interval:
        for count in range(1, context // interval + 1):
            lengths.update((interval * count - 1, interval * count))
    lengths.update(window + 2 for window in windows if window)
    for group in group_configs(config)[1:]:  # around a page that leaves the window
        for pages in (1, 2):
            lengths.update(_around(group.sliding_window + pages * group.page_size + 1))
    if config.kv_compression != "none":
        # DeepSeek V4's window, the larger of its groups, and the smaller.
        for edge in (4, 8, 128, 132):
            lengths.update(_around(edge))
    if blocks := config.candidate_blocks:
        # The longest requests whose keys are all selected, and all candidates, of either ratio.
        for edge in (config.index_topk, 8 * blocks):
            lengths.update((*_around(edge), *_around(2 * edge)))
    if size := config.index_block:
        # One block more, of one key, and the longest requests of which no block is left out.
        for count in (1, 2, config.index_topk, config.index_topk + 1):
            lengths.update(_around(size * count))
    if size := config.pooled_block:
        # One block more, a pooled key more, the first row that selects, and the longest ones of
        # which no block is left out.
        for edge in (*(size * count for count in range(1, context // size + 1)), config.dense_len):
            lengths.update(_around(edge))
    if mode in ("target_verify", "draft_extend", "draft"):
        lengths.update((context - drafts, context - drafts + 1, context - drafts // 2))
        lengths.update(page * count + shift for count in (1, 2) for shift in (drafts, drafts + 1))
    return _clipped(lengths, least, context)


@lru_cache(maxsize=512)
def encoder_lens(config: EngineConfig) -> tuple[int, ...]:
    """Encoder lengths worth mixing: none, one, the longest, and a page's edge."""
    most, page = config.max_encoder_len, config.page_size
    return _clipped((0, 1, most // 2, page, page + 1, most), 0, most)
