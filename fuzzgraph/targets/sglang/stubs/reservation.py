"""What the scheduler does before a verify: it reserves places in rows of `req_to_token`.

Real: the engine's `prepare_for_decode`, which says how many places, and the kernel that fills them;
how wide a row is. Stood in for: the allocator. What it hands out are slots of the pool that no
request is told apart by; where they lie in a request's own row, the slots of the case come in their
place, as if the allocator had handed out those.

A request keeps from step to step what was reserved for it and not used, and the engine's own count
of that. How much of it is committed the scheduler learns a step late, as where steps overlap
(sglang 0.5.23 allocation_sizing.py, get_alloc_reserve_per_decode).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.world import FIRST_PAGE, Batch

_SIZING = "sglang.srt.mem_cache.allocation_sizing"
_EAGLE = "sglang.srt.speculative.eagle_utils"
BLOCK_ALGORITHMS = ("DFLASH", "DSPARK")
_ENDS_BEFORE_CONTEXT = 4
"""Tokens that a request has less cached than the context, before its last step (sglang 0.5.23
tp_worker.py and scheduler.py, max_req_len)."""
_LIST_KEYS = ("flashinfer", "triton")
"""Backends that list keys, as many as there are. What those with tables of pages do behind the
context is known, see reports/findings/sglang-verify-past-context.md."""
UNRESERVED = -1
"""At a place of a request's own row that nothing was reserved for."""


def block_context(config: EngineConfig, backend: str) -> int:
    """The context of a server that verifies blocks, in tokens: a block of more than four tokens
    ends behind it."""
    if config.drafted_blocks != "none" or backend not in _LIST_KEYS:
        return config.max_context_len
    return config.max_context_len - max(0, config.draft_tokens - _ENDS_BEFORE_CONTEXT)


def columns_of_rows(context: int, server_args: Any) -> int:
    """Columns of `req_to_token`, as the engine sizes rows for the drafts that it reserves; 0 where
    the release has no such rule of its own (before 0.5.16)."""
    if server_args.speculative_algorithm not in (*BLOCK_ALGORITHMS, "EAGLE"):
        return 0
    if not has_module(_SIZING):
        return 0
    sizing = engine_module(_SIZING).get_req_to_token_extra_context_len
    asked = [server_args] if sizing.__code__.co_argcount else []  # up to 0.5.17
    return context + int(sizing(*asked))


@dataclass(frozen=True, slots=True)
class _Held:
    """What a request has of its row."""

    row: int
    cached: int
    """Tokens that it had at its last step."""
    allocated: int
    """As the engine counts."""
    places: torch.Tensor
    """[columns of the row] whether the engine has filled a place for this request."""


class Reservation:
    """The scheduler's part of one session.

    Args:
        requests: the engine's request pool, whose rows the harness has written.
        context: of the server. Rows with more cached than a server has are left as they are.
    """

    def __init__(self, config: EngineConfig, requests: Any, device: str, context: int) -> None:
        self._most_cached = context - _ENDS_BEFORE_CONTEXT
        self._accepted = config.draft_tokens
        """The most tokens that a verify brings a request."""
        self._page, self._device = config.page_size, device
        self._table: torch.Tensor = requests.req_to_token
        self._slots = (config.kv_pool_pages + FIRST_PAGE) * config.page_size
        self._pool = requests
        self._batch: Batch | None = None
        """Of the step that was come to last."""
        self._requests: list[Any] = []
        """Of that batch, as the engine sees them."""
        self._starts: dict[int, _Held] = {}
        """What requests have before anything is reserved for that step, and behind it."""
        self._left: dict[int, _Held] = {}
        allocator = Stub(
            page_size=config.page_size,
            alloc=self._handed_out,
            alloc_extend=lambda *given, **_: self._handed_out(given[5]),
            available_size=lambda: self._slots,
            get_extend_allocation_demand=lambda *_, conservative_num_tokens, **__: (
                conservative_num_tokens
            ),
        )
        self._cache = Stub(
            token_to_kv_pool_allocator=allocator,
            is_chunk_cache=lambda: True,
            supports_prefix_sharing=lambda: False,
            supports_swa=lambda: False,
        )

    def _handed_out(self, count: int) -> torch.Tensor:
        """Slots from the pool's end on."""
        places = torch.arange(count, device=self._device)
        return self._slots - 1 - places % (self._slots - self._page)

    def fields(self) -> dict[str, Any]:
        """Of the scheduler's batch, by which the engine reserves."""
        return {
            "hisparse_coordinator": None,
            "req_to_token_pool": self._pool,
            "token_to_kv_pool_allocator": self._cache.token_to_kv_pool_allocator,
            "tree_cache": self._cache,
        }

    def requests(self, batch: Batch, top_ks: Sequence[int]) -> list[Any]:
        """Of the batch, as the scheduler hands them to the engine.

        Args:
            top_ks: of how many tokens each draws.
        """
        if batch is not self._batch:
            self._begin(batch)
        for request, top_k in zip(self._requests, top_ks, strict=True):
            request.sampling_params = Stub(top_k=top_k)
        return self._requests

    def _begin(self, batch: Batch) -> None:
        """Come to a step of the same case, or to another case's first one."""
        follows = self._batch is not None and self._batch.step < batch.step
        ended = {*batch.finished.tolist(), *batch.preempted.tolist(), *batch.resumed.tolist()}
        past = self._left if follows else {}
        self._batch = batch
        self._starts = {name: held for name, held in past.items() if name not in ended}
        self._requests = []
        names, rows = batch.requests.tolist(), batch.req_pool_indices.tolist()
        for name, row, cached in zip(names, rows, batch.cached_lens.tolist(), strict=True):
            before = self._starts.get(name)
            if before is None or before.row != row or not self._reached(before, cached):
                before = self._prefilled(row, cached)
            self._starts[name] = replace(before, cached=cached)
            self._requests.append(self._described(name, before.allocated, before.cached))

    def _reached(self, before: _Held, cached: int) -> bool:
        """Whether a request may have so many tokens a step later."""
        most = min(before.cached + self._accepted, self._most_cached)
        return before.cached <= cached <= most

    def _prefilled(self, row: int, cached: int) -> _Held:
        """A request that has its prompt and nothing else."""
        width = self._table.shape[1]
        allocated = cached if cached <= self._most_cached else width
        places = torch.zeros(width, dtype=torch.bool, device=self._device)
        return _Held(row, cached, allocated, places)

    def _described(self, name: int, allocated: int, committed: int) -> Any:
        # Behind more the engine reserves beyond the row, where drafts are in trees.
        committed = max(0, min(committed, self._most_cached))
        return Stub(
            rid=str(name),
            lora_id=None,
            token_type_ids=None,
            seqlen=committed,
            decode_batch_idx=0,
            kv=Stub(kv_allocated_len=allocated, kv_committed_len=committed),
            kv_allocated_len=allocated,
            kv_committed_len=committed,
        )

    def reserve(self, batch: Batch, prepare: Callable[[], None]) -> None:
        """Have the engine reserve, by `prepare`, what the step needs and more.

        Each request's own row has the slots of the case behind it, but for places of the step that
        nothing was reserved for. What lies in other rows stays as the engine has left it.

        Args:
            prepare: takes the requests that `requests` has given.
        """
        starts = [self._starts[name] for name in batch.requests.tolist()]
        for request, held in zip(self._requests, starts, strict=True):
            # The step may have run before, in another way.
            request.kv.kv_allocated_len = request.kv_allocated_len = held.allocated
        rows = torch.from_numpy(batch.req_pool_indices).to(self._device)
        own = self._table[rows]
        columns = torch.arange(own.shape[1], device=self._device)
        cached, ends = (
            torch.from_numpy(lens).to(self._device)[:, None]
            for lens in (batch.cached_lens, batch.seq_lens)
        )
        behind = (columns >= cached) & (cached <= self._most_cached)
        filled = torch.stack([held.places for held in starts])
        self._table[rows] = own.masked_fill(behind & ~filled, UNRESERVED)
        prepare()
        table = self._table[rows]
        filled = filled | (behind & (table != UNRESERVED))
        kept = torch.where(columns < cached, table, own)
        missing = behind & ~filled & (columns < ends)
        self._table[rows] = kept.masked_fill(missing, UNRESERVED)
        self._left = self._starts | {
            name: replace(held, allocated=_allocated(request, held), places=places)
            for name, request, held, places in zip(
                batch.requests.tolist(), self._requests, starts, filled, strict=True
            )
        }

    def reserve_drafts(self, batch: Batch) -> None:
        """What EAGLE's worker has the scheduler do before a verify."""
        given = Stub(
            **self.fields(),
            batch_size=lambda: batch.raw_bs,
            device=self._device,
            maybe_evict_swa=lambda: None,
            req_pool_indices=torch.from_numpy(batch.req_pool_indices).to(self._device),
            reqs=self.requests(batch, [1] * batch.raw_bs),
            sampling_info=Stub(penalizer_orchestrator=Stub(is_required=False)),
            seq_lens=torch.from_numpy(batch.cached_lens).to(self._device),
            seq_lens_cpu=torch.from_numpy(batch.cached_lens),
        )
        self.reserve(batch, lambda: engine_module(_EAGLE).eagle_prepare_for_decode(given))


def _allocated(request: Any, before: _Held) -> int:
    """As the engine counts it behind a step."""
    of_memory: int = request.kv.kv_allocated_len
    of_request: int = request.kv_allocated_len  # where releases have it that know no `kv`
    return of_request if of_memory == before.allocated else of_memory


def reservation(config: EngineConfig, runner: Any) -> Reservation | None:
    """That of EAGLE's scheduler; None where the server drafts otherwise, or the release reserves
    elsewhere (before 0.5.16)."""
    if config.modes != ("target_verify",) or not has_module(_SIZING):
        return None
    if runner.server_args.speculative_algorithm != "EAGLE":
        return None
    described = runner.model_config
    return Reservation(config, runner.req_to_token_pool, runner.device, described.context_len)
