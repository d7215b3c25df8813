"""A vision encoder of one layer with known weights, as the engine's graph runner finds a model's.

Positions come as two tables, as a rotary embedding's cosines and sines do, and are added where the
engine's layer rotates: the first has those of queries, the second those of keys and values. Real is
the engine's attention of a vision encoder; stood in for are patches, projections and the merger.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["VISION", "VisionTower"]

VISION = "sglang.srt.layers.attention.vision"
"""Module of the engine's attention."""


class _Block:
    """The layer; the engine hands it where images begin, their lengths and the longest, or the
    first alone where it takes no graph."""

    def __init__(self, config: EngineConfig, backend: Any) -> None:
        self._config = config
        self._query = config.num_q_heads * config.head_dim
        self._keys = self._query + config.num_kv_heads * config.head_dim
        self.attn = Stub(
            num_attention_heads_per_partition=config.num_q_heads,
            head_size=config.head_dim,
            qkv_backend_name="triton_attn",
            qkv_backend=backend,
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

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
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
        backend = call_with_known(engine_module(VISION).VisionTritonAttention)
        self.blocks = [_Block(config, backend)]

    def merger(self, attended: torch.Tensor) -> torch.Tensor:
        """[tokens, columns]"""
        return attended[:, 0] * 1

    def encode(self, x: torch.Tensor, cu_seqlens: torch.Tensor, **tables: Any) -> torch.Tensor:
        """Without a graph."""
        return self.merger(self.blocks[0](x[:, None], cu_seqlens, **tables))
