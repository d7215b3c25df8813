"""One layer of Qwen's sparse attention, whose queries see the groups that an indexer selects.

The engine's own indexer runs, `QSAIndexer`: projection, norms, rotation, the ring of keys of groups
that are not whole, compressed keys, selection. Its weights and its table of rotations are those of
`block_index`; a token's hidden state is one column for each pair of a token and a place in a group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fuzzgraph.block_index import (
    GROUP,
    HEADS,
    ROTATED,
    WIDTH,
    normed_keys,
    query_gain,
    raw_rows,
    rotations,
)
from fuzzgraph.case import EngineConfig
from fuzzgraph.memory.side_requests import SESSION_CPU
from fuzzgraph.targets.offline.cuda_on_cpu import ClaimsCuda
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import AttentionModel, Rope, Written, as_loaded
from fuzzgraph.targets.sglang.group_memory import GroupMemory
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.block_index_pool import describe_indexer
from fuzzgraph.world import VOCAB, Batch

__all__ = ["BlockSelectingModel"]

_INDEXER = "sglang.srt.layers.attention.qsa.qsa_indexer"
_CONTEXT = "sglang.srt.model_executor.forward_context"
_DTYPE = torch.bfloat16
"""Of an indexer's weights and keys."""


class BlockSelectingModel(AttentionModel):
    """A layer whose queries see the groups of keys that the engine's indexer selects."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        rope: Rope = "apart",
        draft_layer: int = 0,
    ) -> None:
        super().__init__(config, device, rope, draft_layer)
        inputs = np.arange(VOCAB * GROUP)
        self._projection = raw_rows(inputs // GROUP, inputs % GROUP).T
        self.index_inputs = torch.empty(len(inputs), len(inputs), dtype=_DTYPE, device=device)
        self.index_inputs.copy_(torch.eye(len(inputs)))
        self._pool: Any = None
        self._memory: GroupMemory
        self.indexer: Any = None

    def use(self, pool: Any, allocator: Any) -> None:
        """Bind the layer to the pool, and give it the engine's indexer."""
        self._pool = pool
        self._memory = GroupMemory(pool, self.layer.layer_id, self._config)
        device = self.embed.device
        described = Stub(hidden_size=len(self.index_inputs))
        describe_indexer(described, self._config)
        # Every position of a query, and those of padded rows.
        table = torch.from_numpy(rotations(self._config.max_context_len + ROTATED)).float()
        rope = Stub(
            rotary_dim=ROTATED,
            is_neox_style=True,
            cos_sin_cache=torch.empty_like(table, device=device).copy_(table),
        )
        with as_loaded(device, _DTYPE):
            indexer = _indexer()(config=described, layer_id=self.layer.layer_id, rotary_emb=rope)
        _load(indexer.index_qk_proj.weight, torch.from_numpy(self._projection))
        _load(indexer.q_layernorm.weight, torch.from_numpy(query_gain() - 1))
        _load(indexer.k_layernorm.weight, torch.zeros(WIDTH))
        self.indexer = indexer

    def more(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> dict[str, Any]:
        """The tokens that the engine's indexer selects, by the backend's own metadata.

        Nothing in an idle batch, whose layers do not attend (sglang qwen4_exp.py, `forward` of the
        layer).
        """
        if forward_batch.forward_mode.is_idle():
            return {}
        backend: Any = engine_module(_CONTEXT).get_attn_backend()
        metadata = backend.get_indexer_metadata(self.layer.layer_id, forward_batch)
        hidden = self.hidden_of(input_ids, positions)
        return {"topk_indices": self.selected(hidden, positions, forward_batch, metadata)}

    def hidden_of(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states, of which the indexer's projection makes its queries and keys."""
        rows = input_ids.long() * GROUP + positions.long() % GROUP
        return self.index_inputs.index_select(0, rows)

    def selected(
        self, hidden: torch.Tensor, positions: torch.Tensor, forward_batch: Any, metadata: Any
    ) -> torch.Tensor:
        """What the engine's indexer selects, by the kernels that it has on CUDA."""
        with _as_on_cuda(hidden):
            found: torch.Tensor = self.indexer.forward_cuda(
                hidden, positions, forward_batch, metadata
            )
        return found

    def past(self, batch: Batch) -> Iterator[Written]:
        """The compressed keys of whole groups, and the ring of each request's last one."""
        layer, pool = self.layer.layer_id, self._pool
        compressed = pool.get_qsa_compressed_k_buffer(layer)
        ring, ring_positions = pool.get_qsa_key_state_buffer(layer), pool.qsa_rope_position_buffer
        for row, cached in enumerate(batch.cached_lens.tolist()):
            slots, tokens = batch.kv_slots.row(row), batch.kv_tokens.row(row)
            groups = cached // GROUP
            firsts = np.arange(groups) * GROUP
            keys = normed_keys(tokens[: groups * GROUP].reshape(groups, GROUP), firsts)
            where = torch.from_numpy(slots[firsts] // GROUP)
            yield compressed, where, torch.from_numpy(keys)[:, None].to(compressed.dtype)
            kept = np.arange(groups * GROUP, cached)
            raw = raw_rows(tokens[kept], kept % GROUP)[:, HEADS * WIDTH :]
            places = torch.from_numpy(batch.req_pool_indices[row] * GROUP + kept % GROUP)
            yield ring, places, torch.from_numpy(raw)[:, None].to(ring.dtype)
            yield ring_positions, places, torch.from_numpy(kept)[:, None].expand(-1, 3)

    # What a step leaves, as `LeavesKeys` asks for it

    def begin(self) -> None:
        """Take down what is there before a step."""
        self._memory.begin()

    def left(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a step of `batch` has left there, as `reference.group_keys` names it."""
        return self._memory.outputs(batch)


def _load(parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    parameter.data.copy_(values)


def _as_on_cuda(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Inside, the indexer takes the kernels that it has on CUDA."""
    return contextlib.nullcontext() if tensor.is_cuda else ClaimsCuda()


def _indexer() -> Any:
    """The engine's indexer, which selects as few groups as a case says."""
    engine: Any = engine_module(_INDEXER).QSAIndexer

    class Indexer(engine):  # type: ignore[misc]
        @staticmethod
        def _validate_config(config: Any) -> None:
            """The kernels alone are built for 512 and 2048."""

        def _rope_axis_map(self, device: Any) -> Any:
            """It is made on the host and taken to `x.device`, an object that names no side on a CPU
            (see `memory.side_requests`)."""
            return super()._rope_axis_map(SESSION_CPU if device.type == "cpu" else device)

    return Indexer
