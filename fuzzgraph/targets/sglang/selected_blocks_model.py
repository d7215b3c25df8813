"""A layer that sees all keys, then one whose queries see the blocks that an indexer selects.

Stood in for are the indexer's projections, with the norm and the rotation behind them: its queries
and keys are tables that `Content.index_queries` and `Content.index_keys` hold. All index heads have
the same queries. The engine's own backend stores index keys and selects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES, content_for
from fuzzgraph.reference.dense_layer import (
    DENSE_CONTENT,
    DENSE_OUTPUT,
    INDEX_KEYS,
    LAYER_STRAYS,
)
from fuzzgraph.targets.offline.demands import demand_computable, demand_size
from fuzzgraph.targets.offline.second_layer import SecondLayer
from fuzzgraph.targets.sglang.attention_model import (
    FORWARD,
    AttentionModel,
    Rope,
    Written,
    engine_layer,
    outputs_in,
)
from fuzzgraph.targets.sglang.stubs.sparse_pool import DENSE_LAYER, SPARSE_LAYER
from fuzzgraph.world import RESERVED_SLOT, Batch

__all__ = ["SelectedBlocksModel", "split_dense"]

_SELECTED = "what attention to the selected blocks computed"


class SelectedBlocksModel(AttentionModel):
    """Both layers of a token's embedding; the first one has weights, keys and values of its own."""

    full_layer = SPARSE_LAYER

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        super().__init__(config, device, rope)

        def on_device(table: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(table, device=device).copy_(table)

        own = content_for(config, DENSE_CONTENT)
        attend = engine_layer(config, own, device, layer_id=DENSE_LAYER)
        self._dense = SecondLayer(config, attend, on_device, own)
        content, dtype = content_for(config), DTYPES[config.dtype]
        tables = (*content.index_queries, *content.index_keys)
        found = [on_device(torch.from_numpy(table).to(dtype)) for table in tables]
        self.token_queries, self.place_queries, self.token_keys, self.place_keys = found
        self._pool: Any = None
        self._before: list[torch.Tensor] = []
        self._indexed: dict[str, torch.Tensor | None] = {}

    @property
    def layers(self) -> tuple[Any, ...]:
        return (self._dense.attend, self.layer)

    def use(self, pool: Any, allocator: Any) -> None:
        super().use(pool, allocator)
        self._pool = pool

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Attention of the first layer's columns, then the other's; `split_dense` splits them."""
        dense = self._dense.forward(input_ids, positions, forward_batch)
        idx_q = _rows(self.token_queries, input_ids, self.place_queries, positions)
        idx_k = _rows(self.token_keys, input_ids, self.place_keys, positions)
        heads = self._config.num_kv_heads
        self._indexed = {
            "idx_q": idx_q[:, None].expand(-1, heads, -1).contiguous(),
            "idx_k": idx_k[:, None],
            "idx_v": None,
        }
        return torch.cat((dense, super().attend(input_ids, positions, forward_batch)), dim=-1)

    def attend_heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward_batch: Any, **more: Any
    ) -> torch.Tensor:
        """As sglang minimax_m3.py, forward_core, calls it: heads apart, rows of one product."""
        config = self._config
        q = q.view(len(q), config.num_q_heads, config.head_dim)
        k, v = (each.view(len(q), config.num_kv_heads, config.head_dim) for each in (k, v))
        out: torch.Tensor
        _, out = self.layer(q, k, v, forward_batch, **self._indexed, **more)
        demand_size(out, len(q), self._attended_columns, _SELECTED, FORWARD)
        demand_computable(out, _SELECTED, FORWARD)
        return out

    def past(self, batch: Batch) -> Iterator[Written]:
        """Keys and values of the first layer, and index keys, of tokens that were there before."""
        kept = batch.cached_lens
        rows = np.repeat(np.arange(len(kept)), kept)
        inside = np.arange(len(rows)) - np.repeat(np.cumsum(kept) - kept, kept)
        at = batch.kv_slots.offsets[rows] + inside
        if not len(at):
            return
        tokens, places = batch.kv_tokens.values[at], batch.kv_positions.values[at]
        slots = torch.from_numpy(batch.kv_slots.values[at])
        by_token, by_place = content_for(self._config).index_keys
        keys = torch.from_numpy(np.hstack((by_token[tokens], by_place[places])))
        planes = content_for(self._config, DENSE_CONTENT).kv_planes(tokens, places)
        for buffer, values in zip(self._kept(), (keys[:, None], *planes), strict=True):
            yield _as_bytes(buffer), slots, _as_bytes(values.to(buffer.device, buffer.dtype))

    def _kept(self) -> tuple[torch.Tensor, ...]:
        """Index keys, and keys and values of the first layer: each [slots, heads, columns]."""
        main, index = self._pool.main_pool, self._pool.index_k_pool
        (keys,) = index.k_buffer
        planes = main.k_buffer[DENSE_LAYER], main.v_buffer[DENSE_LAYER]
        # FP8 lies there as bytes.
        return keys.view(index.dtype), *(plane.view(main.dtype) for plane in planes)

    def begin(self) -> None:
        """Take down what is there before a step."""
        self._before = [each.clone() for each in self._kept()]

    def left(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a step of `batch` has left there, as `reference.dense_layer` names it."""
        slots = torch.from_numpy(batch.slot_mapping).to(self.embed.device)
        strays = 0
        for now, before in zip(self._kept(), self._before, strict=True):
            changed = (_as_bytes(now) != _as_bytes(before)).flatten(1).any(1)
            changed[slots] = changed[RESERVED_SLOT] = False  # where new tokens and padded rows go
            strays += int(changed.sum())
        return {
            INDEX_KEYS: self._kept()[0].to(self.embed.dtype)[slots].flatten(1),
            LAYER_STRAYS: torch.full((batch.raw_bs,), strays),
        }


def _as_bytes(kept: torch.Tensor) -> torch.Tensor:
    """What can be compared and put in its place in FP8 too, of which torch can do neither."""
    return kept.view(torch.uint8) if kept.element_size() == 1 else kept


def _rows(
    by_token: torch.Tensor, tokens: torch.Tensor, by_place: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    return torch.cat((by_token.index_select(0, tokens), by_place.index_select(0, positions)), 1)


def split_dense(handed_out: Any, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what such a model gave a runner, by name."""
    shown = handed_out.next_token_logits
    columns = config.num_q_heads * config.v_head_dim
    dense = shown[:, :columns].reshape(-1, config.num_q_heads, config.v_head_dim)
    rest = type(handed_out)(next_token_logits=shown[:, columns:].contiguous())
    return {**outputs_in(rest, config), DENSE_OUTPUT: dense.clone()}
