"""One layer of DeepSeek V4's attention with known weights, and the past that it finds.

As the engine's model does, it hands a token's projection to the compressor, lets the indexer select
among the compressed keys, and attends. Every weight is known: a group's key is that of its first
token, because that one alone has weight in the sum of states; positions are added where the kernel
rotates; the indexer's scores are stood in for, since no case has more keys than it keeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.reference.geometry import COMPRESSED_WINDOW, compression_ratio
from fuzzgraph.row_mixing import with_mixed
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import AttentionModel
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compressed_pool import states_by_request
from fuzzgraph.world import Batch

_CONTEXT = "sglang.srt.model_executor.forward_context"
ENGINE_HEAD_DIM = 512
"""What the backend asserts, and takes the scale of its softmax from."""
_NO_WEIGHT = -10_000.0
"""A score whose exponential is 0 in every dtype."""
_INDEX_DIM = 128


class CompressedModel(AttentionModel):
    """A layer whose past is compressed as the config says."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self._ratio = compression_ratio(config)
        query = config.num_q_heads * config.head_dim
        self._keys = slice(query, query + config.head_dim)
        # The backend's scale follows from 512 columns; queries make up for the case's few.
        self._query_scale = (ENGINE_HEAD_DIM / config.head_dim) ** 0.5
        # Without weight: the reference has none.
        self.sink = torch.full((config.num_q_heads,), -torch.inf, device=device)
        self.ape = torch.full((2 * self._ratio, config.head_dim), _NO_WEIGHT, device=device)
        if self._ratio == 128:
            self.ape = self.ape[:128].contiguous()
        if self._ratio:
            self.ape[4 if self._ratio == 4 else 0] = 0.0  # the first token of a group
        self.compressor: Any = None

    def use(self, pool: Any) -> None:
        """Bind the layer to the pool that keeps what it compresses."""
        config = self._config
        self._pool = pool
        if not self._ratio:
            return
        positions = self.pos_embed[:, self._keys].float()
        self.compressor = Stub(
            ratio=self._ratio,
            is_in_indexer=False,
            head_dim=config.head_dim,
            rotate=False,
            ape=self.ape,
            norm=Stub(weight=torch.ones(config.head_dim), variance_epsilon=0.0),
            freqs_cis=torch.view_as_complex(positions.unflatten(1, (-1, 2)).contiguous()),
            compute_kv_score=lambda x, *_: self._states(x),
            get_state_pool=lambda *_: Stub(kv_score_buffer=Stub(kv_score=pool.states)),
        )
        self.indexer = Stub(
            layer_id=0,
            use_fp4_indexer=False,
            compressor=None,
            compute_weights=lambda x, **_: x.new_zeros((len(x), 1)),
            compute_q=self._indexer_query,
        )

    def _indexer_query(self, q_lora: torch.Tensor, positions: Any, *weights: Any) -> Any:
        query = q_lora.new_zeros((len(q_lora), 1, _INDEX_DIM))
        return (query, query[..., :1]) if weights else query

    def _states(self, keys: torch.Tensor) -> torch.Tensor:
        """What tokens leave for their group's sum: value and score, with groups of 4 both for the
        next group's sum as well."""
        scores = torch.zeros_like(keys)
        if self._ratio == 4:
            return torch.cat((keys + 1, keys, scores, scores), 1)  # another value for the next
        return torch.cat((keys, scores), 1)

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        config = self._config
        backend: Any = getattr(forward_batch, "attn_backend", None)
        if backend is None and has_module(_CONTEXT):
            backend = engine_module(_CONTEXT).get_attn_backend()
        embedded = self.embed.index_select(0, input_ids)
        packed = embedded + self.pos_embed.index_select(0, positions)
        q = packed[:, : self._keys.start] * self._query_scale
        k = packed[:, self._keys].contiguous()
        x = embedded[:, self._keys].contiguous()
        if self._ratio == 4:
            call_with_known(
                backend.forward_c4_indexer,
                x=x,
                q_lora=x,
                c4_indexer=self.indexer,
                forward_batch=forward_batch,
            )
        if self._ratio:
            backend.forward_core_compressor(x, forward_batch, 0, self.compressor)
        out: torch.Tensor = backend.forward(
            q=q.view(-1, config.num_q_heads, config.head_dim).contiguous(),
            k=k,
            v=k,
            layer=self.layer,
            forward_batch=forward_batch,
            compress_ratio=self._ratio,
            attn_sink=self.sink,
        )
        return with_mixed(out.flatten(1), config)

    # ---- the past

    def write_past(self, batch: Batch) -> None:
        """Put what earlier steps have left for this one where the engine keeps it.

        These are the keys of whole groups, and the states of the group that is not yet whole and of
        the one before it.
        """
        if not self._ratio:
            return
        content = content_for(self._config)
        for row, cached in enumerate(batch.cached_lens.tolist()):
            slots, tokens = batch.kv_slots.row(row), batch.kv_tokens.row(row)
            firsts = np.arange(cached // self._ratio) * self._ratio
            keys = content.kv_planes(tokens[firsts], firsts)[0].flatten(1)
            at = torch.from_numpy(slots[firsts + self._ratio - 1] // self._ratio)
            self._pool.compressed[at] = keys.to(self._pool.compressed.device)
            whole = cached - cached % self._ratio
            positions = np.arange(max(0, whole - self._ratio), cached)
            states = self._states(self.embed[torch.from_numpy(tokens[positions])][:, self._keys])
            request = int(batch.req_pool_indices[row])
            places = self._state_places(request, slots[positions], positions)
            self._pool.states[torch.from_numpy(places)] = states

    def _state_places(self, request: int, slots: Any, positions: Any) -> Any:
        # sglang c_plan.cuh: a ring of the request, or one of each page of the window.
        ring = self._pool.get_ring_size(compress_ratio=self._ratio)
        if states_by_request(self._ratio):
            return request * ring + positions % ring
        window = self._pool.full_to_swa_index_mapping.cpu().numpy()[slots]
        return window // COMPRESSED_WINDOW * ring + window % ring
