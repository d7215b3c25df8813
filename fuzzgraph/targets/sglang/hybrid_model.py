"""A model of a recurrent layer and a layer of attention, as sglang runs hybrid ones."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import DTYPES
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
        self._device = device

    @property
    def layers(self) -> tuple[Any, ...]:
        """The recurrent layer, which is numbered first, and the one of attention."""
        return (self.recurrent, self.layer)

    @staticmethod
    def describe(config: EngineConfig) -> Any:
        """The engine's description of the model."""
        raise NotImplementedError

    def kept_states(self, cache: Any) -> dict[str, Any]:
        """Fields of `Pools` for the layer's part of the engine's `MambaPool`."""
        raise NotImplementedError

    def open_layer(self) -> None:
        """Make the recurrent layer, once the engine has its configuration."""
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
        """Both layers of the tokens' embeddings: attention's columns, then the recurrent ones."""
        attended = super().attend(input_ids, positions, forward_batch)
        read = self._recur(input_ids, positions, forward_batch)
        return torch.cat((attended, read.to(attended.dtype)), dim=-1)


def split_recurrent(
    handed_out: Any, config: EngineConfig, output: str, columns: int
) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what such a model gave a runner, by name.

    Args:
        output: what the recurrent layer's output is called.
        columns: of that output.
    """
    shown = handed_out.next_token_logits
    attended = type(handed_out)(next_token_logits=shown[:, :-columns].contiguous())
    return {**outputs_in(attended, config), output: shown[:, -columns:].clone()}
