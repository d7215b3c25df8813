"""A model of one recurrent layer with known weights, as vLLM runs it: the engine's `MambaMixer2`.

Tokens are embedded as one column each, so that the layer's own projection gives the numbers of
`fuzzgraph.recurrence` for them, exactly. Its gate multiplies by 32, and its output projection
divides by it.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.content import STATE_WIDTH, TIME_STEP, content_for
from fuzzgraph.recurrence import CONV_WIDTH, conv_weights
from fuzzgraph.targets.offline.demands import demand_instance, demand_lookup, demand_rows
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.attention_model import FORWARD, OneLayer, on_device
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import VOCAB

MIXER = "vllm.model_executor.layers.mamba.mamba_mixer2"
LAYER = "model.layers.0.mixer"
_HEADS = 2
_GATE = 32.0
"""silu(32) is 32 in float32."""


class OneMixer(OneLayer):
    """Tokens, and the engine's Mamba2 layer over them."""

    architecture = "FuzzGraphOneMixer"
    is_attention_free = True
    has_inner_state = True

    def _make_layer(self, vllm_config: Any) -> None:
        self.columns = on_device(torch.eye(VOCAB))
        self.mixer = call_with_known(
            engine_module(MIXER).MambaMixer2,
            hidden_size=VOCAB,
            ssm_state_size=1,
            conv_kernel_size=CONV_WIDTH,
            intermediate_size=STATE_WIDTH,
            use_conv_bias=False,
            use_bias=False,
            n_groups=1,
            num_heads=_HEADS,
            head_dim=STATE_WIDTH // _HEADS,
            use_rms_norm=False,
            activation=None,
            model_config=vllm_config.model_config,
            cache_config=vllm_config.cache_config,
            prefix=LAYER,
        )

    def load_known_weights(self) -> None:
        """What the dummy loader filled at random."""
        gate = torch.full((VOCAB, STATE_WIDTH), _GATE)
        step = torch.full((VOCAB, _HEADS), TIME_STEP)
        inputs = torch.cat((gate, content_for(self.fuzzed).weights["conv_in"], step), dim=1)
        out = torch.zeros(VOCAB, STATE_WIDTH)
        out[:STATE_WIDTH] = torch.eye(STATE_WIDTH) / _GATE
        mixer = self.mixer
        known = {
            mixer.in_proj.weight: inputs.T,
            mixer.conv1d.weight: conv_weights()[:, None],
            mixer.A: torch.zeros(_HEADS),
            mixer.D: torch.ones(_HEADS),
            mixer.dt_bias: torch.zeros(_HEADS),
            mixer.out_proj.weight: out,
        }
        with torch.no_grad():
            for weight, values in known.items():
                weight.copy_(values)
            mixer.conv_weights.copy_(conv_weights())

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.columns.index_select(0, input_ids)

    get_input_embeddings = embed_input_ids

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """The outputs where a model would give hidden states."""
        demand_rows(input_ids, None, "input_ids", FORWARD)
        tokens = demand_lookup(self.columns, input_ids, "input_ids", FORWARD)
        out: torch.Tensor = self.mixer(tokens)
        demand_instance(out, torch.Tensor, "what the mixer computed", FORWARD)
        return out[:, :STATE_WIDTH]
