"""A model that takes images, as sglang runs it: a wrapper, and a body of embeddings and positions.

The wrapper is as those of Qwen2.5-VL: the engine's `general_mm_embed_routine` puts the embeddings
of images between those of text, and hands them with the three rows of positions to the body, which
prefill graphs hold. No encoder runs: a batch brings what one would give.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.targets.offline.demands import demand_lookup, demand_rows
from fuzzgraph.targets.sglang.attention_model import FORWARD, AttentionModel, Body, PrefillModel
from fuzzgraph.targets.sglang.release import engine_module

_ROUTINE = "sglang.srt.managers.mm_utils"
_POSITIONS = "mrope_positions"


class _EmbeddedAttention(AttentionModel):
    """One layer whose queries also depend on where a token is in an image."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device)
        weight = content_for(config).weights["mrope_embed"]
        self.mrope_embed = torch.empty_like(weight, device=device).copy_(weight)

    def qkv(
        self, input_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Here `input_ids` are embeddings, [tokens, columns], and `positions` [3, tokens].

        One row of positions is those of text, as the engine's rotary embedding takes them.
        """
        config = self._config
        query = config.num_q_heads * config.head_dim
        keys = query + config.num_kv_heads * config.head_dim
        first = positions if positions.dim() == 1 else positions[0]
        packed = input_ids + demand_lookup(self.pos_embed, first, "positions", FORWARD)
        if positions.dim() == 1:
            return packed[:, :query], packed[:, query:keys], packed[:, keys:]
        moved = demand_lookup(self.mrope_embed, positions[1], _POSITIONS, FORWARD)
        return packed[:, :query] + moved, packed[:, query:keys], packed[:, keys:]


class _EmbeddedBody(Body):
    """The outputs of embeddings and positions."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__(config, device, _EmbeddedAttention)
        self.embed_tokens: torch.nn.Embedding
        self.embed_tokens = torch.nn.Embedding.from_pretrained(self.attention.embed)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embed_tokens

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        embeds = input_embeds
        if embeds is None:
            assert input_ids is not None
            embeds = demand_lookup(self.attention.embed, input_ids, "input_ids", FORWARD)
        demand_rows(positions.T, len(embeds), _POSITIONS, FORWARD)
        attended: torch.Tensor = self.attention.attend(embeds, positions, forward_batch)
        return attended * 1  # something behind attention, so that the last piece holds work


class ImageModel:
    """The wrapper around a model's body, of `PrefillModel` or one like it."""

    is_mrope_enabled = True

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.model = _EmbeddedBody(config, device)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.model.get_input_embeddings()

    def get_image_feature(self, items: Any) -> torch.Tensor:
        raise NotImplementedError("images come as embeddings")

    def body(self, input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        """What the engine's routine makes of ids, images and positions."""
        routine = engine_module(_ROUTINE).general_mm_embed_routine
        return routine(
            input_ids=input_ids,
            forward_batch=forward_batch,
            language_model=self.model,
            multimodal_model=self,
            positions=forward_batch.mrope_positions,
        )


def with_images(model: type[PrefillModel]) -> type[PrefillModel]:
    """The model with the wrapper around its body."""
    return type(f"Image{model.__name__}", (ImageModel, model), {})
