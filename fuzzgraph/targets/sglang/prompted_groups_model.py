"""A layer of Qwen's sparse attention in prompts, whose graphs break at its indexer too.

Real are the methods of the engine's decoder layer that select: between the indexer, which runs
eagerly, and attention, what is selected goes over a buffer that all graphs of a layer share. The
layer's constructor, which would load weights, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fuzzgraph.block_index import GROUP
from fuzzgraph.case import EngineConfig
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS
from fuzzgraph.targets.sglang.attention_model import Body, PrefillModel, Rope, as_logits
from fuzzgraph.targets.sglang.block_selecting_model import BlockSelectingModel
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import Batch, IntArray

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
        self._before: list[torch.Tensor] = []

    def more(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> dict[str, Any]:
        if forward_batch.forward_mode.is_idle():
            return {}
        hidden = self.hidden_of(input_ids, positions)
        found = self.decoder_layer._compute_qsa_topk_indices(hidden, positions, forward_batch)
        return {"topk_indices": found}

    # What a step leaves, as `LeavesKeys` asks for it

    def begin(self) -> None:
        """Take down what is there before a step."""
        self._before = [each.clone() for each in self._kept()]

    def left(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a step of `batch` has left there, as `reference.group_keys` names it."""
        compressed, ring, places = self._kept()
        found, strays = [], 0
        own = [torch.zeros(len(each), dtype=torch.bool) for each in (compressed, ring, places)]
        for held in own:
            held[0] = True  # where padded groups go
        own[1][:GROUP] = own[2][:GROUP] = True  # and tokens of whole groups
        for whole, pending, groups, slots in _places(batch):
            keys = torch.zeros(len(whole), ring.shape[-1])
            keys[whole] = compressed[groups].float().flatten(1)
            keys[~whole] = ring[slots].float().flatten(1)
            found.append(keys)
            own[0][groups] = own[1][slots] = own[2][slots] = True
            strays += int((places[slots] != torch.from_numpy(pending)[:, None]).any(1).sum())
        for now, before, held in zip(self._kept(), self._before, own, strict=True):
            changed = (now != before).flatten(1).any(1)
            strays += int((changed & ~held).sum())
        return {
            GROUP_KEYS: torch.cat(found) if found else torch.zeros(0, ring.shape[-1]),
            GROUP_STRAYS: torch.full((batch.raw_bs,), strays),
        }

    def _kept(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys of groups by their slots; keys, and positions, of tokens of incomplete ones."""
        layer, pool = self.layer.layer_id, self._pool
        return (
            pool.get_qsa_compressed_k_buffer(layer),
            pool.get_qsa_key_state_buffer(layer),
            pool.qsa_rope_position_buffer,
        )


def _places(batch: Batch) -> Iterator[tuple[torch.Tensor, IntArray, torch.Tensor, torch.Tensor]]:
    """For each request: which new tokens are of whole groups, positions of the others, slots of the
    groups' keys for each of the former, and places of the latter in the ring."""
    for row, cached in enumerate(batch.cached_lens.tolist()):
        slots = batch.kv_slots.row(row)
        new = np.arange(cached, len(slots))
        whole = new < len(slots) // GROUP * GROUP
        pending = new[~whole]
        groups = slots[new[whole] // GROUP * GROUP] // GROUP
        ring = batch.req_pool_indices[row] * GROUP + pending % GROUP
        yield torch.from_numpy(whole), pending, torch.from_numpy(groups), torch.from_numpy(ring)


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
