"""The engine's layer of latent attention, with weights that leave a case's latent rows as they are.

`MLAAttention` projects queries into the space of latent rows, attends there and projects what it
got out of it. Both projections are parts of one weight, `kv_b_proj`, and each is the identity here:
a latent row of a case serves as key, and its first `v_head_dim` columns as value.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.vllm.release import engine_module, has_module

_ATTENTION = ("vllm.model_executor.layers.attention", "vllm.attention.layer")
"""Where releases have the layer: the second up to 0.15."""
_LINEAR = "vllm.model_executor.layers.linear"


def latent_layer(config: EngineConfig, vllm_config: Any, prefix: str) -> Any:
    """`MLAAttention` of `num_q_heads` heads over latent rows of `head_dim` columns."""
    rank, rotary = config.v_head_dim, config.head_dim - config.v_head_dim
    projection = engine_module(_LINEAR).ColumnParallelLinear(
        rank, config.num_q_heads * 2 * rank, bias=False, prefix=f"{prefix}.kv_b_proj"
    )
    # A plain attribute: a parameter, the dummy loader fills at random.
    weight = projection.weight.detach()
    del projection.weight
    projection.weight = weight.copy_(torch.eye(rank).repeat(2 * config.num_q_heads, 1))
    modules = filter(has_module, _ATTENTION)
    return next(filter(None, (getattr(engine_module(m), "MLAAttention", None) for m in modules)))(
        num_heads=config.num_q_heads,
        scale=config.head_dim**-0.5,
        qk_nope_head_dim=rank,
        qk_rope_head_dim=rotary,
        v_head_dim=rank,
        q_lora_rank=None,
        kv_lora_rank=rank,
        kv_b_proj=projection,
        cache_config=vllm_config.cache_config,
        prefix=prefix,
    )


def attend_latent(layer: Any, q: torch.Tensor, k: torch.Tensor, config: EngineConfig) -> Any:
    """[tokens, num_q_heads * v_head_dim], called as `MultiHeadLatentAttentionWrapper` does: the
    normed latent is a tensor of its own, and the rotary part a slice of the projection.

    Args:
        q: [tokens, num_q_heads * head_dim]; k: [tokens, head_dim].
    """
    rank = config.v_head_dim
    heads = q.view(-1, config.num_q_heads, config.head_dim)
    return layer(
        heads,
        k[:, :rank].contiguous(),
        k[:, None, rank:],
        output_shape=(len(q), config.num_q_heads * rank),
    )
