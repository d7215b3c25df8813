"""A model with the engine's own head, where prefill runners look for a body and run its head.

The head is that of `logits_model`. A body that hands out hidden states of several layers gives
them beside those of the last one, as the engine's models do for EAGLE-3.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph import language_head
from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.attention_model import Body, PrefillModel
from fuzzgraph.targets.sglang.logits_model import LogitsModel


class _SeveralLayers(Body):
    """Hidden states of the last layer, and those of several."""

    def forward(self, *given: Any, **named: Any) -> Any:
        hidden = super().forward(*given, **named)
        return hidden, language_head.several_layers(hidden)


class LogitsPrefillModel(PrefillModel):
    """Attention in the body; logits and hidden states behind it."""

    kind = LogitsModel

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.capture_aux_hidden_states = config.returned_hidden == "aux"
        if self.capture_aux_hidden_states:
            self.body_kind = _SeveralLayers
        super().__init__(config, device)

    @property
    def head(self) -> LogitsModel:
        """What has the engine's head."""
        found = self.model.attention
        assert isinstance(found, LogitsModel)
        return found

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """As the engine's causal models end (sglang llama.py, LlamaForCausalLM.forward)."""
        hidden, aux = self.body(input_ids, positions, forward_batch), None
        if self.capture_aux_hidden_states:
            hidden, aux = hidden
        head = self.head
        return head.processor(input_ids, hidden, head.lm_head, forward_batch, aux)
