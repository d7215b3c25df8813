"""The KV pool of a model whose layers all attend to latent rows, some of them behind a window.

The engine's hybrid pool, as its `_build_hybrid_mla_swa_kv_pool` makes it (sglang mem_cache/
kv_cache_configurator.py): each kind of layer has a pool of latent rows of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.sliding_window import layers_of_kinds

__all__ = ["latent_window_pool"]


def latent_window_pool(
    config: EngineConfig, slots: int, widths: Mapping[str, int], **common: Any
) -> Any:
    """The engine's pool, with the layers of both kinds.

    Args:
        slots: of each of its two pools.
        widths: of a latent row, as the engine calls them.
        common: page size, dtype and device, as every pool of the engine takes them.
    """
    rows = engine_module("sglang.srt.mem_cache.memory_pool").MLATokenToKVPool
    dtype = common.pop("dtype")
    each = {**common, **widths, "enable_memory_saver": False}
    return engine_module("sglang.srt.mem_cache.swa_memory_pool").SWAKVPool(
        size=slots,
        size_swa=slots,
        page_size=common["page_size"],
        dtype=dtype,
        head_num=0,
        head_dim=0,
        **layers_of_kinds(config),
        device=common["device"],
        full_kv_pool_class=rows,
        swa_kv_pool_class=rows,
        full_kv_pool_kwargs=each,
        swa_kv_pool_kwargs=dict(each),
    )
