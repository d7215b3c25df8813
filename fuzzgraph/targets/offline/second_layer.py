"""Further layers of attention beside the first, as models of every engine have them: one behind
`swa_window`, and others that `layer_types` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, attention_outputs, group_configs
from fuzzgraph.content import Content, content_for
from fuzzgraph.row_mixing import split_mixed
from fuzzgraph.targets.offline.demands import demand_instance
from fuzzgraph.targets.offline.embeddings import looked_up_qkv

__all__ = ["SecondLayer", "joined_layers", "second_content", "split_layers"]

_FORWARD = "the forward of the sliding-window layer"


def second_content(config: EngineConfig) -> Content:
    """The layer's own weights, keys and values."""
    _, shape = group_configs(config)
    return content_for(shape, 1)


class SecondLayer:
    """Embeddings and the engine's attention, as the model's first layer has them.

    Args:
        attend: the engine's layer.
        on_device: a weight where the engine keeps a model's parameters.
        content: whose weights it has; its own, unless attention is the first layer of its kind.
    """

    def __init__(
        self,
        config: EngineConfig,
        attend: Callable[..., Any],
        on_device: Callable[[torch.Tensor], torch.Tensor],
        content: Content | None = None,
    ) -> None:
        weights = (content or second_content(config)).weights
        self.config, self.attend = config, attend
        self.embed, self.pos_embed = on_device(weights["embed"]), on_device(weights["pos_embed"])

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *more: Any) -> torch.Tensor:
        """[tokens, heads * v_head_dim]; `more` is what the engine's layer takes behind q, k, v."""
        qkv = self.qkv(input_ids, positions)
        out: torch.Tensor = self.attend(*(part.contiguous() for part in qkv), *more)
        demand_instance(out, torch.Tensor, "what attention computed", _FORWARD)
        return out

    def qkv(
        self, input_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of the tokens."""
        where = self.config, _FORWARD
        return looked_up_qkv(self.embed, self.pos_embed, input_ids, positions, *where)


def joined_layers(*layers: torch.Tensor) -> torch.Tensor:
    """What a model hands out of all: [tokens, columns], those of one behind those of another."""
    return torch.cat(layers, dim=-1) if len(layers) > 1 else layers[0]


def split_layers(handed_out: torch.Tensor, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what the model handed out: each [tokens, heads, v_head_dim]."""
    names = attention_outputs(config)[1:]
    if not names:
        return split_mixed(handed_out, config)
    columns = len(names) * config.num_q_heads * config.v_head_dim
    others = handed_out[:, -columns:]
    parts = others.reshape(-1, len(names), config.num_q_heads, config.v_head_dim).unbind(1)
    first = handed_out[:, :-columns].contiguous()
    found = {name: part.clone() for name, part in zip(names, parts, strict=True)}
    return {**split_mixed(first, config), **found}
