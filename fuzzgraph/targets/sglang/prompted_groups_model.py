"""A layer of Qwen's sparse attention in prompts, whose graphs break at its indexer too.

Real are the methods of the engine's decoder layer that select: between the indexer, which runs
eagerly, and attention, what is selected goes over a buffer that all graphs of a layer share. The
layer's constructor, which would load weights, is left out.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.attention_model import Body, PrefillModel, Rope, as_logits
from fuzzgraph.targets.sglang.block_selecting_model import BlockSelectingModel
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["MODELS", "PromptedGroupsModel", "PromptsModel"]

MODELS = "sglang.srt.models.qwen4_exp"


class PromptedGroupsModel(BlockSelectingModel):
    """The layer, selecting by the engine's own methods."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        rope: Rope = "apart",
        draft_layer: int = 0,
    ) -> None:
        super().__init__(config, device, rope, draft_layer)
        self.decoder_layer = _decoder_layer(self)

    def more(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> dict[str, Any]:
        if forward_batch.forward_mode.is_idle():
            return {}
        hidden = self.hidden_of(input_ids, positions)
        found = self.decoder_layer._compute_qsa_topk_indices(hidden, positions, forward_batch)
        return {"topk_indices": found}


def _decoder_layer(model: PromptedGroupsModel) -> Any:
    """The engine's decoder layer, of which only what selects is there."""
    engine: Any = engine_module(MODELS).Qwen4ExpAttentionDecoderLayer

    class Layer(engine):  # type: ignore[misc]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.layer_id = model.layer.layer_id
            # Where a release keeps what is selected between a break and the graph behind it.
            self._qsa_prefill_topk_bridge = None  # 0.5.22
            self._qsa_prefill_topk_bridges: list[torch.Tensor] = []  # from 0.5.23 on

        def indexer(self, *given: Any) -> torch.Tensor:
            return model.selected(*given)

    return Layer()


class _Body(Body):
    """Hands out hidden states beside its output, where the engine's runner looks for them."""

    last_hc_hidden_states: torch.Tensor | None = None

    def forward(self, *given: Any, **named: Any) -> torch.Tensor:
        self.last_hc_hidden_states = None
        attended = super().forward(*given, **named)
        self.last_hc_hidden_states = attended * 1
        return attended


class PromptsModel(PrefillModel):
    """The layer where prefill runners look for a body, with hidden states for a draft model."""

    kind = PromptedGroupsModel
    body_kind = _Body
    model: _Body

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """As the engine's outer model does it (qwen4_exp.py, Qwen4ExpForConditionalGeneration)."""
        found = as_logits(self.body(input_ids, positions, forward_batch))
        found.hidden_states = self.model.last_hc_hidden_states
        return found
