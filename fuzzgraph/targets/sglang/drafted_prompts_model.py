"""Draft models in prompts: outer models of the engine around a layer whose input is a known stream.

A draft model embeds tokens and joins them with the target model's hidden states to one stream:
Qwen3-Next's does so outside of the body that a prefill graph holds, EAGLE's for Llama inside of it.
Attention is that of the tokens; a row of the stream that is not its token's shows as what it
differs by.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for, hidden_rows
from fuzzgraph.targets.offline.demands import demand_rows
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import FORWARD, AttentionModel, Body
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["INNER_MODELS", "OUTER_MODELS", "StreamBody", "WithoutWeights", "joining_model"]

INNER_MODELS = "sglang.srt.models.llama_eagle"
OUTER_MODELS = "sglang.srt.models.qwen3_next_mtp"
_LOGITS = "sglang.srt.layers.logits_processor"


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


def joining_model(config: EngineConfig, device: torch.device) -> Any:
    """The engine's draft model that a config names, without its constructor, which would load
    weights; its body's output takes the place of logits."""
    return _joined_outside(config, device) if config.outer_join else _joined_inside(config, device)


def _added(both: torch.Tensor) -> torch.Tensor:
    """In the place of the projection of embeddings and hidden states."""
    embedded, hidden = both.chunk(2, -1)
    return embedded + hidden


def _handed_on(hidden: torch.Tensor, forward_batch: Any) -> torch.Tensor | None:
    """The hidden states that the engine's own logits processor hands on."""
    logits = engine_module(_LOGITS)
    processor, metadata = Stub(), logits.LogitsMetadata.from_forward_batch(forward_batch)
    pruned = logits.LogitsProcessor._get_pruned_states(processor, hidden, None, None, metadata)[:4]
    found: torch.Tensor | None = logits.LogitsProcessor._get_hidden_states_to_store(
        processor, hidden, None, None, *pruned, metadata
    )
    return found


class WithoutWeights:
    """What a constructor would have set that loads weights, and what sessions ask of a model."""

    shared_experts_config = None
    decides_on_host = False
    quant_config = None
    lm_head = None


class _Handing(WithoutWeights):
    """What both models have around their body."""

    def logits_processor(
        self, input_ids: Any, hidden: torch.Tensor, lm_head: Any, forward_batch: Any, *_: Any
    ) -> Any:
        """The body's output in the place of logits, and of it what a draft begins with."""
        logits = engine_module(_LOGITS)
        return logits.LogitsProcessorOutput(
            next_token_logits=hidden, hidden_states=_handed_on(hidden, forward_batch)
        )


def _joined_outside(config: EngineConfig, device: torch.device) -> Any:
    engine: Any = engine_module(OUTER_MODELS).Qwen3NextForCausalLMMTP

    class Drafts(_Handing, engine):  # type: ignore[misc]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.model = StreamBody(config, device, AttentionModel)
            self.pre_fc_norm_embedding = self.pre_fc_norm_hidden = torch.nn.Identity()
            self.fc = _added

    return Drafts()


class _Layer:
    """Stands where the engine's body has its decoder layer."""

    def __init__(self, body: StreamBody) -> None:
        self._body = body
        self.input_ids: torch.Tensor | None = None
        """Those of the forward that it is part of."""
        (named,) = body.layers
        self.self_attn = named.self_attn

    def __call__(
        self, positions: Any, stream: torch.Tensor, forward_batch: Any, *residual: Any
    ) -> Any:
        """The layer's output; with a residual of zeros where the engine hands one around."""
        found = self._body(self.input_ids, positions, forward_batch, stream)
        return (found, torch.zeros_like(found)) if residual else found


def _joined_inside(config: EngineConfig, device: torch.device) -> Any:
    engine: Any = engine_module(INNER_MODELS)

    class Joins(engine.LlamaModel):  # type: ignore[misc]
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self._stream = StreamBody(config, device, AttentionModel)
            self.attention, self.embed_tokens = self._stream.attention, self._stream.embed_tokens
            self.layers = [_Layer(self._stream)]
            self.fc = _added

        def forward(
            self,
            input_ids: torch.Tensor,
            positions: torch.Tensor,
            forward_batch: Any,
            input_embeds: torch.Tensor | None = None,
            pp_proxy_tensors: Any = None,
        ) -> Any:
            """The engine's, whose layers are told no ids."""
            self.layers[0].input_ids = input_ids
            given = input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors
            return super().forward(*given)

    class Drafts(_Handing, engine.LlamaForCausalLMEagle):  # type: ignore[misc]
        capture_aux_hidden_states = False

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.model = Joins()
            self.pp_group = Stub(is_last_rank=True)

    return Drafts()
