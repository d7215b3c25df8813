"""A draft model of Qwen4-Exp in prompts: the engine's own outer model around a layer that it calls.

Outside of the graph the engine embeds tokens and adds the target model's hidden states, one stream
that goes to the body in the place of embeddings; behind the body it hands on the last token's
stream of each request. In the body a layer attends. Attention is that of the tokens; a row of the
stream that is not its token's shows as what it differs by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for, hidden_rows, hidden_width
from fuzzgraph.targets.offline.demands import demand_rows
from fuzzgraph.targets.sglang.attention_model import FORWARD, AttentionModel, Body, as_logits
from fuzzgraph.targets.sglang.prompted_groups_model import PromptedGroupsModel
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["DRAFT_MODELS", "StreamBody", "drafted_model"]

DRAFT_MODELS = "sglang.srt.models.qwen4_exp_mtp"


class StreamBody(Body):
    """Takes a stream for its input."""

    def __init__(
        self, config: EngineConfig, device: torch.device, kind: type[AttentionModel]
    ) -> None:
        super().__init__(config, device, kind)
        table = content_for(config).hidden_table
        self._hidden = torch.empty_like(table, device=device).copy_(table)
        self._embedded = self._hidden.roll(1, 0)

    def embed_tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[tokens, columns] of a stream before hidden states are added."""
        return self._embedded.index_select(0, input_ids.long())

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        inputs_embeds: torch.Tensor | None = None,
    ) -> Any:
        """As the engine's bodies, which embed tokens where they are given no stream."""
        given = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        stream = demand_rows(given, len(input_ids), "inputs_embeds", FORWARD)
        attended: torch.Tensor = self.attention.attend(input_ids, positions, forward_batch)
        hidden = self._hidden.index_select(0, hidden_rows(input_ids.long(), positions.long()))
        unlike = stream - (self.embed_tokens(input_ids) + hidden)
        return attended + unlike[:, : attended.shape[1]]


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

    class Drafts(engine):  # type: ignore[misc]
        shared_experts_config = None
        decides_on_host = False
        quant_config = None
        lm_head = None
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
