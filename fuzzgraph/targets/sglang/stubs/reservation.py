"""What the scheduler does before a verify: it reserves places in rows of `req_to_token`.

Real: the engine's `prepare_for_decode`, which says how many places, and the kernel that fills them;
how wide a row is. Stood in for: the allocator. What it hands out are slots of the pool that no
request is told apart by; where they lie in a request's own row, the slots of the case come in their
place, as if the allocator had handed out those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Reservation:
    """The scheduler's part of one session.

    Args:
        requests: the engine's request pool, whose rows the harness has written.
        context: of the server. Rows with more cached than a server has are left as they are.
    """

    def __init__(self, config: EngineConfig, requests: Any, device: str, context: int) -> None:
        self._most_cached = context - _ENDS_BEFORE_CONTEXT
        self._page, self._device = config.page_size, device
        self._table: torch.Tensor = requests.req_to_token
        self._slots = (config.kv_pool_pages + FIRST_PAGE) * config.page_size
        self._pool = requests
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
        """Of the batch, each with what is cached of it and nothing reserved so far.

        Args:
            top_ks: of how many tokens each draws.
        """
        width = self._table.shape[1]

        def reserved(length: int) -> int:
            return length if length <= self._most_cached else width

        def committed(length: int) -> int:
            # Behind more the engine reserves beyond the row, where drafts are in trees.
            return max(0, min(length, self._most_cached))

        return [
            Stub(
                rid=str(request),
                lora_id=None,
                token_type_ids=None,
                decode_batch_idx=0,
                kv=Stub(kv_allocated_len=reserved(length), kv_committed_len=committed(length)),
                kv_allocated_len=reserved(length),
                kv_committed_len=committed(length),
                sampling_params=Stub(top_k=top_k),
            )
            for request, length, top_k in zip(
                batch.requests, batch.cached_lens.tolist(), top_ks, strict=True
            )
        ]

    def known_lengths(self, lens: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Lengths on the host as the scheduler has left them, and those of rows that it was told
        shorter because no server has them."""
        cached = torch.from_numpy(batch.cached_lens)
        return torch.where(cached > self._most_cached, cached, lens)

    def reserve(self, batch: Batch, prepare: Callable[[], None]) -> None:
        """Have the engine reserve, by `prepare`, what the step needs and more.

        Each request's own row has the slots of the case behind it, but for places of the step that
        nothing was reserved for. What lies in other rows stays as the engine has left it.
        """
        rows = torch.from_numpy(batch.req_pool_indices).to(self._device)
        own = self._table[rows]
        columns = torch.arange(own.shape[1], device=self._device)
        starts, ends = (
            torch.from_numpy(lens).to(self._device)[:, None]
            for lens in (batch.cached_lens, batch.seq_lens)
        )
        needed = (columns >= starts) & (columns < ends) & (starts <= self._most_cached)
        self._table[rows] = own.masked_fill(needed, UNRESERVED)
        prepare()
        missing = needed & (self._table[rows] == UNRESERVED)
        kept = torch.where(columns < starts, self._table[rows], own)
        self._table[rows] = kept.masked_fill(missing, UNRESERVED)

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


def reservation(config: EngineConfig, runner: Any) -> Reservation | None:
    """That of EAGLE's scheduler; None where the server drafts otherwise, or the release reserves
    elsewhere (before 0.5.16)."""
    if config.modes != ("target_verify",) or not has_module(_SIZING):
        return None
    if runner.server_args.speculative_algorithm != "EAGLE":
        return None
    described = runner.model_config
    return Reservation(config, runner.req_to_token_pool, runner.device, described.context_len)
