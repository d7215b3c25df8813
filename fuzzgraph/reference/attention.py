"""Computes attention by its definition, in float64 or the engine's dtype, without pages or plans.

Keys and values are those of `content` after rounding to the KV pool's dtype, because an engine can
only read what was stored. `geometry` says which keys a query sees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from fuzzgraph.case import EngineConfig, attention_layers, group_configs
from fuzzgraph.content import Content, content_for
from fuzzgraph.reference.geometry import encoder_keys, queries_of
from fuzzgraph.reference.pooled_keys import selected_keys
from fuzzgraph.world import Batch

# Logit of a key that a query does not see. Finite, because -inf gives NaN in a row without keys.
# float16 cannot hold it; there half of the least number is used, which leaves room to subtract.
_UNSEEN = -1.0e30


class ReferenceModel:
    """A config's tables in one dtype: float64 for the truth, the engine's for the yardstick."""

    def __init__(self, content: Content, dtype: torch.dtype) -> None:
        self.content = content
        self.dtype = dtype
        config = content.config
        self.scale = config.head_dim**-0.5
        width = config.num_q_heads * config.head_dim
        weights = content.weights
        self.embed = weights["embed"][:, :width].to(dtype)
        self.pos_embed = weights["pos_embed"][:, :width].to(dtype)
        self.mrope_embed = weights["mrope_embed"].to(dtype)
        self.encoder = self._dequantized(content.encoder_table)
        self.table = self._dequantized(content.plane_table) if content.has_table else None

    def _dequantized(self, planes: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """(keys, values) of stored rows, each [N, heads, columns]."""
        return self.content.numbers(planes, self.dtype)

    def queries(
        self, tokens: torch.Tensor, positions: torch.Tensor, mrope: torch.Tensor | None
    ) -> torch.Tensor:
        """[T, Hkv, group, D], scaled."""
        q = self.embed[tokens] + self.pos_embed[positions]
        if mrope is not None:
            q = q + self.mrope_embed[mrope]
        config = self.content.config
        # Grouped queries: consecutive query heads share a KV head.
        shape = (len(q), config.num_kv_heads, -1, config.head_dim)
        return torch.mul(q, self.scale).view(shape)

    def keys_and_values(
        self, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each [T, L, heads, columns] for [T, L] tokens and positions."""
        # A long context has no table of ready rows: compute the rows that are needed.
        if self.table is None:
            planes = self.content.kv_planes(tokens.reshape(-1), positions.reshape(-1))
            k, v = self._dequantized(planes)
            return k.view(*tokens.shape, *k.shape[1:]), v.view(*tokens.shape, *v.shape[1:])
        index = self.content.plane_index(tokens, positions)
        return self.table[0][index], self.table[1][index]


@lru_cache(maxsize=32)
def model_for(config: EngineConfig, dtype: torch.dtype, layer: int = 0) -> ReferenceModel:
    """The model of `config` in `dtype`; kept, because its tables are slow to build."""
    return ReferenceModel(content_for(config, layer), dtype)


Average = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(weights [..., keys], values [..., keys, columns]) -> [..., columns]."""


def _softmax_average(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: torch.Tensor,
    average: Average,
    cap: int = 0,
) -> torch.Tensor:
    """[T, Hkv * group, Dv] of q [T, Hkv, group, D], k and v [T, L, Hkv, ...], hidden [T, L], or
    [T, Hkv, L] where heads see other keys."""
    logits = torch.matmul(q, k.permute(0, 2, 3, 1))
    if cap:
        logits = torch.tanh(logits / cap) * cap
    least = max(_UNSEEN, torch.finfo(q.dtype).min / 2)
    hidden = hidden[:, None] if hidden.dim() == 2 else hidden
    weights = torch.softmax(logits.masked_fill_(hidden[:, :, None], least), dim=-1)
    return average(weights, v.transpose(1, 2)).flatten(1, 2)


def attention(
    batch: Batch, config: EngineConfig, model: ReferenceModel, average: Average = torch.matmul
) -> tuple[torch.Tensor, float]:
    """([T, Hq, Dv] in the model's dtype, the largest |V| that entered).

    Args:
        average: what is made of softmax's weights and values.
    """
    # The bound counts keys that a mask hides as well: a tolerance a little too wide is harmless.
    found = queries_of(batch, config)
    shape = (len(found.tokens), config.num_q_heads, config.v_head_dim)
    if not shape[0]:
        return torch.zeros(shape, dtype=model.dtype), 0.0
    mrope = None if batch.mrope is None else torch.from_numpy(batch.mrope)
    q = model.queries(torch.from_numpy(found.tokens), torch.from_numpy(found.positions), mrope)
    k, v = model.keys_and_values(
        torch.from_numpy(found.key_tokens), torch.from_numpy(found.key_positions)
    )
    visible = selected_keys(batch, config) if config.pooled_block else found.visible
    out = _softmax_average(q, k, v, torch.from_numpy(~visible), average, config.logit_cap)
    bound = float(v.abs().max())
    if batch.encoder_tokens.values.size:
        tokens, present = encoder_keys(batch, found.rows)
        index, absent = torch.from_numpy(tokens), torch.from_numpy(~present)
        values = model.encoder[1][index].masked_fill(absent[:, :, None, None], 0.0)
        out = out + _softmax_average(q, model.encoder[0][index], values, absent, average)
        bound += float(values.abs().max())  # the two averages are added
    return out, bound


def attended_layers(
    batch: Batch,
    config: EngineConfig,
    dtype: torch.dtype,
    draft_layer: int = 0,
    average: Average = torch.matmul,
) -> tuple[dict[str, torch.Tensor], float]:
    """(output of each layer that attends, the largest |V| that entered any).

    Args:
        draft_layer: whose attention it is, in a draft model with several.
        average: see `attention`.
    """
    layers, groups = attention_layers(config), group_configs(config)
    outputs, bound = {}, 0.0
    for number, layer in enumerate(layers, draft_layer * len(layers)):
        seen, shape = batch.groups[layer.group], groups[layer.group]
        model = model_for(shape, dtype, number)
        outputs[layer.output], entered = attention(seen, shape, model, average)
        bound = max(bound, entered)
    return outputs, bound
