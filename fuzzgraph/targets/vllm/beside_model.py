"""A model of a recurrent layer and a layer of attention behind it, as Qwen3-Next's and Nemotron-H's
are: the engine gives each a KV cache group, and both take their blocks from one pool.

Both layers are given the tokens and their positions, so that what one computes hides nothing of
what the other does.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import STATE_WIDTH, content_for
from fuzzgraph.recurrence import CONV_WIDTH
from fuzzgraph.targets.offline.second_layer import SecondLayer, joined_layers
from fuzzgraph.targets.vllm.attention_model import attention_layer, on_device
from fuzzgraph.targets.vllm.gdn_model import OneDeltaNet
from fuzzgraph.targets.vllm.recurrent_layer import OneRecurrentLayer
from fuzzgraph.targets.vllm.recurrent_model import HEADS, OneMixer
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.sliding_window import LAYER

_STATES = "vllm.model_executor.layers.mamba.mamba_utils"


class BesideAttention(OneRecurrentLayer):
    """A recurrent layer, then the engine's attention; outputs of both in one row of a token."""

    is_attention_free = False
    is_hybrid = True

    def _make_layer(self, vllm_config: Any) -> None:
        super()._make_layer(vllm_config)
        config = self.fuzzed
        attend = attention_layer(config, vllm_config, LAYER)
        self.attention = SecondLayer(config, attend, on_device, content_for(config))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any) -> Any:
        """[tokens, columns]: of the recurrent layer, then of attention."""
        recurrent = super().forward(input_ids, positions)
        return joined_layers(recurrent, self.attention.forward(input_ids, positions))


class MixerBesideAttention(BesideAttention, OneMixer):
    """Mamba2, as in Nemotron-H, Bamba and Zamba2."""

    architecture = "FuzzGraphMixerBesideAttention"

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> tuple[torch.dtype, ...]:
        cache = vllm_config.cache_config
        dtypes: tuple[torch.dtype, ...] = engine_module(
            _STATES
        ).MambaStateDtypeCalculator.mamba2_state_dtype(
            vllm_config.model_config.dtype, cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype
        )
        return dtypes

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> tuple[tuple[int, ...], ...]:
        shapes: tuple[tuple[int, ...], ...] = engine_module(
            _STATES
        ).MambaStateShapeCalculator.mamba2_state_shape(
            tp_world_size=1,
            intermediate_size=STATE_WIDTH,
            n_groups=1,
            num_heads=HEADS,
            head_dim=STATE_WIDTH // HEADS,
            state_size=1,
            conv_kernel=CONV_WIDTH,
        )
        return shapes

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        states = engine_module(_STATES).MambaStateCopyFuncCalculator
        functions: tuple[Any, ...] = states.mamba2_state_copy_func()
        return functions


class DeltaNetBesideAttention(BesideAttention, OneDeltaNet):
    """A gated delta net, as in Qwen3-Next."""

    architecture = "FuzzGraphDeltaNetBesideAttention"


def split_outputs(joined: torch.Tensor, config: EngineConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """What the recurrent layer gave, and attention's [tokens, heads, v_head_dim]."""
    recurrent, attended = joined[:, :STATE_WIDTH], joined[:, STATE_WIDTH:]
    return recurrent.clone(), attended.reshape(-1, config.num_q_heads, config.v_head_dim).clone()
