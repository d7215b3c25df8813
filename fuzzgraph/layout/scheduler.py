"""Walks the steps of a case and keeps who owns which row, pages, slots and state slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, group_configs, rank_sizes
from fuzzgraph.case.adapters import DRAFT_ADAPTER, adapters_of_others
from fuzzgraph.errors import InvalidCase, OutOfPages
from fuzzgraph.layout.adapter_pool import AdapterPools
from fuzzgraph.layout.free_list import OTHER_ORDER, FreeList
from fuzzgraph.layout.recurrent_states import RecurrentStates
from fuzzgraph.layout.streams import (
    BUDGET,
    ENCODER,
    MROPE,
    accepted_lens,
    ints,
    longest_lens,
    prompt_lens,
    token_streams,
    with_placeholders,
    with_rejected,
)
from fuzzgraph.layout.trees import branch_tokens, draft_trees
from fuzzgraph.layout.windowed import WindowedPages, slots_of
from fuzzgraph.splitmix import Chance
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW, RESERVED_PAGE, Batch, IntArray, Ragged

_NONE: IntArray = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class _Request:
    """A live request and all that it owns."""

    row: int
    tokens: IntArray
    """Token ids of every position it will reach, and the one that follows."""
    mrope: IntArray
    shared: bool
    """Whether its first pages are the shared ones."""
    pages: list[int]
    """Shared pages included."""
    names: list[int]
    """Virtual number of each of them; empty where page maps say the physical ones."""
    slots: IntArray
    """Physical slot of every position its pages hold."""
    encoder_pages: list[int]
    encoder_slots: IntArray
    encoder_tokens: IntArray
    windowed: list[WindowedPages]
    """What it has in each further KV cache group."""


def _shared_prefix_pages(case: Case) -> int:
    """Pages that all requests share: whole pages that no step of the case writes."""
    if not case.shared_prefix_pages:
        return 0
    cached = [row.seq_len - row.new_tokens for step in case.steps for row in step.rows]
    return min([case.shared_prefix_pages, *(length // case.config.page_size for length in cached)])


def _behind_past(slots: IntArray, row: BatchRow, config: EngineConfig) -> IntArray:
    """What the last page of a row has left, where its draft begins; several branches begin on pages
    of their own.

    Source: sglang eagle_worker_common.py, prepare_for_draft (`page_size == 1 or topk == 1`).

    Args:
        slots: of the request, whole pages.
    """
    if config.spec_topk > 1:
        return _NONE
    pages = -(-row.seq_len // config.page_size)
    return slots[row.seq_len : pages * config.page_size][: config.spec_steps]


def _cut(arrays: list[IntArray], starts: list[int], stops: list[int]) -> IntArray:
    """`array[start:stop]` of each, one after the other."""
    if not arrays:
        return _NONE
    return np.concatenate([a[i:j] for a, i, j in zip(arrays, starts, stops, strict=True)])


def _offsets(lengths: list[int]) -> IntArray:
    return np.array([0, *accumulate(lengths)], dtype=np.int64)


def _in_group(batch: Batch, held: Sequence[WindowedPages], branches: IntArray) -> Batch:
    """The step as the layers of a further KV cache group see it, each of whose rows has `held`.

    Args:
        branches: slots of tokens that are drafted.
    """
    seq, cached = batch.seq_lens.tolist(), batch.cached_lens.tolist()
    slots, zeros = [each.slots for each in held], [0] * len(seq)
    none = Ragged(_NONE, _offsets(zeros))
    return replace(
        batch,
        slot_mapping=branches if batch.mode == "draft" else _cut(slots, cached, seq),
        kv_slots=Ragged(_cut(slots, zeros, seq), batch.kv_slots.offsets),
        pages=_pages([each.pages for each in held]),
        encoder_lens=ints(zeros),
        encoder_slots=none,
        encoder_tokens=none,
    )


def _pages(of_rows: Sequence[list[int]]) -> Ragged:
    pages = ints([page for row in of_rows for page in row])
    return Ragged(pages, _offsets([len(row) for row in of_rows]))


class Scheduler:
    """Walks the steps of one case and keeps who owns what."""

    def __init__(self, case: Case) -> None:
        config = case.config
        self.case, self.config = case, config
        self.further_groups = group_configs(config)[1:]
        self.requests: dict[int, _Request] = {}
        self.last_steps = {row.request: n for n, step in enumerate(case.steps) for row in step.rows}
        self.accepted, self.prompts = accepted_lens(case), prompt_lens(case)
        self.preempted: set[int] = set()
        self.adapter_pools = AdapterPools(config)
        order, seed = case.page_order, case.seed
        self.rows = FreeList(order, seed, FIRST_ROW, config.req_pool_size)
        self.states = RecurrentStates(case, self.accepted)
        self.pages = FreeList(order, seed, FIRST_PAGE, config.kv_pool_pages)
        # As many as pages, in another order.
        self.names = FreeList(OTHER_ORDER[order], seed, FIRST_PAGE, config.kv_pool_pages)
        self.prefix = _shared_prefix_pages(case)
        self.prefix_pages: list[int] = []
        self.prefix_names: list[int] = []
        self.where = ""
        longest, encoder = longest_lens(case)
        self.positions = np.arange(max(longest.values(), default=0))
        sampled = {request: length + 1 for request, length in longest.items()}
        self.tokens = token_streams(case, sampled, self.prefix * config.page_size, 0)
        self.encoder_tokens = (
            token_streams(case, encoder, 0, ENCODER) if config.max_encoder_len else {}
        )
        with_mrope = config.image_len > 0 or any(step.mrope for step in case.steps)
        self.mrope = token_streams(case, longest, 0, MROPE) if with_mrope else {}

    # Allocation

    def _take_pages(self, count: int, request: int) -> list[int]:
        if count > len(self.pages):
            raise OutOfPages(
                f"{self.where}: request {request} needs {count} more pages and "
                f"{len(self.pages)} of kv_pool_pages={self.config.kv_pool_pages} are free. Raise "
                "config.kv_pool_pages, shorten requests, or finish some."
            )
        return self.pages.take(count)

    def _take_names(self, count: int) -> list[int]:
        """Virtual numbers of as many pages; there are as many as pages."""
        return self.names.take(count) if self.config.virtual_pages else []

    def _add(self, row: BatchRow) -> _Request:
        config, request = self.config, row.request
        if not len(self.rows):
            raise InvalidCase(
                f"{self.where}: request {request} finds no free row of "
                f"req_pool_size={config.req_pool_size}. Finish a request before, or raise "
                "config.req_pool_size."
            )
        self.states.add(request)
        encoder_pages = self._take_pages(-(-row.encoder_len // config.page_size), request)
        return _Request(
            row=self.rows.take(1)[0],
            tokens=self.tokens[request],
            mrope=self.mrope.get(request, _NONE),
            shared=bool(self.prefix),
            pages=self._share_prefix(request),
            names=list(self.prefix_names),
            slots=_NONE,
            encoder_pages=encoder_pages,
            encoder_slots=slots_of(encoder_pages, config.page_size)[: row.encoder_len],
            # A request that ended may come back with a shorter encoder.
            encoder_tokens=self.encoder_tokens.get(request, _NONE)[: row.encoder_len],
            windowed=[WindowedPages(group) for group in self.further_groups],
        )

    def _share_prefix(self, request: int) -> list[int]:
        if self.prefix and not self.prefix_pages:
            self.prefix_pages = self._take_pages(self.prefix, request)
            self.prefix_names = self._take_names(self.prefix)
        return list(self.prefix_pages)

    def _reach(self, request: _Request, row: BatchRow) -> None:
        """Own pages up to `row.seq_len`; a row that got shorter keeps what it has."""
        missing = -(-row.seq_len // self.config.page_size) - len(request.pages)
        if missing > 0:
            request.pages += self._take_pages(missing, row.request)
            request.names += self._take_names(missing)
        if len(request.slots) != len(request.pages) * self.config.page_size:
            request.slots = slots_of(request.pages, self.config.page_size)
        for group in request.windowed:
            group.reach(row, self._take_pages, self.pages.give_back)

    def _finish(self, name: int) -> None:
        request = self.requests.pop(name)
        own = request.pages[len(self.prefix_pages) if request.shared else 0 :]
        windowed = [page for group in request.windowed for page in group.owned()]
        self.pages.give_back(own + request.encoder_pages + windowed)
        self.names.give_back(request.names[len(self.prefix_names) if request.shared else 0 :])
        self.rows.give_back([request.row])
        self.states.finish(name)
        if self.prefix_pages and not self.requests:
            self.pages.give_back(self.prefix_pages)
            self.names.give_back(self.prefix_names)
            self.prefix_pages, self.prefix_names = [], []

    def _close_holes(self, index: int) -> None:
        """A page of each group of each request moves to a free one: compaction behind a request
        that left.

        Source: sglang MultiEndedAllocator._flush moves pages into the holes of freed ones, and
        changes the table from virtual to physical numbers alone.
        """
        shared = len(self.prefix_pages)
        for name, request in self.requests.items():
            request.slots = self._moved(request.pages, shared, index + name, self.config)
            for group in request.windowed:
                group.slots = self._moved(group.pages, 0, index + name, group.config)

    def _moved(self, pages: list[int], shared: int, turn: int, config: EngineConfig) -> IntArray:
        """Slots of these pages behind the move of one of them, if it is owned and one is free."""
        place = shared + turn % max(len(pages) - shared, 1)
        if place < len(pages) and pages[place] != RESERVED_PAGE and len(self.pages):
            (found,) = self.pages.take(1)
            self.pages.give_back([pages[place]])
            pages[place] = found
        return slots_of(pages, config.page_size)

    # One step

    def step(self, index: int, step: ReplayStep) -> Batch:
        self.where = f"steps[{index}]"
        back = [name for name in step.finish if self.last_steps.get(name, -1) >= index]
        resumed = [row.request for row in step.rows if row.request in self.preempted | {*back}]
        self.preempted = (self.preempted | {*back}) - {*resumed}
        for name in step.finish:
            self._finish(name)
        if step.finish and self.config.virtual_pages:
            self._close_holes(index)
        live = []
        for row in step.rows:
            request = self.requests.get(row.request)
            if request is None:
                request = self.requests[row.request] = self._add(row)
            self._reach(request, row)
            live.append(request)
        branches = self._branch_slots(step, live)
        batch = self._batch(index, step, live, branches[0])
        if self.config.virtual_pages:
            named = [slots_of(request.names, self.config.page_size) for request in live]
            seq = [row.seq_len for row in step.rows]
            virtual = Ragged(_cut(named, [0] * len(seq), seq), batch.kv_slots.offsets)
            batch = replace(batch, virtual_slots=virtual)
        gone = [name for name in step.finish if name not in back]
        batch = replace(batch, finished=ints(gone), preempted=ints(back), resumed=ints(resumed))
        groups = tuple(
            _in_group(batch, [r.windowed[at] for r in live], slots)
            for at, slots in enumerate(branches[1:])
        )
        return replace(batch, more_groups=groups) if groups else batch

    def _batch(
        self, index: int, step: ReplayStep, live: list[_Request], branches: IntArray
    ) -> Batch:
        rows = step.rows
        seq = [row.seq_len for row in rows]
        new = [row.new_tokens for row in rows]
        cached = [row.seq_len - row.new_tokens for row in rows]
        zeros = [0] * len(rows)
        slots = [r.slots for r in live]
        lasting = [r.tokens for r in live]
        tokens = [self._drafted(index, row, r) for row, r in zip(rows, live, strict=True)]
        kv_offsets = _offsets(seq)
        kv_positions = _cut([self.positions] * len(rows), zeros, seq)
        parents = None
        if step.mode == "target_verify":
            parents, depths = draft_trees(self.case, index, rows)
            if self.config.spec_topk > 1:  # positions of a chain are right
                ends = kv_offsets[1:, None] - np.arange(self.config.draft_tokens, 0, -1)
                kv_positions[ends] = depths + (ints(seq) - self.config.draft_tokens)[:, None]
        encoder_lens, encoder_slots, encoder_tokens = self._encoders(live)
        bs = len(rows)
        if step.mode == "draft":
            input_ids, positions = branch_tokens(self.case, rows)
            slot_mapping = branches
            token_rows = np.repeat(np.arange(bs), self.config.spec_topk)
        else:
            input_ids, slot_mapping = _cut(tokens, cached, seq), _cut(slots, cached, seq)
            starts = kv_offsets.tolist()
            positions = _cut([kv_positions[i:] for i in starts[:-1]], cached, seq)
            token_rows = np.repeat(np.arange(bs), new)
        brings_mrope = step.mrope or self.config.image_len > 0
        with_mrope = brings_mrope and step.mode not in ("draft", "idle")
        kv_tokens = prompts = Ragged(_cut(tokens, zeros, seq), kv_offsets)
        if step.mode == "prefill":
            whole = [self.prompts.get((index, row.request), row.seq_len) for row in rows]
            prompts = Ragged(_cut(tokens, zeros, whole), _offsets(whole))
        return Batch(
            step=index,
            mode=step.mode,
            via=step.via,
            raw_bs=bs,
            num_tokens=len(input_ids),
            requests=ints([row.request for row in rows]),
            req_pool_indices=ints([r.row for r in live]),
            seq_lens=ints(seq),
            new_lens=ints(new),
            input_ids=input_ids,
            positions=positions,
            token_rows=token_rows,
            slot_mapping=slot_mapping,
            kv_slots=Ragged(_cut(slots, zeros, seq), kv_offsets),
            kv_tokens=kv_tokens,
            prompts=prompts,
            kv_positions=Ragged(kv_positions, kv_offsets),
            pages=_pages([r.pages for r in live]),
            encoder_lens=encoder_lens,
            encoder_slots=encoder_slots,
            encoder_tokens=encoder_tokens,
            tree_parents=parents,
            next_tokens=_cut(lasting, seq, [length + 1 for length in seq]),
            predicted=_NONE
            if step.mode == "draft"
            else _cut(lasting, [c + 1 for c in cached], [length + 1 for length in seq]),
            finished=_NONE,
            preempted=_NONE,
            resumed=_NONE,
            mrope=_cut([r.mrope for r in live], cached, seq) if with_mrope else None,
            **self.states.step(index, step),
            rank_sizes=ints([*rank_sizes(self.config, step)]),
            adapters=ints([self._adapter(row) for row in rows]),
            others_prefill=step.others_prefill,
            adapter_pools=self._adapter_pools(index, step),
            plain_tokens=int(self.config.draft_adapter),
            most_kept=ints([self._most_kept(index, row) for row in rows])
            if step.mode == "target_verify" and self.config.verify_budget == "cap_accept"
            else _NONE,
        )

    def _adapter(self, row: BatchRow) -> int:
        """That of the request; of a model that drafts by itself, the one that it drafts with."""
        drafts = self.config.draft_adapter and self.config.drafted_blocks != "none"
        return DRAFT_ADAPTER if drafts else row.adapter

    def _adapter_pools(self, index: int, step: ReplayStep) -> tuple[tuple[int, ...], ...]:
        if not self.config.max_loras:
            return ()
        needed = {row.adapter for row in step.rows}
        for rank, size in enumerate(rank_sizes(self.config, step)):
            if rank != self.config.dp_rank:  # ranks load what any of them needs
                needed.update(adapters_of_others(self.config, index, rank, size))
        return self.adapter_pools.step(index, needed)

    def _drafted(self, index: int, row: BatchRow, request: _Request) -> IntArray:
        """Tokens of a request at a step; in a verify, drafts that it rejects are others."""
        if self.config.drafted_blocks != "none":
            return with_placeholders(request.tokens, row.seq_len - row.new_tokens, row.seq_len)
        stays = self.accepted.get((index, row.request))
        # Behind a budget's last token drafts may be right, too.
        if stays is None or stays == self._most_kept(index, row):
            return request.tokens
        start = row.seq_len - row.new_tokens + stays
        return with_rejected(request.tokens, start, row.seq_len, row.request, self.case)

    def _most_kept(self, index: int, row: BatchRow) -> int:
        """Tokens that a budget lets stay of a row: those that its next step has of it, and maybe
        more; 0 without a budget."""
        if self.config.verify_budget != "cap_accept":
            return 0
        least = self.accepted.get((index, row.request), 1)
        chance = Chance(self.case.seed + 31 * index + 7 * row.request, BUDGET)
        return least + chance.below(row.new_tokens - least + 1)

    def _encoders(self, live: list[_Request]) -> tuple[IntArray, Ragged, Ragged]:
        if not self.config.max_encoder_len:
            none = np.zeros(len(live) + 1, dtype=np.int64)
            return none[1:], Ragged(_NONE, none), Ragged(_NONE, none)
        lengths = [len(request.encoder_slots) for request in live]
        offsets, zeros = _offsets(lengths), [0] * len(live)
        slots = _cut([request.encoder_slots for request in live], zeros, lengths)
        tokens = _cut([request.encoder_tokens for request in live], zeros, lengths)
        return ints(lengths), Ragged(slots, offsets), Ragged(tokens, offsets)

    def _branch_slots(self, step: ReplayStep, live: list[_Request]) -> list[IntArray]:
        """Slots of tokens that are drafted, for each KV cache group by row, branch and step; pages
        that are taken for them are free again behind the step."""
        groups = (self.config, *self.further_groups)
        if step.mode != "draft":
            return [_NONE for _ in groups]
        per_row = self.config.spec_topk * self.config.spec_steps
        found: list[IntArray] = []
        taken: list[int] = []
        for at, group in enumerate(groups):
            slots = []
            for row, request in zip(step.rows, live, strict=True):
                own = request.windowed[at - 1].slots if at else request.slots
                left = _behind_past(own, row, group)
                missing = -(-(per_row - len(left)) // group.page_size)
                pages = self._take_pages(missing, row.request)
                taken += pages
                slots.append(np.append(left, slots_of(pages, group.page_size))[:per_row])
            found.append(np.concatenate(slots) if slots else _NONE)
        self.pages.give_back(taken)
        return found
