"""Layers of latent attention, some of them behind a window, as a Dots model has them.

The engine's model stores a token's row by itself, with the slots that its own `_get_kv_write_loc`
gives, and lets a layer behind the window attend by `forward_swa_mla_absorbed` of the backend, past
`RadixAttention` (sglang models/dots3_common/modeling.py, `forward_absorb_core`). Projections, the
gate and norms are left out.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.row_mixing import with_mixed
from fuzzgraph.targets.offline.demands import demand_computable, demand_size
from fuzzgraph.targets.offline.second_layer import SecondLayer
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import FORWARD, AttentionModel, latent_parts
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["LatentWindowModel"]

_MODEL = "sglang.srt.models.dots3_common.modeling"
_CONTEXT = "sglang.srt.model_executor.forward_context"
_WHAT = "what attention computed"


class LatentWindowModel(AttentionModel):
    """Layers over all latent rows, and layers over those within the window."""

    def _attend_first(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        q, k, _ = self.qkv(input_ids, positions)
        return with_mixed(self._attend_stored(self.layer, q, k, forward_batch), self._config)

    def _attend_other(
        self, other: SecondLayer, input_ids: torch.Tensor, positions: torch.Tensor, batch: Any
    ) -> torch.Tensor:
        q, k, _ = other.qkv(input_ids, positions)
        return self._attend_stored(other.attend, q, k, batch)

    def _attend_stored(
        self, layer: Any, q: torch.Tensor, k: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Attention of one layer to rows that are stored before."""
        q_nope, q_rope, k_nope, k_rope = latent_parts(q, k, self._config)
        windowed = layer.sliding_window_size > 0
        _store(layer, k_nope, k_rope, forward_batch, windowed)
        if windowed:
            queries = torch.cat((q_nope, q_rope), dim=-1)
            backend: Any = engine_module(_CONTEXT).get_attn_backend()
            out = backend.forward_swa_mla_absorbed(queries, layer, forward_batch)
        else:
            parts = {"q_rope": q_rope, "k_rope": k_rope, "save_kv_cache": False}
            out = layer(q_nope, k_nope, k_nope, forward_batch, **parts)
        demand_size(out, len(q), self._attended_columns, _WHAT, FORWARD)
        demand_computable(out, _WHAT, FORWARD)
        attended: torch.Tensor = out.reshape(len(q), -1)
        return attended


def _store(
    layer: Any, k_nope: torch.Tensor, k_rope: torch.Tensor, forward_batch: Any, windowed: bool
) -> None:
    """As the engine's model stores them, where its own method says."""
    attention = engine_module(_MODEL).Dots3AttentionMLA
    loc = attention._get_kv_write_loc(Stub(use_swa=windowed), forward_batch)
    engine_module(_CONTEXT).get_token_to_kv_pool().set_mla_kv_buffer(layer, loc, k_nope, k_rope)
