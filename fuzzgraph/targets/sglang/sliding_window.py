"""A second layer with a sliding window, whose KV has a pool of its own, as sglang serves one.

The engine's hybrid pool is two: one of the layers that see all keys, and one of those behind the
window. Requests are listed by slots of the first; a map gives the slot of the second for each, and
the allocator keeps it: it puts an entry in with each token, that of a draft as well, and takes it
back to 0 when a request leaves, its window has passed the token, or drafts are done with. A window
of w tokens, the query's own included, is `swa_window` + 1; the engine says `sliding_window_size`
for w - 1 (sglang models/gemma2.py, get_attention_sliding_window_size). Sources: sglang
mem_cache/swa_memory_pool.py (SWAKVPool), mem_cache/allocator/swa.py (SWATokenToKVPoolAllocator; up
to 0.5.12 in the former).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.world import Batch, IntArray

FULL_LAYER = 0
_MODELS = "sglang.srt.configs.model_config"
_ARCHITECTURE = "GptOssForCausalLM"
"""A model whose configuration names the kind of each layer, in every release."""
_POOL = "sglang.srt.mem_cache.swa_memory_pool"
_ALLOCATOR = "sglang.srt.mem_cache.allocator.swa"


def layers_of_kinds(config: EngineConfig) -> dict[str, list[int]]:
    """Numbers of the layers behind the window and of those that see all keys, as the engine's model
    configuration finds them and hands them to its pools."""
    described = Stub(
        num_hidden_layers=len(config.layer_types) or 2,
        layer_types=config.layer_types or ("full_attention", "sliding_attention"),
    )
    windowed, full = call_with_known(
        engine_module(_MODELS).get_hybrid_layer_ids,
        model_architectures=[_ARCHITECTURE],
        num_hidden_layers=described.num_hidden_layers,
        hf_text_config=described,
    )
    return {"swa_attention_layer_ids": windowed, "full_attention_layer_ids": full}


def window_pool(config: EngineConfig, slots: int, **common: Any) -> Any:
    """The engine's hybrid KV pool, with the layers of both kinds.

    Args:
        slots: of each of its two pools.
        common: what every pool of the engine takes.
    """
    kind = engine_module(_POOL).SWAKVPool
    if "enable_kvcache_transpose" in inspect.signature(kind).parameters:  # up to 0.5.13
        common["enable_kvcache_transpose"] = False
    return kind(
        size=slots,
        size_swa=slots,
        **layers_of_kinds(config),
        head_num=config.num_kv_heads,
        head_dim=config.head_dim,
        v_head_dim=config.v_head_dim,
        **common,
    )


def window_allocator(config: EngineConfig, pool: Any, device: torch.device) -> Any:
    """The engine's allocator of such a pool, which makes the map between its slots."""
    module = engine_module(_ALLOCATOR if has_module(_ALLOCATOR) else _POOL)
    return call_with_known(
        module.SWATokenToKVPoolAllocator,
        size=pool.size,
        size_swa=pool.size_swa,
        page_size=config.page_size,
        dtype=pool.dtype,
        device=device.type,
        kvcache=pool,
        need_sort=False,
    )


class WindowSlots:
    """The map from slots of the first pool to those of the window's, as the allocator keeps it.

    Args:
        mapping: the engine's own, int64 [slots].
    """

    def __init__(self, mapping: torch.Tensor) -> None:
        self._mapping = mapping
        self._owned: dict[int, IntArray] = {}
        self._drafted: IntArray = np.empty(0, dtype=np.int64)

    def of(self, batch: Batch) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(the map, slots of the first pool, their entries) for each thing that a step changes."""
        for request in (*batch.finished.tolist(), *batch.preempted.tolist()):
            slots = self._owned.pop(request, None)
            if slots is not None:
                freed = torch.from_numpy(slots)
                yield self._mapping, freed, torch.zeros_like(freed)
        done = torch.from_numpy(self._drafted)
        yield self._mapping, done, torch.zeros_like(done)
        for row, request in enumerate(batch.requests.tolist()):
            self._owned[request] = batch.kv_slots.row(row)
        window = batch.more_groups[0]
        yield self._mapping, *_pair(batch.kv_slots.values, window.kv_slots.values)
        self._drafted = batch.slot_mapping if batch.mode == "draft" else self._drafted[:0]
        if len(self._drafted):
            yield self._mapping, *_pair(self._drafted, window.slot_mapping)


def _pair(slots: IntArray, entries: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(slots), torch.from_numpy(entries)
