"""DeepSeek V4's KV pool, whose constructor allocates for a whole model, for one layer.

Real are the class and its methods; here it has the buffers of one layer, and of the window of the
layer before it where that one has its compressed keys. A row holds numbers of
the case's dtype where the engine's holds FP8 with scales. Pages of the window are as large as all
others (sglang kv_cache_configurator.py, once model_runner_kv_cache_mixin.py, swa_page_size). Its
slots lie one page behind those of the request, so that a translation left out reads and writes
another slot.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.compressor_layer import compression_ratio
from fuzzgraph.kernel_models.mxfp4 import FP4_SCALE_BYTES
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW, IntArray

_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
_STATES = "sglang.srt.mem_cache.deepseek_v4_compress_state"
_COMPRESSORS = (
    "sglang.kernels.ops.attention.dsv4.compress",
    "sglang.jit_kernel.dsv4.compress",
)
_INDEX_WIDTH = 128
_INDEX_BYTES = _INDEX_WIDTH + 4
"""Of a key in the indexer's cache: values in FP8 and a scale."""
_V4_RATIOS, _V41_RATIOS = (4, 128), (1, 2)
"""Of the layers of DeepSeek V4 and of V4.1 (sglang DeepSeekV4TokenToKVPool.present_ratios)."""
_FP4_INDEX_BYTES = _INDEX_WIDTH // 2 + FP4_SCALE_BYTES
"""Of a key in the cache of V4.1's indexer: values in FP4 and the exponents of their scales."""


READING_LAYER = 1
"""Number of the layer under test where it reads the keys of a layer before, which is 0."""


def reads_layer_before(config: EngineConfig) -> bool:
    """Whether the layer under test has no compressed keys of its own."""
    return config.index_layer in ("candidates", "shared")


def compressed_pool(config: EngineConfig, device: str) -> Any:
    """The engine's pool of one layer, which `config` says how to compress.

    Beside what the engine reads it has `plane`, [slots, 1, D] the rows of the window of the layer
    under test by the request's slots, and for a layer that compresses `compressed` [slots, D] and,
    unless each token has a key, `states`; with groups of 1, 2 or 4 `index` [pages, bytes] of the
    indexer's keys as well, and with those of 4 their `index_states`.
    """
    base: Any = engine_module(_POOL).DeepSeekV4TokenToKVPool
    rows: Any = engine_module(_POOL).DeepSeekV4SingleKVPool
    dtype = getattr(torch, config.dtype)
    page, width = config.page_size, config.head_dim
    slots = (config.kv_pool_pages + FIRST_PAGE) * page
    ratio = compression_ratio(config)
    layers = 1 + READING_LAYER if reads_layer_before(config) else 1

    class Rows(rows):  # type: ignore[misc]
        """Pages of rows, as `create_buffer` would allocate them in FP8."""

        def __init__(self, count: int, page_size: int, layers: int = 1) -> None:
            self.page_size, self.kv_cache_total_dim = page_size, width
            self.start_layer = 0
            self.dtype = self.store_dtype = dtype
            shape = count // page_size, page_size * width
            self.kv_buffer = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]

    class IndexKeys(engine_module(_POOL).DeepSeekV4IndexerPool):  # type: ignore[misc, name-defined]
        """An indexer's keys, as `_create_buffer` would allocate them."""

        start_layer = 0
        uses_aiter_fp4_layout = False

        def __init__(self, pages: torch.Tensor, page_size: int) -> None:
            self.page_size = self.index_page_size = page_size
            self.index_head_dim = _INDEX_WIDTH
            self.index_k_with_scale_buffer = [pages]

    class Pool(base):  # type: ignore[misc]
        present_ratios = _V41_RATIOS if ratio in _V41_RATIOS else _V4_RATIOS
        # Options of some releases, off by default.
        _should_cache_swa = False
        request_window = None
        swa_req_ring_size = None
        uniform_fp8 = False
        _unified_kv = False
        layer_transfer_counter = None
        _stage_start = start_layer = 0

        def __init__(self) -> None:
            self._rings: dict[int, int] = {}
            self.page_size = page
            self.swa_page_size = self.swa_window_size = page
            self.kv_lora_rank = config.v_head_dim
            self.swa_kv_pool = Rows(slots + page, page, layers)
            if hasattr(rows, "kv_layout"):
                self.kv_layout = rows.kv_layout
            self.plane = self.swa_kv_pool.kv_buffer[-1].view(-1, 1, width)[page:]
            self.dtype = self.plane.dtype
            # The last entry answers for the slot -1 (sglang SWATokenToKVPoolAllocator).
            shifted = torch.arange(slots + 1, device=device) + page
            shifted[-1] = -1
            self.full_to_swa_index_mapping = shifted
            self.layer_mapping: list[Any] = [(ratio, None, None)]
            self._open_indexer()
            if ratio:
                extra = Rows(slots // ratio, page // ratio)
                # Layers that share keys have one place (sglang _init_compressed_layer_mapping).
                self.layer_mapping = [(ratio, 0, extra)] * layers
                self.compressed = extra.kv_buffer[0].view(-1, width)
                if ratio > 1:
                    self.states = self._states(width)
                if ratio == 4:
                    self.index_states = self._states(_INDEX_WIDTH)
                if ratio == 2:
                    self.compress_state_pools = [self._pairs()]

        def get_ring_size(self, compress_ratio: int) -> int:
            # The engine asks how many drafts its process has; a worker's sessions may differ.
            if compress_ratio not in self._rings:
                self._rings[compress_ratio] = super().get_ring_size(compress_ratio)
            return self._rings[compress_ratio]

        def _open_indexer(self) -> None:
            """The indexer's keys; V4.1 has them in smaller pages than a layer's."""
            size, entry = page // 4, _INDEX_BYTES
            if ratio in _V41_RATIOS:
                size, entry = engine_module(_POOL).DSV41_INDEX_PAGE_SIZE, _FP4_INDEX_BYTES
            pages = slots // (ratio or 4) // size
            self.index = torch.zeros(pages, size * entry, dtype=torch.uint8, device=device)
            pool = IndexKeys(self.index, size)
            self.index_pools = dict.fromkeys(_V41_RATIOS if ratio in _V41_RATIOS else (4,), pool)
            self.c4_indexer_kv_pool = self.index_pools.get(4)

        def _pairs(self) -> Any:
            """What the engine's CompressStatePool is to the backend, with the states of pairs."""
            kept = engine_module(_STATES).KVAndScore(self.states)
            return Stub(kv_score_buffer=kept, ring_size=self.get_ring_size(2))

        def _states(self, width: int) -> torch.Tensor:
            """[states, ...] what tokens leave for their group's sum, by ring."""
            ring = self.get_ring_size(compress_ratio=ratio)
            if states_by_request(ratio):
                count = (config.req_pool_size + FIRST_ROW) * ring
            else:
                count = (slots // page + 1) * ring
            parts = 4 if ratio == 4 else 2
            kept = torch.float32 if ratio == 2 else dtype
            return torch.zeros(count, parts * width, dtype=kept, device=device)

        @property
        def kv_buffer(self) -> list[torch.Tensor]:
            return [self.plane]

        def get_swa_key_bytes_per_token(self) -> int:
            return width

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"the KV pool's stand-in has no {name!r}, which this release reads"
            )

    return Pool()


def states_by_request(ratio: int) -> bool:
    """Whether states lie in a ring of their request; else in one of each page of the window."""
    if ratio == 2:
        return True
    planner: Any = compressor_module().CompressorDecodePlan.generate
    return ratio == 128 and "full_to_state" in inspect.signature(planner).parameters


def state_places(
    pool: Any, ratio: int, requests: IntArray, slots: IntArray, positions: IntArray
) -> IntArray:
    """Where the pool has the states of tokens, given their request's rows, slots and positions."""
    # sglang c_plan.cuh: a ring of the request, or one of each page of the window.
    ring = pool.get_ring_size(compress_ratio=ratio)
    if states_by_request(ratio):
        return np.asarray(requests * ring + positions % ring)
    window = pool.full_to_swa_index_mapping.cpu().numpy()[slots]
    return np.asarray(window // pool.swa_page_size * ring + window % ring)


def compressor_module() -> Any:
    """Where the release loads the compressor's compiled code."""
    return next(engine_module(name) for name in _COMPRESSORS if has_module(name))
