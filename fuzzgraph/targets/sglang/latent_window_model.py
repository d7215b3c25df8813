"""Two layers of latent attention, one of them behind a window, as a Dots model has them.

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
from fuzzgraph.targets.offline.second_layer import SecondLayer, joined_layers
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import FORWARD, AttentionModel, latent_parts
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["LatentWindowModel"]

_MODEL = "sglang.srt.models.dots3_common.modeling"
_CONTEXT = "sglang.srt.model_executor.forward_context"
_WHAT = "what attention computed"


class LatentWindowModel(AttentionModel):
    """A layer over all latent rows, and one over those within the window."""

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        q, k, _ = self.qkv(input_ids, positions)
        first = with_mixed(self._attend_stored(q, k, forward_batch), self._config)
        assert isinstance(self._second, SecondLayer)
        q, k, _ = self._second.qkv(input_ids, positions)
        return joined_layers(first, self._attend_windowed(q, k, forward_batch))

    def _attend_stored(self, q: torch.Tensor, k: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        """The layer that sees all rows."""
        q_nope, q_rope, k_nope, k_rope = latent_parts(q, k, self._config)
        _store(self.layer, k_nope, k_rope, forward_batch, windowed=False)
        out = self.layer(
            q_nope,
            k_nope,
            k_nope,
            forward_batch,
            q_rope=q_rope,
            k_rope=k_rope,
            save_kv_cache=False,
        )
        return self._checked(out, len(q))

    def _attend_windowed(
        self, q: torch.Tensor, k: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """The layer behind the window."""
        assert isinstance(self._second, SecondLayer)
        layer: Any = self._second.attend
        q_nope, q_rope, k_nope, k_rope = latent_parts(q, k, self._config)
        _store(layer, k_nope, k_rope, forward_batch, windowed=True)
        queries = torch.cat((q_nope, q_rope), dim=-1)
        backend: Any = engine_module(_CONTEXT).get_attn_backend()
        return self._checked(
            backend.forward_swa_mla_absorbed(queries, layer, forward_batch), len(q)
        )

    def _checked(self, out: torch.Tensor, rows: int) -> torch.Tensor:
        demand_size(out, rows, self._attended_columns, _WHAT, FORWARD)
        demand_computable(out, _WHAT, FORWARD)
        return out.reshape(rows, -1)


def _store(
    layer: Any, k_nope: torch.Tensor, k_rope: torch.Tensor, forward_batch: Any, windowed: bool
) -> None:
    """As the engine's model stores them, where its own method says."""
    attention = engine_module(_MODEL).Dots3AttentionMLA
    loc = attention._get_kv_write_loc(Stub(use_swa=windowed), forward_batch)
    engine_module(_CONTEXT).get_token_to_kv_pool().set_mla_kv_buffer(layer, loc, k_nope, k_rope)
