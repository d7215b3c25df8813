"""A model with the engine's own head: `LogitsProcessor` over a `ParallelLMHead`, behind attention.

The head has the weights of `fuzzgraph.language_head`, loaded by the engine's loader, which pads the
vocabulary to whole blocks. What becomes of hidden states is the engine's business: which of them
get logits, which are handed out, what cuts and caps logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fuzzgraph import language_head
from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import (
    AttentionModel,
    Rope,
    Written,
    as_loaded,
    demand_forward,
)
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.head_ranks import HeadRanks
from fuzzgraph.world import Batch

PROCESSOR = "sglang.srt.layers.logits_processor"
HEADS = "sglang.srt.layers.vocab_parallel_embedding"


class LogitsModel(AttentionModel):
    """Tokens at positions; attention, then logits and hidden states."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        super().__init__(config, device, rope)
        self._device = device
        self.processor: Any = None
        self.lm_head: Any = None
        self.ranks: HeadRanks | None = None

    def open_head(self, ranks: Any) -> None:
        """From here on the model has its head; the server's arguments are the process's.

        Args:
            ranks: the group of all ranks.
        """
        dtype, columns = getattr(torch, self._config.dtype), self._attended_columns
        if isinstance(ranks, HeadRanks):
            ranks.open(self._device, dtype)
            self.ranks = ranks
        # A model's loader makes both on its device, in its dtype.
        with as_loaded(self._device, dtype):
            self.lm_head = call_with_known(
                engine_module(HEADS).ParallelLMHead,
                num_embeddings=language_head.VOCABULARY,
                embedding_dim=columns,
                use_attn_tp_group=self.ranks is None,  # models look at --enable-dp-lm-head
            )
            described = Stub(
                vocab_size=language_head.VOCABULARY,
                final_logit_softcapping=float(self._config.final_logit_cap) or None,
            )
            self.processor = engine_module(PROCESSOR).LogitsProcessor(described)
        held = self.lm_head.weight
        held.weight_loader(held, language_head.head_weight(columns).to(self._device, dtype))

    def past(self, batch: Batch) -> Iterable[Written]:
        yield from super().past(batch)
        if self.ranks is not None:
            yield from self.ranks.past(batch)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """As the engine's causal models end (sglang llama.py, LlamaForCausalLM.forward)."""
        demand_forward(input_ids, positions, forward_batch)
        if len(input_ids):
            hidden = self.attend(input_ids, positions, forward_batch)
        else:  # models leave it out of a rank without tokens
            hidden = self.embed.new_empty(0, self._attended_columns)
        if self.ranks is not None:
            self.ranks.place(forward_batch.global_num_tokens_for_logprob_gpu)
        aux = None
        if self._config.returned_hidden == "aux":
            aux = language_head.several_layers(hidden)
        return self.processor(input_ids, hidden, self.lm_head, forward_batch, aux)
