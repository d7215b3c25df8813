"""A model of one recurrent layer of the engine, with known weights.

What a layer is given is embedded as one column each, so that its own projections give known
numbers exactly. Its gate multiplies by 32, and its output projection divides by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.content import STATE_WIDTH
from fuzzgraph.targets.offline.demands import demand_instance, demand_rows
from fuzzgraph.targets.vllm.attention_model import FORWARD, OneLayer

GATE = 32.0
"""silu(32) is 32 in float32."""


class OneRecurrentLayer(OneLayer):
    """Tokens, and the engine's layer over them."""

    is_attention_free = True
    has_inner_state = True
    computed = "what the layer computed"
    """How a message names what the layer gives."""
    embed: torch.Tensor
    """What each token is embedded as, and each position where the layer is told of them."""
    mixer: Any
    """The engine's layer."""

    def _known_weights(self) -> Mapping[torch.Tensor, torch.Tensor]:
        """A weight of the layer -> its values."""
        raise NotImplementedError

    def _compute(self, input_ids: torch.Tensor, positions: torch.Tensor) -> Any:
        """What the layer gives: [tokens, columns], of which the first `STATE_WIDTH` are judged."""
        raise NotImplementedError

    def load_known_weights(self) -> None:
        """What the dummy loader filled at random."""
        with torch.no_grad():
            for weight, values in self._known_weights().items():
                weight.copy_(values)

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
        out: torch.Tensor = self._compute(input_ids, positions)
        demand_instance(out, torch.Tensor, self.computed, FORWARD)
        return out[:, :STATE_WIDTH]
