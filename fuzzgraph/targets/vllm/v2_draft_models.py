"""The two models of EAGLE as the V2 runner has them, whose drafts are captured whole.

A step verifies the drafts of the step before it, so that the same ids are tokens of the target
model, of which a draft takes the hidden state, and of the draft model, one place further on. An id
of the target names both: a token, and the one behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuzzgraph.content import hidden_rows, hidden_width
from fuzzgraph.targets.vllm.attention_model import OneLayer
from fuzzgraph.targets.vllm.configuration import Drafting, drafted_width
from fuzzgraph.targets.vllm.draft_models import DraftedFor, DraftLayer
from fuzzgraph.world import VOCAB

VERIFIED = Drafting("EagleFuzzGraphDraftInGraphs", verified=True)


def followed(tokens: Sequence[int], last: int) -> list[int]:
    """Ids of a target's tokens: the first one, then `tokens`; the one behind them is `last`."""
    pairs = zip([0, *tokens], [*tokens, last], strict=True)
    return [token + VOCAB * behind for token, behind in pairs]


class VerifiedFor(DraftedFor):
    """The target model: the hidden state of a token is that of the one behind it."""

    architecture = f"{OneLayer.architecture}VerifiedFor"
    vocab = VERIFIED.vocab

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any) -> Any:
        """[tokens, drafted_width]"""
        return self.embed.index_select(0, hidden_rows(input_ids // VOCAB, positions))


class DraftLayerInGraphs(DraftLayer):
    """The draft model. A graph holds the head too, and several forwards, so that what was sampled
    from is kept by the device."""

    architecture = VERIFIED.architecture
    broken_at_attention = False

    def _make_layer(self, vllm_config: Any) -> None:
        super()._make_layer(vllm_config)
        weight, steps = self.embed, self.fuzzed.spec_steps
        rows, width = vllm_config.scheduler_config.max_num_seqs, drafted_width(self.fuzzed)
        self.kept = torch.zeros(rows, steps, width, dtype=weight.dtype, device=weight.device)
        """[rows, steps, width] hidden states from which each token of a draft was sampled."""

    def _drafted(
        self, input_ids: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        return super()._drafted(input_ids % VOCAB, positions, hidden_states)

    def compute_logits(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
        width = hidden_width(self.fuzzed)
        forwards = hidden_states[:, width].long().clamp(1, self.fuzzed.spec_steps)
        place = (forwards - 1)[:, None, None].expand(-1, 1, hidden_states.shape[1])
        self.kept[: len(hidden_states)].scatter_(1, place, hidden_states[:, None])
        return hidden_states[:, width - VOCAB : width].float()
