"""A model of recurrent layers and layers of attention, as sglang runs hybrid ones."""

from __future__ import annotations

import copy
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, output_of, recurrent_layers
from fuzzgraph.content import DTYPES
from fuzzgraph.reference import token_columns
from fuzzgraph.targets.sglang.attention_model import AttentionModel, Rope, Written, outputs_in
from fuzzgraph.world import Batch

COMPUTED = "what the recurrent layer computed"
"""How a message names it."""


class HybridModel(AttentionModel):
    """Tokens at positions, and both layers over them."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        super().__init__(config, device, rope)
        self.described = self.describe(config)
        self._slots: torch.Tensor | None = None
        self.recurrent: Any = None
        """The engine's recurrent layer, once it is open."""
        self.number = 0
        """Of the recurrent layer among those of the model."""
        self.further: list[HybridModel] = []
        """This model with each further recurrent layer in the place of the first."""
        self._device = device

    @property
    def place(self) -> int:
        """The recurrent layer's number among all layers, by the engine's description."""
        return int([*self.described.mamba2_cache_params.layers][self.number])

    @property
    def layers(self) -> tuple[Any, ...]:
        """All layers, by their numbers."""
        found = {each.place: each.recurrent for each in (self, *self.further)}
        attends = zip(self.described.full_attention_layer_ids, super().layers, strict=True)
        return tuple(layer for _, layer in sorted({**found, **dict(attends)}.items()))

    @staticmethod
    def describe(config: EngineConfig) -> Any:
        """The engine's description of the model."""
        raise NotImplementedError

    def kept_states(self, cache: Any) -> dict[str, Any]:
        """Fields of `Pools` for the layer's part of the engine's `MambaPool`."""
        raise NotImplementedError

    def open_layer(self) -> None:
        """Make the recurrent layers, once the engine has its configuration."""
        for number in range(1, recurrent_layers(self._config)):
            other = copy.copy(self)
            other.number, other.further = number, []
            other._make_recurrent(self._config, self._device)
            self.further.append(other)
        self._make_recurrent(self._config, self._device)

    def on_device(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy of a weight where the engine computes."""
        return torch.empty_like(weight, device=self._device).copy_(weight)

    def of_model(self, weight: torch.Tensor) -> torch.Tensor:
        """The same in the model's dtype; float16 holds the numbers of these models as they are."""
        return self.on_device(weight.to(DTYPES[self._config.dtype]))

    def _make_recurrent(self, config: EngineConfig, device: torch.device) -> None:
        raise NotImplementedError

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """[tokens, STATE_WIDTH] what the recurrent layer computes."""
        raise NotImplementedError

    def use_slots(self, slots: torch.Tensor) -> None:
        """Called once with the engine's map from rows of requests to slots of states."""
        self._slots = slots

    def past(self, batch: Batch) -> list[Written]:
        """Which slot each request was given, as the engine's request pool writes it.

        A row beyond the engine's map has no entry, and the engine's own look-up then fails.
        """
        written = [*super().past(batch)]
        if self._slots is not None and batch.raw_bs:
            rows, slots = batch.req_pool_indices, batch.state_slots
            there = rows < len(self._slots)
            values = torch.from_numpy(slots[there]).to(self._slots.dtype)
            written.append((self._slots, torch.from_numpy(rows[there]), values))
        return written

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """All layers of the tokens' embeddings: attention's columns, then the recurrent ones."""
        inputs = input_ids, positions, forward_batch
        reads = [each._recur(*inputs) for each in (self, *self.further)] if self.further else []
        attended = super().attend(*inputs)
        reads = reads or [self._recur(*inputs)]
        return torch.cat((attended, *(read.to(attended.dtype) for read in reads)), dim=-1)


def split_recurrent(handed_out: Any, config: EngineConfig, output: str) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what such a model gave a runner, by name.

    Args:
        output: what the recurrent layer's output is called.
    """
    shown, columns = handed_out.next_token_logits, token_columns(output, config)
    own = recurrent_layers(config) * columns
    attended = type(handed_out)(next_token_logits=shown[:, :-own].contiguous())
    parts = enumerate(shown[:, -own:].split(columns, dim=1))
    read = {output_of(output, number): part.clone() for number, part in parts}
    return {**outputs_in(attended, config), **read}


def recurrent_names(output: str, config: EngineConfig) -> tuple[str, ...]:
    """Outputs of all recurrent layers, by that of the first."""
    return tuple(output_of(output, number) for number in range(recurrent_layers(config)))
