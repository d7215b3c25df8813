"""A vision encoder of one layer with known weights, as the engine's graph runner finds a model's.

Positions come as two tables, as a rotary embedding's cosines and sines do, and are added where the
engine's layer rotates: the first has those of queries, the second those of keys and values. The
layer sees whole images, or windows of them (Qwen2.5-VL). Real is the engine's attention of a vision
encoder; stood in for are patches, projections and the merger.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.kernel_models import flash_attention
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["ATTENTIONS", "VISION", "VisionAttention", "VisionTower"]

VISION = "sglang.srt.layers.attention.vision"
"""Module of the engine's attention."""


@dataclass(frozen=True, slots=True)
class VisionAttention:
    """One of the attentions that graphs of an encoder hold."""

    name: str
    """As servers name it (`--mm-attention-backend`), and the runner finds it."""
    kind: str
    """Class of the engine."""
    about: str
    kernels: tuple[tuple[str, Any], ...] = ()
    """Names in the engine's module, and what models the compiled kernels there. It has these where
    it was imported beside a GPU."""
    stood_in_for: tuple[str, ...] = ()


ATTENTIONS = MappingProxyType({
    "triton": VisionAttention("triton_attn", "VisionTritonAttention", "Triton attention"),
    "fa3": VisionAttention(
        "fa3", "VisionFlash3Attention", "FlashAttention 3",
        kernels=tuple(
            (name, flash_attention.flash_attn_varlen_func)
            for name in ("flash_attn_varlen_func", "flash_attn_func")  # by release
        ),
        stood_in_for=("the attention kernel, by a model",),
    ),
})  # fmt: skip


class _Block:
    """The layer; the engine hands it where images begin, their lengths and the longest, or the
    first alone where it takes no graph."""

    def __init__(self, config: EngineConfig, attention: VisionAttention) -> None:
        self._config = config
        self._query = config.num_q_heads * config.head_dim
        self._keys = self._query + config.num_kv_heads * config.head_dim
        self.attn = Stub(
            num_attention_heads_per_partition=config.num_q_heads,
            head_size=config.head_dim,
            qkv_backend_name=attention.name,
            qkv_backend=call_with_known(getattr(engine_module(VISION), attention.kind)),
        )

    def forward(
        self,
        x: torch.Tensor,
        cu_seqlens: Any,
        rotary_pos_emb_cos: torch.Tensor,
        rotary_pos_emb_sin: torch.Tensor,
        output_ws: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[tokens, 1, columns] attention of [tokens, 1, queries, keys and values]."""
        packed = x[:, 0] + rotary_pos_emb_cos + rotary_pos_emb_sin
        width = self._config.head_dim
        q, k, v = (
            part.unflatten(1, (-1, width)).contiguous()
            for part in (
                packed[:, : self._query],
                packed[:, self._query : self._keys],
                packed[:, self._keys :],
            )
        )
        workspace = {} if output_ws is None else {"output_ws": output_ws}
        out: torch.Tensor = self.attn.qkv_backend.forward(
            q=q,
            k=k,
            v=v,
            cu_seqlens=cu_seqlens,
            bsz=1,
            seq_len=len(q),
            softmax_scale=width**-0.5,
            **workspace,
        )
        return out.flatten(1)[:, None]

    __call__ = forward


class VisionTower:
    """What stands for the encoder: its layer, and a merger that gives features a tensor of their
    own."""

    use_data_parallel = False

    def __init__(
        self, config: EngineConfig, device: torch.device, attention: VisionAttention
    ) -> None:
        content = content_for(config)

        def on_device(weight: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(weight, device=device).copy_(weight)

        self.embed = on_device(content.weights["embed"])
        places = on_device(content.weights["pos_embed"])
        of_queries = torch.arange(places.shape[1], device=device) < (
            config.num_q_heads * config.head_dim
        )
        self.tables = places * of_queries, places * ~of_queries
        """Of cosines and of sines."""
        self.device, self.dtype = device, self.embed.dtype
        self.fullatt_block_indexes = (1,) if config.attention_chunk_size else ()
        """Layers that see whole images: those behind this one. () in models without windows."""
        self.blocks = [_Block(config, attention)]

    def merger(self, attended: torch.Tensor) -> torch.Tensor:
        """[tokens, columns]"""
        return attended[:, 0] * 1

    def encode(
        self,
        x: torch.Tensor,
        cu_seqlens: torch.Tensor,
        cu_window_seqlens: torch.Tensor | None,
        output_indices: torch.Tensor | None,
        **tables: Any,
    ) -> torch.Tensor:
        """Without a graph, as a model calls its layers itself."""
        bounds = cu_seqlens if cu_window_seqlens is None else cu_window_seqlens
        features = self.merger(self.blocks[0](x[:, None], bounds, **tables))
        return features if output_indices is None else features[output_indices]
