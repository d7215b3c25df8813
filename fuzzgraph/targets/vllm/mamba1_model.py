"""A model of one Mamba1 layer with known weights, as vLLM runs it: the engine's `MambaMixer`.

Where Mamba2 projects a token to x, B and C at once, Mamba1 works out the time step, B and C from
its columns behind the convolution. So the layer has two columns more than are judged, which are B
and C of `recurrent_layers.mamba2`, and its second projection picks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.content import STATE_WIDTH, TIME_STEP, content_for
from fuzzgraph.recurrent_layers.mamba2 import CONV_COLUMNS, conv_weights
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.offline.demands import demand_lookup
from fuzzgraph.targets.offline.mixer_weights import GATE, decays
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.attention_model import FORWARD, on_device
from fuzzgraph.targets.vllm.recurrent_layer import OneRecurrentLayer
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import VOCAB

LAYER_MODULE = "vllm.model_executor.layers.mamba.mamba_mixer"
_LAYER = "model.layers.0.mixer"


def _decays() -> torch.Tensor:
    """[CONV_COLUMNS, 1]; the columns that are not judged do not decay."""
    columns = decays(STATE_WIDTH)
    return torch.cat((columns, torch.zeros(CONV_COLUMNS - STATE_WIDTH)))[:, None]


class OneMamba1(OneRecurrentLayer):
    """Tokens, and the engine's Mamba1 layer over them."""

    architecture = "FuzzGraphOneMamba1"
    computed = "what the mixer computed"

    def _make_layer(self, vllm_config: Any) -> None:
        self.embed = on_device(torch.eye(VOCAB))
        self.mixer = call_with_known(
            engine_module(LAYER_MODULE).MambaMixer,
            hidden_size=VOCAB,
            ssm_state_size=1,
            conv_kernel_size=CONV_WIDTH,
            intermediate_size=CONV_COLUMNS,
            time_step_rank=1,
            use_conv_bias=False,
            use_bias=False,
            use_rms_norm=False,
            activation=None,
            model_config=vllm_config.model_config,
            cache_config=vllm_config.cache_config,
            prefix=_LAYER,
        )

    def _known_weights(self) -> Mapping[torch.Tensor, torch.Tensor]:
        mixer = self.mixer
        given = content_for(self.fuzzed).weights["conv_in"]
        gate = torch.full((VOCAB, CONV_COLUMNS), GATE)
        picked = torch.zeros(3, CONV_COLUMNS)  # the time step of no column, B and C of one each
        picked[1, STATE_WIDTH] = picked[2, STATE_WIDTH + 1] = 1.0
        out = torch.zeros(VOCAB, CONV_COLUMNS)
        out[:STATE_WIDTH, :STATE_WIDTH] = torch.eye(STATE_WIDTH) / GATE
        return {
            mixer.in_proj.weight: torch.cat((given, gate), dim=1).T,
            mixer.conv1d.weight: conv_weights()[:, None],
            mixer.x_proj.weight: picked,
            mixer.dt_proj.weight: torch.zeros(CONV_COLUMNS, 1),
            mixer.dt_proj.bias: torch.full((CONV_COLUMNS,), TIME_STEP),
            mixer.A: _decays(),
            mixer.D: torch.ones(CONV_COLUMNS),
            mixer.out_proj.weight: out,
        }

    def _compute(self, input_ids: torch.Tensor, positions: torch.Tensor) -> Any:
        hidden = demand_lookup(self.embed, input_ids, "input_ids", FORWARD)
        out = torch.empty_like(hidden)  # as mamba.py has it: the layer writes it
        self.mixer(hidden, out)
        return out
