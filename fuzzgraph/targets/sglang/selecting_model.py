"""One layer of sparse latent attention, whose queries see the keys that an indexer selects.

The engine's own indexer writes its key of each token and selects, by what it reads of metadata and
pool: `_store_index_k_cache`, where a release has it, and `_get_topk_paged`. Stood in for are its
projections, with the transform and the rotation behind them: queries and keys are tables that
`Content.index_queries` and `Content.index_keys` hold, those of a query in a head each. Weights of
heads are `Content.index_weights`, so that a row with another one's weights selects other keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import Content, content_for
from fuzzgraph.kernel_models.fp8 import SCALE_BYTES, pages_of_rows, quantised
from fuzzgraph.kernel_models.page_store import store_index_keys
from fuzzgraph.targets.sglang.attention_model import AttentionModel, Rope, Written
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.world import VOCAB, Batch

__all__ = ["SelectingModel", "indexer_module"]

_CONTEXT = "sglang.srt.model_executor.forward_context"
_INDEXERS = (
    "sglang.srt.layers.attention.dsa.dsa_indexer",
    "sglang.srt.layers.attention.nsa.nsa_indexer",
)
_DTYPE = torch.bfloat16
"""Of an indexer's keys before they are stored."""
_HEADS = 2
"""Of a query: one for what its token prefers, one for what its place does."""
_BLOCK = 128
"""Columns that share a scale."""


def indexer_module() -> Any:
    """The engine's module of the indexer."""
    return next(engine_module(name) for name in _INDEXERS if has_module(name))


class SelectingModel(AttentionModel):
    """A layer whose queries see the keys that the engine's indexer selects."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        rope: Rope = "apart",
        draft_layer: int = 0,
    ) -> None:
        super().__init__(config, device, rope, draft_layer)
        content = content_for(config)
        self._topk = config.index_topk or config.max_context_len
        self._page = config.page_size
        by_token, by_place = content.index_queries
        # The largest column of either head, and so its scale, is the same always; no key has it.
        largest = np.where(np.arange(by_token.shape[1]) < VOCAB, 0, by_token[:1])
        queries = _beside(by_token, np.zeros_like(by_place[:1])), _beside(largest, by_place)
        (token_queries, scale), (place_queries, _) = map(quantised, queries)
        self.token_queries = self._on_device(token_queries)
        self.place_queries = self._on_device(place_queries)
        self.token_weights, self.place_weights = (
            self._on_device(torch.from_numpy(signs * scale[0]).float()[:, None])
            for signs in content.index_weights
        )
        by_token, by_place = content.index_keys
        self.token_keys = self._on_device(torch.from_numpy(by_token).to(_DTYPE))
        self.place_keys = self._on_device(torch.from_numpy(by_place).to(_DTYPE))
        self.indexer: Any = None

    def _on_device(self, table: torch.Tensor) -> torch.Tensor:
        found = torch.empty(table.shape, dtype=table.dtype, device=self.embed.device)
        return found.copy_(table)

    def use(self, pool: Any, allocator: Any) -> None:
        """Give the pool the cache of index keys that the engine's pool of sparse attention has."""
        page, pages = self._page, len(pool.kv_buffer[0]) // self._page
        width = self.token_keys.shape[1] + self.place_keys.shape[1] + SCALE_BYTES
        self._pool = pool
        pool.index_page_size = page
        pool.index_k = torch.zeros(pages, page * width, dtype=torch.uint8, device=self.embed.device)
        pool.get_index_k_with_scale_buffer = lambda layer_id: pool.index_k
        self.indexer = _indexer(self._topk)

    def more(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> dict[str, Any]:
        """What DeepSeek's indexer selects, by the backend's own metadata."""
        backend: Any = getattr(forward_batch, "attn_backend", None)
        if backend is None and has_module(_CONTEXT):
            backend = engine_module(_CONTEXT).get_attn_backend()
        layer = self.layer.layer_id
        metadata: Any = backend.get_indexer_metadata(layer, forward_batch)
        self._store(_rows(self.token_keys, input_ids, self.place_keys, positions), forward_batch)
        queries = _rows(self.token_queries, input_ids, self.place_queries, positions)
        queries = queries.view(torch.float8_e4m3fn).view(len(queries), _HEADS, -1)
        weights = _rows(self.token_weights, input_ids, self.place_weights, positions)[..., None]
        topk = self.indexer._get_topk_paged(forward_batch, layer, queries, weights, metadata)
        return {"topk_indices": topk}

    def _store(self, keys: torch.Tensor, forward_batch: Any) -> None:
        if hasattr(self.indexer, "_store_index_k_cache"):
            self.indexer._store_index_k_cache(forward_batch, self.layer.layer_id, keys)
            return
        if not forward_batch.out_cache_loc.is_contiguous():  # 0.5.9 nsa_indexer.py, line 1045
            forward_batch.out_cache_loc = forward_batch.out_cache_loc.contiguous()
        slots = forward_batch.out_cache_loc
        store_index_keys(
            keys,
            self._pool.index_k,
            slots,
            page_size=self._page,
            dtype=_DTYPE,
            slot_dtype=slots.dtype,
        )

    def past(self, batch: Batch) -> Iterator[Written]:
        """The index keys of tokens that were there before."""
        kept = batch.cached_lens
        rows = np.repeat(np.arange(len(kept)), kept)
        inside = np.arange(len(rows)) - np.repeat(np.cumsum(kept) - kept, kept)
        at = batch.kv_slots.offsets[rows] + inside
        if not len(at):
            return
        by_token, by_place, scale = _stored(content_for(self._config))
        tokens, places = batch.kv_tokens.values[at], batch.kv_positions.values[at]
        keys = torch.from_numpy(np.hstack((by_token[tokens], by_place[places])))
        values, scales = pages_of_rows(self._pool.index_k, self._page)
        slots = batch.kv_slots.values[at]
        where = torch.from_numpy(slots // self._page), torch.from_numpy(slots % self._page)
        yield values, where, keys.to(values.device)
        yield scales, where, torch.full((len(at),), scale, device=scales.device)


@lru_cache(maxsize=32)
def _stored(content: Content) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], float]:
    """Bytes of an index key's halves, by token and by place, and the scale that all keys have."""
    by_token, by_place = content.index_keys
    half = by_token.shape[1]
    tokens, scale = quantised(_beside(by_token, by_place[:1]))
    places, _ = quantised(_beside(by_token[:1], by_place))
    return tokens[:, :half].numpy(), places[:, half:].numpy(), float(scale[0])


def _beside(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Rows of both beside each other; one of them may have a single row."""
    count = max(len(one), len(other))
    return np.hstack([np.broadcast_to(each, (count, each.shape[1])) for each in (one, other)])


def _rows(
    by_token: torch.Tensor, tokens: torch.Tensor, by_place: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    return torch.cat((by_token.index_select(0, tokens), by_place.index_select(0, positions)), 1)


def _indexer(topk: int) -> Any:
    """The engine's indexer with two heads, without the weights of its constructor."""
    module = indexer_module()
    base: Any = module.Indexer

    class Indexer(base):  # type: ignore[misc]
        index_topk = topk
        n_heads = _HEADS
        block_size = _BLOCK
        scale_fmt = None
        num_init_tokens = num_local_tokens = 0

        def __init__(self) -> None:
            self.sm_count = module.deep_gemm.get_num_sms()
            backends = getattr(module, "DSAPagedMQALogitsBackend", None)
            if backends is not None:
                self.paged_mqa_logits_backend = backends.resolve("auto")

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"the indexer's stand-in has no {name!r}, which this release reads"
            )

    return Indexer()
