"""From a case to the logical truth of each step: rows, pages, slots, tokens.

`plan` plays the scheduler and the allocators of a serving engine: requests come and go, their
rows, pages and state slots are freed and given out again, prefixes share pages. What the slots
hold is `content`'s job; tensors and padding are the engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import gcd

import numpy as np

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.content import hash_counters, token_ids
from fuzzgraph.errors import InvalidCase
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW, Batch, IntArray, Ragged

__all__ = ["plan"]

_SHARED_PREFIX = 1 << 21
"""Stands for "any request" where prefixes share tokens; above every request id."""
_ENCODER = 1 << 22
_MROPE = 1 << 23
_BRANCHES = 1 << 24
"""Each names a stream of tokens of its own, when added to a request id."""
_OTHER_ORDER = {
    "ascending": "descending",
    "descending": "ascending",
    "shuffled": "fragmented",
    "fragmented": "shuffled",
}
"""State slots are handed out in another order than rows, so that a mix-up shows."""
_NONE: IntArray = np.empty(0, dtype=np.int64)


@lru_cache(maxsize=256)
def _order(order: str, seed: int, first: int, count: int) -> tuple[int, ...]:
    """`count` numbers from `first` in the order in which they are handed out, next one last."""
    if order == "ascending":
        return tuple(range(first + count - 1, first - 1, -1))
    if order == "descending":
        return tuple(range(first, first + count))
    if order == "shuffled":
        keys = hash_counters(seed + 17, np.arange(count, dtype=np.uint64))
        return tuple((np.argsort(keys) + first).tolist())
    stride = next(s for s in range(max(2, count // 3), count + 3) if gcd(s, count) == 1)
    return tuple((np.arange(count) * stride % count + first)[::-1].tolist())


class _FreeList:
    """Numbers not in use; those freed last are handed out first unless the order is by value."""

    def __init__(self, order: str, seed: int, first: int, count: int) -> None:
        # Only a shuffle depends on the seed: the other orders are computed once.
        self._free = list(_order(order, seed if order == "shuffled" else 0, first, count))
        self._by_value = {"ascending": True, "descending": False}.get(order)

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` numbers; check `len` first."""
        if not count:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def give_back(self, numbers: Iterable[int]) -> None:
        self._free.extend(numbers)
        if self._by_value is not None:
            self._free.sort(reverse=self._by_value)


@dataclass(slots=True)
class _Request:
    """A live request and all that it owns."""

    row: int
    state_slot: int
    tokens: IntArray
    """Token ids of every position it will reach."""
    mrope: IntArray
    shared: bool
    """Whether its first pages are the shared ones."""
    pages: list[int]
    """Shared pages included."""
    slots: IntArray
    """Physical slot of every position its pages hold."""
    encoder_pages: list[int]
    encoder_slots: IntArray
    encoder_tokens: IntArray


def _slots_of(pages: Sequence[int], page_size: int) -> IntArray:
    first = np.array(pages, dtype=np.int64)
    if page_size == 1:
        return first
    slots: IntArray = (first[:, None] * page_size + np.arange(page_size)).ravel()
    return slots


def _shared_prefix_pages(case: Case) -> int:
    """Pages that all requests share: whole pages that no step of the case writes."""
    if not case.shared_prefix_pages:
        return 0
    cached = [row.seq_len - row.new_tokens for step in case.steps for row in step.rows]
    return min([case.shared_prefix_pages, *(length // case.config.page_size for length in cached)])


def _draft_pages(config: EngineConfig) -> int:
    """Pages for the draft tokens of one row, apart from the request's own."""
    return -(-config.spec_topk * config.spec_steps // config.page_size)


@lru_cache(maxsize=512)
def _tree(draft_tokens: int, topk: int, key: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(parents, depths) of a draft tree with at most `topk` children at a node.

    `key` picks one of many; with topk 1 it is always the chain.
    """
    draws = hash_counters(key, np.arange(draft_tokens, dtype=np.uint64)).tolist()
    parents, depths = [-1], [0]
    room = [topk]
    for token in range(1, draft_tokens):
        open_nodes = [node for node in range(token) if room[node]]
        parent = open_nodes[draws[token] % len(open_nodes)] if topk > 1 else token - 1
        room[parent] -= 1
        room.append(topk)
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return tuple(parents), tuple(depths)


def _cut(arrays: list[IntArray], starts: list[int], stops: list[int]) -> IntArray:
    """`array[start:stop]` of each, one after the other."""
    if not arrays:
        return _NONE
    return np.concatenate([a[i:j] for a, i, j in zip(arrays, starts, stops, strict=True)])


def _offsets(lengths: list[int]) -> IntArray:
    return np.array([0, *accumulate(lengths)], dtype=np.int64)


def _streams(case: Case, lengths: dict[int, int], prefix: int, salt: int) -> dict[int, IntArray]:
    """Token ids of the first `lengths[request]` positions of each request, hashed in one go.

    Requests agree on the first `prefix` positions. `salt` picks the stream.
    """
    if not lengths:
        return {}
    offsets = [0, *accumulate(lengths.values())]
    counts = _ints(list(lengths.values()))
    positions = np.arange(offsets[-1]) - np.repeat(_ints(offsets[:-1]), counts)
    names = np.repeat(_ints(list(lengths)), counts)
    if prefix:
        names[positions < prefix] = _SHARED_PREFIX
    tokens = token_ids(case.seed, names + salt, positions)
    return {
        name: tokens[start:stop]
        for name, start, stop in zip(lengths, offsets[:-1], offsets[1:], strict=True)
    }


def _longest(case: Case) -> tuple[dict[int, int], dict[int, int]]:
    """Per request: the largest seq_len of the case, and its encoder length."""
    longest: dict[int, int] = {}
    encoder: dict[int, int] = {}
    for step in case.steps:
        for row in step.rows:
            if row.seq_len > longest.get(row.request, 0):
                longest[row.request] = row.seq_len
            encoder[row.request] = max(row.encoder_len, encoder.get(row.request, 0))
    return longest, encoder


def _ints(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


class _Scheduler:
    """Walks the steps of one case and keeps who owns what."""

    def __init__(self, case: Case) -> None:
        config = case.config
        self.case, self.config = case, config
        self.requests: dict[int, _Request] = {}
        order, seed = case.page_order, case.seed
        self.rows = _FreeList(order, seed, FIRST_ROW, config.req_pool_size)
        self.states = _FreeList(_OTHER_ORDER[order], seed, FIRST_ROW, config.req_pool_size)
        self.pages = _FreeList(order, seed, FIRST_PAGE, config.kv_pool_pages)
        self.prefix = _shared_prefix_pages(case)
        self.prefix_pages: list[int] = []
        self.where = ""
        longest, encoder = _longest(case)
        self.positions = np.arange(max(longest.values(), default=0))
        self.tokens = _streams(case, longest, self.prefix * config.page_size, 0)
        self.encoder_tokens = _streams(case, encoder, 0, _ENCODER) if config.max_encoder_len else {}
        with_mrope = any(step.mrope for step in case.steps)
        self.mrope = _streams(case, longest, 0, _MROPE) if with_mrope else {}

    # Allocation

    def _take_pages(self, count: int, request: int) -> list[int]:
        if count > len(self.pages):
            raise InvalidCase(
                f"{self.where}: request {request} needs {count} more pages and "
                f"{len(self.pages)} of kv_pool_pages={self.config.kv_pool_pages} are free. Raise "
                "config.kv_pool_pages, shorten requests, or finish some."
            )
        return self.pages.take(count)

    def _add(self, row: BatchRow) -> _Request:
        config, request = self.config, row.request
        if not len(self.rows):
            raise InvalidCase(
                f"{self.where}: request {request} finds no free row of "
                f"req_pool_size={config.req_pool_size}. Finish a request before, or raise "
                "config.req_pool_size."
            )
        encoder_pages = self._take_pages(-(-row.encoder_len // config.page_size), request)
        return _Request(
            row=self.rows.take(1)[0],
            state_slot=self.states.take(1)[0] if config.recurrent_state else 0,
            tokens=self.tokens[request],
            mrope=self.mrope.get(request, _NONE),
            shared=bool(self.prefix),
            pages=self._share_prefix(request),
            slots=_NONE,
            encoder_pages=encoder_pages,
            encoder_slots=_slots_of(encoder_pages, config.page_size)[: row.encoder_len],
            # A request that ended may come back with a shorter encoder.
            encoder_tokens=self.encoder_tokens.get(request, _NONE)[: row.encoder_len],
        )

    def _share_prefix(self, request: int) -> list[int]:
        if self.prefix and not self.prefix_pages:
            self.prefix_pages = self._take_pages(self.prefix, request)
        return list(self.prefix_pages)

    def _reach(self, request: _Request, row: BatchRow) -> None:
        """Own pages up to `row.seq_len`; a row that got shorter keeps what it has."""
        missing = -(-row.seq_len // self.config.page_size) - len(request.pages)
        if missing > 0:
            request.pages += self._take_pages(missing, row.request)
        if len(request.slots) != len(request.pages) * self.config.page_size:
            request.slots = _slots_of(request.pages, self.config.page_size)

    def _finish(self, name: int) -> None:
        request = self.requests.pop(name)
        own = request.pages[len(self.prefix_pages) if request.shared else 0 :]
        self.pages.give_back(own + request.encoder_pages)
        self.rows.give_back([request.row])
        if self.config.recurrent_state:
            self.states.give_back([request.state_slot])
        if self.prefix_pages and not self.requests:
            self.pages.give_back(self.prefix_pages)
            self.prefix_pages = []

    # One step

    def step(self, index: int, step: ReplayStep) -> Batch:
        self.where = f"steps[{index}]"
        for name in step.finish:
            self._finish(name)
        live = []
        for row in step.rows:
            request = self.requests.get(row.request)
            if request is None:
                request = self.requests[row.request] = self._add(row)
            self._reach(request, row)
            live.append(request)
        return self._batch(index, step, live)

    def _batch(self, index: int, step: ReplayStep, live: list[_Request]) -> Batch:
        rows = step.rows
        seq = [row.seq_len for row in rows]
        new = [row.new_tokens for row in rows]
        cached = [row.seq_len - row.new_tokens for row in rows]
        zeros = [0] * len(rows)
        tokens, slots = [r.tokens for r in live], [r.slots for r in live]
        kv_offsets = _offsets(seq)
        kv_positions = _cut([self.positions] * len(rows), zeros, seq)
        parents = None
        if step.mode == "target_verify":
            parents = self._draw_trees(index, rows, kv_positions, kv_offsets)
        encoder_lens, encoder_slots, encoder_tokens = self._encoders(live)
        bs = len(rows)
        if step.mode == "draft":
            input_ids, positions, slot_mapping = self._draft(rows, seq)
            token_rows = np.repeat(np.arange(bs), self.config.spec_topk)
        else:
            input_ids, slot_mapping = _cut(tokens, cached, seq), _cut(slots, cached, seq)
            starts = kv_offsets.tolist()
            positions = _cut([kv_positions[i:] for i in starts[:-1]], cached, seq)
            token_rows = np.repeat(np.arange(bs), new)
        with_mrope = step.mrope and step.mode not in ("draft", "idle")
        return Batch(
            step=index,
            mode=step.mode,
            via=step.via,
            raw_bs=bs,
            num_tokens=len(input_ids),
            requests=_ints([row.request for row in rows]),
            req_pool_indices=_ints([r.row for r in live]),
            seq_lens=_ints(seq),
            new_lens=_ints(new),
            input_ids=input_ids,
            positions=positions,
            token_rows=token_rows,
            slot_mapping=slot_mapping,
            kv_slots=Ragged(_cut(slots, zeros, seq), kv_offsets),
            kv_tokens=Ragged(_cut(tokens, zeros, seq), kv_offsets),
            kv_positions=Ragged(kv_positions, kv_offsets),
            pages=Ragged(
                _ints([page for r in live for page in r.pages]),
                _offsets([len(r.pages) for r in live]),
            ),
            encoder_lens=encoder_lens,
            encoder_slots=encoder_slots,
            encoder_tokens=encoder_tokens,
            state_slots=_ints([r.state_slot for r in live])
            if self.config.recurrent_state
            else _NONE,
            tree_parents=parents,
            mrope=_cut([r.mrope for r in live], cached, seq) if with_mrope else None,
        )

    def _encoders(self, live: list[_Request]) -> tuple[IntArray, Ragged, Ragged]:
        if not self.config.max_encoder_len:
            none = np.zeros(len(live) + 1, dtype=np.int64)
            return none[1:], Ragged(_NONE, none), Ragged(_NONE, none)
        lengths = [len(request.encoder_slots) for request in live]
        offsets, zeros = _offsets(lengths), [0] * len(live)
        slots = _cut([request.encoder_slots for request in live], zeros, lengths)
        tokens = _cut([request.encoder_tokens for request in live], zeros, lengths)
        return _ints(lengths), Ragged(slots, offsets), Ragged(tokens, offsets)

    def _draw_trees(
        self,
        index: int,
        rows: Sequence[BatchRow],
        kv_positions: IntArray,
        kv_offsets: IntArray,
    ) -> IntArray:
        """Parents of every row's drafts; moves their positions to cached + depth."""
        count, topk = self.config.draft_tokens, self.config.spec_topk
        parents = np.empty((len(rows), count), dtype=np.int64)
        for i, row in enumerate(rows):
            # 97 trees are plenty, and so few are computed once.
            key = (self.case.seed + 31 * index + 7 * row.request) % 97 if topk > 1 else 0
            parents[i], depths = _tree(count, topk, key)
            kv_positions[kv_offsets[i + 1] - count : kv_offsets[i + 1]] = np.add(
                depths, row.seq_len - count
            )
        return parents

    def _draft(
        self, rows: Sequence[BatchRow], seq: list[int]
    ) -> tuple[IntArray, IntArray, IntArray]:
        """(branch tokens, their positions, slots by row, branch, step); frees the slots again."""
        config = self.config
        per_row = config.spec_topk * config.spec_steps
        taken = [self._take_pages(_draft_pages(config), row.request) for row in rows]
        for pages in taken:
            self.pages.give_back(pages)
        slots = [_slots_of(pages, config.page_size)[:per_row] for pages in taken]
        branches = np.arange(config.spec_topk)
        streams = _ints([row.request for row in rows])[:, None] + _BRANCHES * (1 + branches)
        starts = _ints(seq)
        input_ids = token_ids(self.case.seed, streams, starts[:, None]).ravel()
        mapping = np.concatenate(slots) if slots else _NONE
        return input_ids, np.repeat(starts, config.spec_topk), mapping


def plan(case: Case) -> tuple[Batch, ...]:
    """The batch of every step, in order; same case, same arrays, on every machine.

    Args:
        case: validated by `case.validate`.
    Raises:
        InvalidCase: the pages or rows of the config do not suffice; names the step and request.
    """
    scheduler = _Scheduler(case)
    return tuple(scheduler.step(index, step) for index, step in enumerate(case.steps))
