"""A model of one gated-delta-net layer with known weights, as vLLM runs it: Qwen3-Next's.

Tokens and positions are embedded as one column each, so that the layer's own projections give the
numbers of `recurrent_layers.delta_rule` for them, exactly. There are two heads of values for each
of two heads of queries and keys: with one of either, 0.17.1 reads gates past the rows of the
projection that made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from fuzzgraph.content import STATE_WIDTH, content_for
from fuzzgraph.recurrent_layers import delta_rule
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.offline.demands import demand_lookup, demand_rows
from fuzzgraph.targets.offline.mixer_weights import GATE
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.attention_model import FORWARD, on_device
from fuzzgraph.targets.vllm.recurrent_layer import STATES, HybridLayer
from fuzzgraph.targets.vllm.release import engine_module, has_module
from fuzzgraph.world import VOCAB

LAYERS = (
    ("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn", "QwenGatedDeltaNetAttention"),
    ("vllm.model_executor.layers.mamba.gdn_linear_attn", "GatedDeltaNetAttention"),
    ("vllm.model_executor.models.qwen3_next", "Qwen3NextGatedDeltaNet"),
)
"""Module and class of the layer, the newest release's first."""
LAYER = "model.layers.0.linear_attn"
_HIDDEN = VOCAB + delta_rule.POSITIONS


def layer_module() -> str:
    """Where this release has the layer."""
    return next(name for name, _ in LAYERS if has_module(name))


def _layer_class() -> Any:
    module, name = next(layer for layer in LAYERS if has_module(layer[0]))
    return getattr(engine_module(module), name)


_SIZES = {
    "tp_world_size": 1,
    "num_k_heads": delta_rule.KEY_HEADS,
    "num_v_heads": delta_rule.HEADS,
    "head_k_dim": delta_rule.POSITIONS,
    "head_v_dim": delta_rule.HEAD_WIDTH,
    "conv_kernel_size": CONV_WIDTH,
}


def states_by_key() -> bool:
    """Whether this release keeps the columns of a key together in a state, as the truth has it."""
    shapes = engine_module(STATES).MambaStateShapeCalculator.gated_delta_net_state_shape(**_SIZES)
    found: bool = shapes[1][-1] == delta_rule.POSITIONS
    return found


_SHAPE = SimpleNamespace(
    hidden_size=_HIDDEN,
    linear_num_value_heads=delta_rule.HEADS,
    linear_num_key_heads=delta_rule.KEY_HEADS,
    linear_key_head_dim=delta_rule.POSITIONS,
    linear_value_head_dim=delta_rule.HEAD_WIDTH,
    linear_conv_kernel_dim=CONV_WIDTH,
    hidden_act="silu",
    rms_norm_eps=delta_rule.NORM_EPSILON,
    dtype=torch.float32,
)
"""What of a model's own configuration the layer reads."""


def _of_all_heads(*widths: int) -> list[int]:
    """Columns of all key heads, where one has so many of each part."""
    return [width * delta_rule.KEY_HEADS for width in widths]


def _head_by_head(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All parts of the first key head, then those of the second."""
    heads = [part.chunk(delta_rule.KEY_HEADS, dim=1) for part in parts]
    return torch.cat([part for head in zip(*heads, strict=True) for part in head], dim=1)


class OneDeltaNet(HybridLayer):
    """Tokens at positions, and the engine's layer over them.

    The runner counts accepted drafts of hybrid models alone, so this is one without attention, too.
    """

    architecture = "FuzzGraphOneDeltaNet"
    rule = "gated_delta_net"

    @classmethod
    def _sizes(cls, vllm_config: Any) -> Mapping[str, int]:
        speculative = vllm_config.speculative_config
        drafts = speculative.num_speculative_tokens if speculative else 0
        return {**_SIZES, "num_spec": drafts}

    def _make_layer(self, vllm_config: Any) -> None:
        self.embed = on_device(torch.eye(_HIDDEN))
        self.mixer = call_with_known(
            _layer_class(),
            config=_SHAPE,
            vllm_config=vllm_config,
            model_config=vllm_config.model_config,
            cache_config=vllm_config.cache_config,
            speculative_config=vllm_config.speculative_config,
            prefix=LAYER,
        )

    def _known_weights(self) -> Mapping[torch.Tensor, torch.Tensor]:
        by_token = delta_rule.delta_token_inputs(content_for(self.fuzzed))
        inputs = torch.cat((by_token, delta_rule.delta_position_inputs()))
        gate = torch.zeros(_HIDDEN, STATE_WIDTH)
        gate[:VOCAB] = GATE
        out = torch.zeros(_HIDDEN, STATE_WIDTH)
        out[:STATE_WIDTH] = torch.eye(STATE_WIDTH) / GATE
        mixer = self.mixer
        return {
            mixer.in_proj_qkvz.weight: self._in_order(torch.cat((inputs, gate), dim=1)).T,
            mixer.in_proj_ba.weight: self._gates().T,
            mixer.conv1d.weight: delta_rule.delta_conv_weights()[:, None],
            mixer.A_log: torch.full((delta_rule.HEADS,), delta_rule.A_LOG),
            mixer.dt_bias: torch.full((delta_rule.HEADS,), delta_rule.DT_BIAS),
            mixer.norm.weight: torch.ones(delta_rule.HEAD_WIDTH),
            mixer.out_proj.weight: out,
        }

    def _in_order(self, flat: torch.Tensor) -> torch.Tensor:
        """Columns of q, k, v and the gate; 0.17.1 has them head by head
        (qwen3_next.py, fix_query_key_value_ordering)."""
        if hasattr(self.mixer, "gqa_interleaved_layout"):
            return flat
        keys, values = (delta_rule.POSITIONS,) * 2, (STATE_WIDTH // delta_rule.KEY_HEADS,) * 2
        return _head_by_head(flat.split(_of_all_heads(*keys, *values), dim=1))

    def _gates(self) -> torch.Tensor:
        """[_HIDDEN, 2 * HEADS]: b, then a; 0.17.1 has them head by head."""
        gates = torch.zeros(_HIDDEN, 2, delta_rule.HEADS)
        gates[:VOCAB, 0], gates[:VOCAB, 1] = delta_rule.delta_betas(), delta_rule.delta_gates()
        if hasattr(self.mixer, "gqa_interleaved_layout"):
            return gates.flatten(1)
        return _head_by_head(gates.unbind(1))

    def _compute(self, input_ids: torch.Tensor, positions: torch.Tensor) -> Any:
        demand_rows(positions, len(input_ids), "positions", FORWARD)
        tokens = demand_lookup(self.embed[:VOCAB], input_ids, "input_ids", FORWARD)
        places = demand_lookup(self.embed[VOCAB:], positions, "positions", FORWARD)
        return self._run(tokens + places)

    def _run(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layer, which writes into a tensor of its caller up to 0.25."""
        out = torch.zeros_like(hidden)
        given: torch.Tensor | None = call_with_known(
            self.mixer.forward, hidden_states=hidden, output=out
        )
        return out if given is None else given
