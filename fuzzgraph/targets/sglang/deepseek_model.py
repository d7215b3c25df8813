"""Latent attention of DeepSeek, which chooses by its batch how a prompt is computed.

The engine's own `DeepseekV2AttentionMLA` (sglang models/deepseek_v2.py). Where a batch has nothing
cached, or as much as the server's threshold says, latent rows are expanded: all at once (one-shot)
where they fit the server's capacity, else in chunks whose parts are merged; otherwise keys stay
latent (deepseek_common attention_backend_handler.py). Its absorbed weights carry the same orders of
columns as the projection that expands (`expanded_latent_model`), so that all ways define the same.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.targets.sglang.attention_model import FullPrefillModel
from fuzzgraph.targets.sglang.expanded_latent_model import ExpandedLatentModel
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["DEEPSEEK", "DeepseekLatentModel", "DeepseekPrefillModel"]

DEEPSEEK = "sglang.srt.models.deepseek_v2"


class DeepseekLatentModel(ExpandedLatentModel):
    """One layer of the engine's `DeepseekV2AttentionMLA`."""

    method = ""
    """How the last batch was computed that was not replayed, as the engine calls it."""

    def engine_attention(self, expanded: Any) -> Any:
        kind = engine_module(DEEPSEEK).DeepseekV2AttentionMLA
        dtype, device = self.embed.dtype, self.embed.device
        layer = self.without_weights(
            kind,
            expanded,
            layer_id=self.layer.layer_id,
            is_nextn=False,
            dcp_size=1,
            kv_b_proj=_Projection(self.expand),
            o_proj=_Projection(lambda out: out),
            w_kc=_as_product(self._keys).to(device, dtype),
            w_vc=_as_product(self._values).mT.contiguous().to(device, dtype),
            **_OF_NO_INDEXER,
            **_OF_NO_QUANTIZATION,
        )
        expanded.kv_b_proj = None
        choose = layer.dispatch_attn_forward_method

        def remembered(forward_batch: Any) -> Any:
            chosen = choose(forward_batch)
            self.method = chosen.name
            return chosen

        vars(layer)["dispatch_attn_forward_method"] = remembered
        return layer

    def use(self, pool: Any, allocator: Any) -> None:
        """Once the server's arguments are known: the last lines of the engine's constructor."""
        super().use(pool, allocator)
        self.expanding.init_mha_forward()
        self.expanding.init_mla_forward()

    def expanded_attention(
        self, positions: torch.Tensor, hidden: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        out: torch.Tensor = self.expanding.forward(
            positions, hidden, forward_batch, zero_allocator=None
        )
        return out


_OF_NO_INDEXER = MappingProxyType(
    dict.fromkeys(("skip_topk", "next_skip_topk", "indexer")) | {"use_dsa": False}
)
_OF_NO_QUANTIZATION = MappingProxyType(
    {"use_deep_gemm_bmm": False, "w_scale": 1.0, "current_attention_backend": None}
)


class _Projection:
    """A layer of weights, called as the engine calls its own."""

    reduce_results = False

    def __init__(self, project: Any) -> None:
        self._project = project

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self._project(hidden), None


def _as_product(orders: torch.Tensor) -> torch.Tensor:
    """[heads, columns] -> [heads, columns, rank]: what puts column c of an expanded row back to its
    place of the latent row, exactly, as each sum has one term."""
    return torch.nn.functional.one_hot(orders)


class DeepseekPrefillModel(FullPrefillModel):
    """The same where full prefill graphs look for a body."""

    kind = DeepseekLatentModel
    decides_on_host = True
