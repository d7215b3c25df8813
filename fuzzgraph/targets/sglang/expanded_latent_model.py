"""Latent attention whose prompts expand latent rows into the keys and values of each head.

The engine's own attention of Sarvam's models (sglang models/sarvam_moe.py, SarvamMoEMLAAttention),
which on FlashAttention 3 asks for logsumexps: new tokens attend to each other, then to chunks of
what was cached, and the engine merges the parts (deepseek_common forward_mha.py,
`_chunked_prefix_attn_mha`). Of projections and norms only the one that expands is kept. It gives
each head the columns of a latent row in orders of its own, for keys and for values: queries come in
that order and outputs are put back, so that what attention defines is that of the latent rows,
exactly, and a mix-up of heads, of keys with values or of columns shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.kernel_models.merge import merge_state_v2
from fuzzgraph.row_mixing import with_mixed
from fuzzgraph.targets.offline.demands import demand_computable, demand_size
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.attention_model import (
    FORWARD,
    AttentionModel,
    FullPrefillModel,
    engine_layer,
)
from fuzzgraph.targets.sglang.release import engine_module, has_module

__all__ = [
    "EXPANDS",
    "ExpandedLatentModel",
    "ExpandedPrefillModel",
    "give_merges",
    "on_cuda",
]

EXPANDS = "sglang.srt.models.sarvam_moe"
_MERGES = (
    EXPANDS,
    "sglang.srt.models.deepseek_common.attention_forward_methods.forward_mha",
    "sglang.srt.layers.attention.merge_state",
)
"""Where releases look the merge of two parts up, and ask whose GPU it is."""
_WHAT = "what attention computed"


def give_merges() -> None:
    """Have the model find the compiled merge of two parts, as on a server with CUDA.

    Where a width is none of the compiled kernel's, releases from 0.5.20 on launch one of Triton.
    """
    for name in filter(has_module, _MERGES):
        put_model(engine_module(name), "merge_state_v2", merge_state_v2)


@contextlib.contextmanager
def on_cuda() -> Iterator[None]:
    """Around the engine's code: the model expands and merges as on a server with CUDA."""
    modules = [engine_module(name) for name in _MERGES if has_module(name)]
    with replaced_names(modules, {"_is_cuda": True}):
        yield


class ExpandedLatentModel(AttentionModel):
    """One layer of the engine's `SarvamMoEMLAAttention`."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device)
        heads, rank = config.num_q_heads, config.v_head_dim
        self._keys = _orders(heads, rank, first=1).to(device)
        self._values = _orders(heads, rank, first=heads + 1).to(device)
        self._back = self._values.argsort(-1)
        own_heads = msgspec.structs.replace(config, num_kv_heads=heads)
        number = self.layer.layer_id
        expanded = engine_layer(own_heads, content_for(config), device, layer_id=number)
        self.expanding = self.engine_attention(expanded)

    @property
    def companions(self) -> tuple[Any, ...]:
        return (self.expanding.attn_mha,)

    def _attend_first(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        q, k, _ = self.qkv(input_ids, positions)
        hidden = torch.cat((self._as_expanded(q), k), -1)
        out = self.expanded_attention(positions, hidden, forward_batch)
        demand_size(out, len(q), self._attended_columns, _WHAT, FORWARD)
        demand_computable(out, _WHAT, FORWARD)
        return with_mixed(self._as_latent(out), self._config)

    def _as_expanded(self, q: torch.Tensor) -> torch.Tensor:
        """Queries of the latent rows -> of the keys that these are expanded to."""
        heads = q.view(-1, self._config.num_q_heads, self._config.head_dim)
        rank = self._config.v_head_dim
        order = self._keys.expand(len(heads), -1, -1)
        return torch.cat((heads[..., :rank].gather(-1, order), heads[..., rank:]), -1).flatten(1)

    def expand(self, latent: torch.Tensor) -> torch.Tensor:
        """[T, heads * (keys + values)] of normed latent rows [T, rank]."""
        columns = torch.cat((self._keys, self._values), -1).flatten()
        return latent[:, columns]

    def _as_latent(self, out: torch.Tensor) -> torch.Tensor:
        """Outputs over expanded values -> over the latent rows."""
        heads = out.view(-1, self._config.num_q_heads, self._config.v_head_dim)
        return heads.gather(-1, self._back.expand(len(heads), -1, -1)).flatten(1)

    # What other models do otherwise

    def engine_attention(self, expanded: Any) -> Any:
        """The engine's layer, with projections that hand on what the harness knows.

        Its constructor reads a model's description and makes layers of weights. A token's hidden
        state is its query and its latent row, one behind the other.

        Args:
            expanded: the layer that attends to expanded keys and values.
        """
        return self.without_weights(engine_module(EXPANDS).SarvamMoEMLAAttention, expanded)

    def expanded_attention(
        self, positions: torch.Tensor, hidden: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """What the engine's layer gives for these hidden states."""
        out: torch.Tensor = self.expanding.forward(positions, hidden, forward_batch)
        return out

    def without_weights(self, kind: type[Any], expanded: Any, **more: Any) -> Any:
        """A layer of this class with what its constructor gives it beside weights."""
        layer, config = object.__new__(kind), self._config
        torch.nn.Module.__init__(layer)
        width = config.num_q_heads * config.head_dim
        rank, heads = config.v_head_dim, config.num_q_heads
        has = {
            "num_heads": heads,
            "num_local_heads": heads,
            "kv_lora_rank": rank,
            "q_lora_rank": None,
            "qk_nope_head_dim": rank,
            "qk_rope_head_dim": config.head_dim - rank,
            "qk_head_dim": config.head_dim,
            "v_head_dim": rank,
            "kv_cache_dtype": "auto",
            "alt_stream": None,
            "attn_mqa": self.layer,
            "attn_mha": expanded,
            "q_proj": lambda hidden: (hidden[:, :width].clone(), None),
            "kv_a_proj_with_mqa": lambda hidden: (hidden[:, width:].clone(), None),
            "kv_a_layernorm": lambda latent: latent.clone(),
            "rotary_emb": lambda _, q, k: (q, k),
            "kv_b_proj": lambda latent: (self.expand(latent), None),
            "o_proj": lambda out: (out, None),
            "_server_args": None,
        }
        vars(layer).update(has | more)
        return layer


class ExpandedPrefillModel(FullPrefillModel):
    """The same where full prefill graphs look for a body."""

    kind = ExpandedLatentModel


def _orders(heads: int, columns: int, first: int) -> torch.Tensor:
    """[heads, columns] which column of a latent row comes where: no two heads agree where there are
    as many columns."""
    places = torch.arange(columns)
    return torch.stack([places.roll(first + head) for head in range(heads)])
