"""A model of Mamba2 beside attention in one layer, as sglang runs Falcon-H1 and Nemotron-H.

The recurrent part is the engine's own `MambaMixer2` with its projections, convolution and gate.
Tokens are embedded as one column each, so that its own projection gives the numbers of
`recurrent_layers.mamba2` for them, exactly; see `targets.offline.mixer_weights`.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES
from fuzzgraph.recurrent_layers.mamba2 import conv_weights, scan_heads
from fuzzgraph.targets.offline.demands import demand_instance, demand_lookup
from fuzzgraph.targets.offline.mixer_weights import (
    decays,
    in_projection,
    mixer_width,
    out_projection,
)
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.attention_model import FORWARD, as_loaded
from fuzzgraph.targets.sglang.hybrid_model import COMPUTED, HybridModel
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.hybrid_pools import described_mamba2
from fuzzgraph.world import VOCAB

MIXER = "sglang.srt.layers.attention.mamba.mamba"
_CONTEXT = "sglang.srt.model_executor.forward_context"


class Mamba2Model(HybridModel):
    """Tokens, and both parts of the layer over them."""

    describe = staticmethod(described_mamba2)

    @property
    def layers(self) -> tuple[Any, ...]:
        """The engine counts one, by its attention."""
        return (self.layer,)

    def kept_states(self, cache: Any) -> dict[str, Any]:
        conv, state = cache.conv[0][self.number], cache.temporal[self.number]
        turned = frozenset({"conv_state"})
        return dict(state=state.flatten(1), conv_state=conv, transposed_states=turned)

    def _make_recurrent(self, config: EngineConfig, device: torch.device) -> None:
        heads, width = scan_heads(config), mixer_width(config)
        self.columns = self.of_model(torch.eye(VOCAB, width))
        with as_loaded(device, DTYPES[config.dtype]):
            self.mixer = call_with_known(
                engine_module(MIXER).MambaMixer2,
                cache_params=self.described.mamba2_cache_params,
                hidden_size=width,
                use_conv_bias=False,
                use_bias=False,
                n_groups=1,
                activation=None,
                use_rms_norm=False,
            )
        mixer = self.mixer
        with torch.no_grad():
            mixer.in_proj.weight.copy_(in_projection(config, self.number))
            mixer.conv1d.weight.copy_(conv_weights(heads)[:, None])
            mixer.A.copy_(decays(heads.values))
            mixer.D.fill_(1.0)
            mixer.dt_bias.zero_()
            mixer.out_proj.weight.copy_(out_projection(config))

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        hidden = demand_lookup(self.columns, input_ids, "input_ids", FORWARD)
        backend = _backend_of(forward_batch).linear_attn_backend
        out = torch.empty_like(hidden)
        call_with_known(
            backend.forward,
            mixer=self.mixer,
            hidden_states=hidden,
            output=out,
            layer_id=self.place,
            forward_batch=forward_batch,
            use_triton_causal_conv=True,  # as Nemotron-H calls it
        )
        demand_instance(out, torch.Tensor, COMPUTED, FORWARD)
        return out[:, : scan_heads(self._config).output]


def _backend_of(forward_batch: Any) -> Any:
    """The backend that a layer looks up."""
    if has_module(_CONTEXT):
        return engine_module(_CONTEXT).get_attn_backend()
    return forward_batch.attn_backend
