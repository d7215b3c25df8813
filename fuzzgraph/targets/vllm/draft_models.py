"""A model that drafts as EAGLE's do, and the model that it drafts for.

The draft model is one layer of the engine's attention, with what `fuzzgraph.draft_head` has behind
it; the target model gives the hidden states that a case knows, and has no layer. One more column of
the hidden states counts the forwards of a draft: one captured graph serves them all.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for, hidden_rows, hidden_width, next_token
from fuzzgraph.draft_head import next_hidden
from fuzzgraph.targets.offline.demands import demand_rows
from fuzzgraph.targets.offline.embeddings import looked_up_qkv
from fuzzgraph.targets.vllm.attention_model import OneLayer, attention_layer, on_device
from fuzzgraph.targets.vllm.configuration import COMPILED, DRAFT_ARCHITECTURE, drafted_width
from fuzzgraph.targets.vllm.split_model import SplitForward, runs_in_pieces
from fuzzgraph.world import VOCAB

FORWARD = "the draft model's forward"
_LAYER = "model.layers.1.self_attn.attn"


class _WithEmbeddings(torch.nn.Module):
    """What the proposer looks up of a model, to share it between the two: embeddings."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Module()
        self.embed_tokens.weight = torch.full((1, 1), value)


class DraftedFor(OneLayer):
    """The target model: a token's hidden state is that of the token before it in number, so that a
    draft that takes the wrong one shows."""

    architecture = f"{OneLayer.architecture}DraftedFor"

    def _make_layer(self, vllm_config: Any) -> None:
        table = content_for(self.fuzzed).hidden_table
        more = drafted_width(self.fuzzed) - table.shape[1]
        self.embed = on_device(torch.nn.functional.pad(table, (0, more)))
        self.model = _WithEmbeddings(0.0)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any) -> Any:
        """[tokens, drafted_width]"""
        return self.embed.index_select(0, hidden_rows((input_ids - 1) % VOCAB, positions))


def token_before(token: int) -> int:
    """The token whose hidden state `DraftedFor` gives as that of `token`."""
    return (token + 1) % VOCAB


class DraftLayer(OneLayer):
    """The draft model."""

    architecture = DRAFT_ARCHITECTURE
    broken_at_attention = True
    """Whether its graphs break there."""
    has_own_embed_tokens = has_own_lm_head = True

    def _make_layer(self, vllm_config: Any) -> None:
        weights = content_for(self.fuzzed).weights
        self.embed = on_device(weights["embed"])
        self.pos_embed = on_device(weights["pos_embed"])
        self.attn = attention_layer(self.fuzzed, vllm_config, _LAYER)
        compiled = int(vllm_config.compilation_config.mode) == COMPILED
        if self.broken_at_attention and not compiled:
            self.attn.use_direct_call = True  # graphs break inside of it
        self._split = SplitForward(self._drafted, vllm_config) if compiled else None
        self.model = _WithEmbeddings(1.0)
        self.sampled_from: list[torch.Tensor] = []
        """Hidden states from which each token of a draft was sampled."""

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Hidden states to sample from, and those that the next forward is given: the same."""
        demand_rows(positions, len(input_ids), "positions", FORWARD)
        demand_rows(hidden_states, len(input_ids), "hidden_states", FORWARD)
        forward = self._split if self._split and runs_in_pieces() else self._drafted
        hidden = forward(input_ids, positions, hidden_states)
        return hidden, hidden

    def _drafted(
        self, input_ids: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        config, tokens = self.fuzzed, input_ids.long()
        qkv = looked_up_qkv(self.embed, self.pos_embed, tokens, positions, config, FORWARD)
        attended = self.attn(*(part.contiguous() for part in qkv))
        width = hidden_width(config)
        given, rest = hidden_states[:, :width], hidden_states[:, width:]
        predicted = next_token(tokens, rest[:, 0].long(), 0)
        return torch.cat((next_hidden(attended, given, predicted), rest + 1), dim=-1)

    def compute_logits(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
        self.sampled_from.append(hidden_states.clone())
        width = hidden_width(self.fuzzed)
        return hidden_states[:, width - VOCAB : width].float()


def drafted_outputs(
    kept: torch.Tensor, drafts: torch.Tensor, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """What a draft shows, by row and step.

    Args:
        kept: [rows, steps, drafted_width] hidden states that were sampled from.
        drafts: [rows, steps] tokens that the runner keeps.
    """
    hidden = kept.flatten(0, 1)[:, : hidden_width(config)]
    columns = config.num_q_heads * config.v_head_dim
    attention = hidden[:, :columns].reshape(-1, config.num_q_heads, config.v_head_dim)
    return {
        "attention": attention.clone(),
        "hidden_states": hidden.clone(),
        "draft_tokens": drafts.flatten().clone(),
    }
