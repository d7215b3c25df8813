"""A model of one recurrent layer with known weights, as vLLM runs it: the engine's `MambaMixer2`.

Tokens are embedded as one column each, so that the layer's own projection gives the numbers of
`recurrent_layers.mamba2` for them, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.content import STATE_WIDTH
from fuzzgraph.recurrent_layers.mamba2 import conv_weights
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.offline.demands import demand_lookup
from fuzzgraph.targets.offline.mixer_weights import decays, in_projection, out_projection
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.attention_model import FORWARD, on_device
from fuzzgraph.targets.vllm.recurrent_layer import OneRecurrentLayer
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import VOCAB

MIXER = "vllm.model_executor.layers.mamba.mamba_mixer2"
LAYER = "model.layers.0.mixer"
HEADS = 2


class OneMixer(OneRecurrentLayer):
    """Tokens, and the engine's Mamba2 layer over them."""

    architecture = "FuzzGraphOneMixer"
    computed = "what the mixer computed"

    def _make_layer(self, vllm_config: Any) -> None:
        self.embed = on_device(torch.eye(VOCAB))
        self.mixer = call_with_known(
            engine_module(MIXER).MambaMixer2,
            hidden_size=VOCAB,
            ssm_state_size=1,
            conv_kernel_size=CONV_WIDTH,
            intermediate_size=STATE_WIDTH,
            use_conv_bias=False,
            use_bias=False,
            n_groups=1,
            num_heads=HEADS,
            head_dim=STATE_WIDTH // HEADS,
            use_rms_norm=False,
            activation=None,
            model_config=vllm_config.model_config,
            cache_config=vllm_config.cache_config,
            prefix=LAYER,
        )

    def _known_weights(self) -> Mapping[torch.Tensor, torch.Tensor]:
        mixer = self.mixer
        return {
            mixer.in_proj.weight: in_projection(self.fuzzed),
            mixer.conv1d.weight: conv_weights()[:, None],
            mixer.A: decays(HEADS),
            mixer.D: torch.ones(HEADS),
            mixer.dt_bias: torch.zeros(HEADS),
            mixer.out_proj.weight: out_projection(self.fuzzed),
            mixer.conv_weights: conv_weights(),
        }

    def _compute(self, input_ids: torch.Tensor, positions: torch.Tensor) -> Any:
        return self.mixer(demand_lookup(self.embed, input_ids, "input_ids", FORWARD))
