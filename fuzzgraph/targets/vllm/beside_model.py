"""A model of a recurrent layer and a layer of attention behind it, as Qwen3-Next's and Nemotron-H's
are: the engine gives each a KV cache group, and both take their blocks from one pool.

Both layers are given the tokens and their positions, so that what one computes hides nothing of
what the other does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import STATE_WIDTH, content_for
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.offline.second_layer import SecondLayer, joined_layers
from fuzzgraph.targets.vllm.attention_model import attention_layer, on_device
from fuzzgraph.targets.vllm.gdn_model import OneDeltaNet
from fuzzgraph.targets.vllm.recurrent_layer import HybridLayer, OneRecurrentLayer
from fuzzgraph.targets.vllm.recurrent_model import HEADS, OneMixer
from fuzzgraph.targets.vllm.sliding_window import LAYER


class BesideAttention(OneRecurrentLayer):
    """A recurrent layer, then the engine's attention; outputs of both in one row of a token."""

    is_attention_free = False

    def _make_layer(self, vllm_config: Any) -> None:
        super()._make_layer(vllm_config)
        config = self.fuzzed
        attend = attention_layer(config, vllm_config, LAYER)
        self.attention = SecondLayer(config, attend, on_device, content_for(config))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any) -> Any:
        """[tokens, columns]: of the recurrent layer, then of attention."""
        recurrent = super().forward(input_ids, positions)
        return joined_layers(recurrent, self.attention.forward(input_ids, positions))


class MixerBesideAttention(BesideAttention, HybridLayer, OneMixer):
    """Mamba2, as in Nemotron-H, Bamba and Zamba2."""

    architecture = "FuzzGraphMixerBesideAttention"
    rule = "mamba2"

    @classmethod
    def _sizes(cls, vllm_config: Any) -> Mapping[str, int]:
        return {
            "tp_world_size": 1,
            "intermediate_size": STATE_WIDTH,
            "n_groups": 1,
            "num_heads": HEADS,
            "head_dim": STATE_WIDTH // HEADS,
            "state_size": 1,
            "conv_kernel": CONV_WIDTH,
        }


class DeltaNetBesideAttention(BesideAttention, OneDeltaNet):
    """A gated delta net, as in Qwen3-Next."""

    architecture = "FuzzGraphDeltaNetBesideAttention"


def split_outputs(joined: torch.Tensor, config: EngineConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """What the recurrent layer gave, and attention's [tokens, heads, v_head_dim]."""
    recurrent, attended = joined[:, :STATE_WIDTH], joined[:, STATE_WIDTH:]
    return recurrent.clone(), attended.reshape(-1, config.num_q_heads, config.v_head_dim).clone()
