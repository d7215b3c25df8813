"""One memory for all kinds of layers, whose pages have virtual numbers (`--enable-unified-memory`).

Servers have it for models with sliding windows beside full attention. Requests are listed by
virtual slots; each kind of layer has a table from virtual pages to its own physical ones, and the
engine's translator goes through them wherever a kernel needs slots. Pages of both kinds lie in one
buffer of bytes, so one physical number is a page of one kind at a time. The tables are kept here as
the allocator keeps them: an entry for each page of a live request, which follows the page where
compaction moves it, and -1 where a request has left or its window has passed. Up to 0.5.21 kernels
got physical pages times a factor, which is not driven. Sources: sglang
mem_cache/unified_memory_pool.py (init_unified_swa_pools), mem_cache/allocator/unified_hybrid_swa.py
(UnifiedSWATokenToKVPoolAllocator), unified_sub_pool.py (MultiEndedAllocator: bind, free, _flush).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.errors import NotInRelease
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.offline.storage_offsets import OffsetsFromAllocation
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.sliding_window import layers_of_kinds
from fuzzgraph.world import RESERVED_PAGE, TRAPS, Batch, IntArray

_POOL = "sglang.srt.mem_cache.unified_memory_pool"
_PLAN = "sglang.srt.mem_cache.kv_loc_plan"
"""From 0.5.22 on; then kernels get physical pages as they are."""
_TRANSLATOR = "sglang.srt.mem_cache.kv_index_translator"
_LISTED_BY_KERNELS = ("build_kv_read_table", "build_kv_read_table_packed")
"""Of the translator: for tensors of a CPU they go through the rows one by one instead."""
_ROW_ALIGN_BYTES = 16
"""Of the engine's ROW_ALIGN_BYTES (sglang mem_cache/layout/token_major.py)."""
_FREED = -1


def refused_virtual_pages(config: EngineConfig, can: Capabilities) -> str | None:
    """Why no server has the case's config with such a pool; None if one has. Asked without a
    release: what depends on one is `demand_unified_pool`'s.

    Args:
        can: what the target has; one without virtual pages says so by itself.
    """
    if not (config.virtual_pages and can.virtual_pages):
        return None
    if not config.swa_window:
        return "virtual_pages=True needs layers of two kinds: swa_window must be positive"
    if config.spec_topk > 1:
        return f"kv_cache_hook.py refuses spec_topk={config.spec_topk} with virtual_pages"
    counts = {config.layer_types.count(kind) for kind in set(config.layer_types)}
    if len(counts) > 1:
        return "pages of both kinds must be of one size here: layer_types needs as many of each"
    content = content_for(config)
    for shape in content.plane_shapes:
        row = int(np.prod(shape)) * content.storage_dtype.itemsize
        if row % _ROW_ALIGN_BYTES:
            return (
                f"unified_memory_pool.py refuses rows of {row} bytes, no multiple of"
                f" {_ROW_ALIGN_BYTES}"
            )
    return None


def demand_unified_pool() -> None:
    """Refuse a release whose kernels do not get physical pages as they are.

    Raises:
        NotInRelease: it is older than 0.5.22.
    """
    if not has_module(_PLAN):
        raise NotInRelease("virtual_pages=True is driven from sglang 0.5.22 on")


def _list_by_kernels() -> None:
    """Have page tables and lists of slots made by the engine's kernel in Triton, as on a GPU."""
    translator = engine_module(_TRANSLATOR)
    for name in _LISTED_BY_KERNELS:
        setattr(translator, name, tensors_claim_cuda(getattr(translator, name)))


def unified_pools(
    config: EngineConfig, slots: int, device: torch.device, dtype: torch.dtype
) -> tuple[Any, Any]:
    """The engine's KV pool of two kinds of layers, and its allocator, over one buffer.

    Args:
        slots: that each kind has, the reserved page included.
        dtype: of keys and values.
    """
    _list_by_kernels()
    module = engine_module(_POOL)
    heads = dict(
        head_num=config.num_kv_heads, head_dim=config.head_dim, v_head_dim=config.v_head_dim
    )
    kinds = layers_of_kinds(config)
    entry = module.MHASubPoolSpec(
        name="full",
        layer_num=len(kinds["full_attention_layer_ids"]),
        grow_direction="down",
        store_dtype=module._store_dtype_for(dtype),
        kv_cache_dtype=dtype,
        **heads,
    ).entry_bytes()
    with OffsetsFromAllocation():  # views of layers start at their place in the buffer
        bundle = module.init_unified_swa_pools(
            device=device.type,
            kv_cache_dtype=dtype,
            **heads,
            **{f"swa_{name}": value for name, value in heads.items()},
            page_size=config.page_size,
            start_layer=0,
            end_layer=sum(map(len, kinds.values())),
            **kinds,
            total_bytes=slots * entry,
            enable_memory_saver=False,
            need_sort=False,
            lazy_compaction=True,
        )
    return bundle.token_to_kv_pool, bundle.token_to_kv_pool_allocator


class PageTables:
    """The tables from virtual pages to physical ones of each kind of layer.

    Args:
        tables: the engine's own, int64 [virtual pages + 1], in the order of KV cache groups.
        page_size: tokens of a page.
    """

    def __init__(self, tables: Sequence[torch.Tensor], page_size: int) -> None:
        self._tables, self._page_size = tables, page_size
        self._owned: dict[int, IntArray] = {}
        for table in tables:
            for trap in TRAPS:  # as a page of somebody, so that a wrong read goes there and shows
                table[trap] = trap

    def of(self, batch: Batch) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(a table, virtual pages, their entries) for each thing that a step changes."""
        for request in (*batch.finished.tolist(), *batch.preempted.tolist()):
            pages = self._owned.pop(request, None)
            if pages is not None:
                freed = torch.from_numpy(pages)
                for table in self._tables:
                    yield table, freed, torch.full_like(freed, _FREED)
        assert batch.virtual_slots is not None
        for row, request in enumerate(batch.requests.tolist()):
            self._owned[request] = np.unique(batch.virtual_slots.row(row) // self._page_size)
        virtual = torch.from_numpy(batch.virtual_slots.values // self._page_size)
        for table, seen in zip(self._tables, batch.groups, strict=True):
            physical = seen.kv_slots.values // self._page_size
            yield (
                table,
                virtual,
                torch.from_numpy(np.where(physical == RESERVED_PAGE, _FREED, physical)),
            )
