"""A model of one layer of attention and a short convolution between two gates, as LFM2 has it.

The convolution is the engine's own `Lfm2ShortConv` with its projections. Tokens are embedded as one
column each, so that the first projection gives the numbers of
`recurrent_layers.gated_convolution` for them, exactly.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES, content_for
from fuzzgraph.recurrent_layers.gated_convolution import (
    GATED_COLUMNS,
    gates_before,
    gates_behind,
    tap_weights,
    values_between,
)
from fuzzgraph.targets.offline.demands import demand_lookup, demand_size
from fuzzgraph.targets.sglang.attention_model import FORWARD, as_loaded
from fuzzgraph.targets.sglang.hybrid_model import COMPUTED, HybridModel
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.hybrid_pools import described_lfm2
from fuzzgraph.world import VOCAB

LFM2_MODEL = "sglang.srt.models.lfm2"


class GatedConvolutionModel(HybridModel):
    """Tokens, and both layers over them."""

    describe = staticmethod(described_lfm2)

    def kept_states(self, cache: Any) -> dict[str, Any]:
        turned = frozenset({"gated_conv_state"})
        return dict(gated_conv_state=cache.conv[0][self.number], transposed_states=turned)

    def _make_recurrent(self, config: EngineConfig, device: torch.device) -> None:
        self.columns = self.of_model(torch.eye(VOCAB, GATED_COLUMNS))
        with as_loaded(device, DTYPES[config.dtype]):
            self.recurrent = engine_module(LFM2_MODEL).Lfm2ShortConv(self.described, self.place)
        gates = gates_before(), gates_behind(), values_between(content_for(config, self.number))
        with torch.no_grad():
            self.recurrent.in_proj.weight.copy_(torch.cat(gates, dim=1).T)
            self.recurrent.conv_weight.copy_(tap_weights())
            self.recurrent.out_proj.weight.copy_(torch.eye(GATED_COLUMNS))

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        hidden = demand_lookup(self.columns, input_ids, "input_ids", FORWARD)
        read: torch.Tensor = self.recurrent(hidden, forward_batch)
        demand_size(read, len(input_ids), GATED_COLUMNS, COMPUTED, FORWARD)
        return read
