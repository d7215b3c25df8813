"""Recurrent state of padded rows."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzgraph.targets.builtin.faults.fault import Fault, engine
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.registry import FillContext, GraphSlot, PaddingPolicy
from fuzzgraph.targets.builtin.shape import pool_rows
from fuzzgraph.targets.builtin.slots import Slots
from fuzzgraph.world import Batch


class SkipsPaddedRows(BuiltinModel):
    def advance_state(self, input_ids: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        advanced = super().advance_state(input_ids, slots)
        output = torch.empty_like(advanced)
        return torch.where((slots != 0)[:, None], advanced, output)


class PaddedToLastSlot(Slots):
    def state_indices(self) -> GraphSlot:
        return replace(
            super().state_indices(),
            policy=PaddingPolicy.FILL_SENTINEL,
            pad_value=pool_rows(self.config) - 1,
        )


class PaddedToFirstLive(Slots):
    def state_indices(self) -> GraphSlot:
        return replace(super().state_indices(), post_fill=self.repeat_first)

    @staticmethod
    def repeat_first(rows: torch.Tensor, batch: Batch, context: FillContext) -> None:
        rows[context.raw.rows :] = rows[:1]


class StaleStateSlots(Slots):
    def state_indices(self) -> GraphSlot:
        return replace(super().state_indices(), policy=PaddingPolicy.KEEP)


FAULTS = (
    Fault(
        name="sglang-pr-30974-state-update-skips-padded-rows",
        source="sglang PR 30974: the state update skips padded rows, whose output stays empty",
        kind="uninitialised memory",
        clause="reads",
        trigger="a padded batch with recurrent state",
        components=engine(model=SkipsPaddedRows),
    ),
    Fault(
        name="sglang-pr-38997-minus-one-means-last-slot",
        source="sglang PR 38997: index -1 is remapped to the last state slot, which is in use",
        kind="sentinel or null slot",
        clause="writes",
        trigger="a padded batch with recurrent state",
        components=engine(slots=PaddedToLastSlot),
    ),
    Fault(
        name="tensorrt-llm-pr-9873-repeated-state-index",
        source="TensorRT-LLM PR 9873: padded requests repeat the state index of a live one",
        kind="recurrent state",
        clause="computes",
        trigger="a padded batch with recurrent state",
        components=engine(slots=PaddedToFirstLive),
    ),
    Fault(
        name="tensorrt-llm-pr-13151-padding-aliases-live-state",
        source="TensorRT-LLM PR 13151: padded rows keep stale state indices and overwrite the"
        " state of requests that are parked",
        kind="recurrent state",
        clause="writes",
        trigger="a padded batch with recurrent state after a larger one",
        components=engine(slots=StaleStateSlots),
    ),
)
