"""A draft model of Qwen4-Exp in prompts: the engine's own outer model around a layer that it calls.

Outside of the graph the engine embeds tokens and adds the target model's hidden states, one stream
that goes to the body in the place of embeddings; behind the body it hands on the last token's
stream of each request. In the body a layer attends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import hidden_width
from fuzzgraph.targets.sglang.attention_model import as_logits
from fuzzgraph.targets.sglang.drafted_prompts_model import StreamBody, WithoutWeights
from fuzzgraph.targets.sglang.prompted_groups_model import PromptedGroupsModel
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["DRAFT_MODELS", "drafted_model"]

DRAFT_MODELS = "sglang.srt.models.qwen4_exp_mtp"


class _TwoStreams(StreamBody):
    """Hands on the stream behind attention beside its output."""

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found: torch.Tensor = super().forward(input_ids, positions, forward_batch, inputs_embeds)
        return found, found * 1


def drafted_model(config: EngineConfig, device: torch.device) -> Any:
    """The engine's draft model without its constructor, which would load weights; its body's output
    takes the place of logits."""
    engine: Any = engine_module(DRAFT_MODELS).Qwen4ExpForCausalLMMTP

    class Drafts(WithoutWeights, engine):  # type: ignore[misc]
        hc_count = 1

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.model = _TwoStreams(config, device, PromptedGroupsModel)
            self.hidden_size = config.num_q_heads * config.v_head_dim
            self.input_embeds_hidden_size = hidden_width(config)
            self._mtp_input_fusion: Callable[..., torch.Tensor] = torch.add

        def logits_processor(self, input_ids: Any, hidden: Any, *_: Any) -> Any:
            return as_logits(hidden)

    return Drafts()
