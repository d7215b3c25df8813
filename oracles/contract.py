"""Clause "metadata and capture tell the truth": what can be judged from one step alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import Field, Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.oracles.comparison import first_difference
from fuzzgraph.world import RESERVED_PAGE, RESERVED_SLOT, Batch, IntArray

__all__ = ["Contract"]

_TRUTH = {  # field name -> attribute of the logical batch that it must repeat for live rows
    "req_pool_indices": "req_pool_indices",
    "out_cache_loc": "slot_mapping",
    "slot_mapping": "slot_mapping",
    "input_ids": "input_ids",
    "positions": "positions",
    "encoder_lens": "encoder_lens",
    "state_indices": "state_slots",
}

Breach = tuple[str, str]
"""Field name and what is wrong with it."""


class Contract:
    """Shapes, ranges, ownership, reserved rows, addresses, capture values and metadata types."""

    name = "contract"
    clause: Clause = "metadata"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for name, message in self._breaches(step):
            yield claim(
                step,
                self.name,
                self.clause,
                buffer=name,
                symptom="broken_contract",
                message=message,
                stage="capture" if "at capture" in message else None,
            )

    def _breaches(self, step: StepRecord) -> Iterator[Breach]:
        seen = step.runs.get("replay")
        if seen is None:
            return
        values = {name: _host(tensor) for name, tensor in seen.metadata.items()}
        for field in step.fields:
            if field.name in values:
                yield from _field_breaches(field, values, step, seen)
        yield from _capture_breaches(step)
        for name, actual in seen.types.items():
            needed = seen.types.get(f"{name}.needed", actual)
            if needed != actual:
                yield name, f"{name} is {actual}, the forward needs {needed}: it was not upgraded"


def _host(tensor: torch.Tensor) -> np.ndarray:  # type: ignore[type-arg]
    return tensor.detach().cpu().numpy() if not tensor.is_floating_point() else tensor.numpy()


def _field_breaches(
    field: Field,
    values: dict[str, np.ndarray],  # type: ignore[type-arg]
    step: StepRecord,
    seen: Observation,
) -> Iterator[Breach]:
    value, batch = values[field.name], step.batch
    if field.axis == "indptr":
        yield from _indptr_breaches(field, value, seen)
    elif field.axis == "indices":
        offsets = values.get(field.name.replace("_indices", "_indptr"))
        if offsets is not None:
            yield from _indices_breaches(field, value, offsets, batch, seen)
    elif field.axis == "page_table":
        yield from _page_table_breaches(field, value, step, seen)
    elif field.axis in ("requests", "tokens"):
        live = seen.raw_bs if field.axis == "requests" else seen.num_tokens
        yield from _live_breaches(field, value, live, batch)
        yield from _padding_breaches(field, value, live)
    if field.selects == "length" and value.size and value.min() < 0:
        yield field.name, f"{field.name} holds the negative length {int(value.min())}"


def _live_breaches(
    field: Field,
    value: np.ndarray,  # type: ignore[type-arg]
    live: int,
    batch: Batch,
) -> Iterator[Breach]:
    truth_name = _TRUTH.get(field.name)
    if truth_name is None:
        return
    truth: IntArray = getattr(batch, truth_name)
    if len(truth) > len(value):
        yield field.name, f"{field.name} has {len(value)} entries for {len(truth)} live ones"
        return
    wrong = np.flatnonzero(value[: len(truth)] != truth)
    if wrong.size:
        at = int(wrong[0])
        yield (
            field.name,
            f"{field.name}[{at}] is {int(value[at])}, the batch says {int(truth[at])}",
        )


def _padding_breaches(
    field: Field,
    value: np.ndarray,  # type: ignore[type-arg]
    live: int,
) -> Iterator[Breach]:
    if field.padding.kind == "free":
        return
    tail = value[live:]
    wrong = np.flatnonzero(tail != field.padding.value)
    if wrong.size:
        at = int(wrong[0])
        yield (
            field.name,
            f"{field.name}[{live + at}] of a padded row is {int(tail[at])}, must be the"
            f" {field.padding.kind} value {field.padding.value}"
            + (f" ({field.source})" if field.source else ""),
        )


def _indptr_breaches(
    field: Field,
    value: np.ndarray,  # type: ignore[type-arg]
    seen: Observation,
) -> Iterator[Breach]:
    if value.dtype != np.int32:
        yield field.name, f"{field.name} must be int32; got {value.dtype}"
    if (len(value) - 1) % max(seen.padded_bs, 1):  # draft: one row per branch
        yield (
            field.name,
            f"{field.name} must hold padded_bs + 1 = {seen.padded_bs + 1} offsets;"
            f" got {len(value)}",
        )
    if len(value) and value[0] != 0:
        yield field.name, f"{field.name} must start at 0; got {int(value[0])}"
    falls = np.flatnonzero(np.diff(value) < 0)
    if falls.size:
        at = int(falls[0])
        yield (
            field.name,
            f"{field.name} decreases from {int(value[at])} to {int(value[at + 1])} at row {at}",
        )


def _owned(batch: Batch, row: int) -> IntArray:
    """Slots that batch row `row` may read: its history, its new ones, its encoder's."""
    per_row = len(batch.slot_mapping) // max(batch.raw_bs, 1) if batch.mode == "draft" else 0
    new = batch.slot_mapping[row * per_row : (row + 1) * per_row]
    return np.concatenate((batch.kv_slots.row(row), new))


def _indices_breaches(
    field: Field,
    value: np.ndarray,  # type: ignore[type-arg]
    offsets: np.ndarray,  # type: ignore[type-arg]
    batch: Batch,
    seen: Observation,
) -> Iterator[Breach]:
    if not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        return  # the offsets' own breach says it
    branches = max(1, (len(offsets) - 1) // max(seen.padded_bs, 1))
    encoder = field.name.startswith("encoder")
    for row in range(len(offsets) - 1):
        part = value[offsets[row] : offsets[row + 1]]
        request = row // branches
        if request < batch.raw_bs:
            allowed = batch.encoder_slots.row(request) if encoder else _owned(batch, request)
        else:
            allowed = np.array([RESERVED_SLOT])
        strangers = part[~np.isin(part, allowed)]
        if strangers.size:
            owner = f"row {row}" if request < batch.raw_bs else f"padded row {row}"
            yield (
                field.name,
                f"{field.name} of {owner} holds slot {int(strangers[0])}, which is not its own",
            )
            return


def _page_table_breaches(
    field: Field,
    value: np.ndarray,  # type: ignore[type-arg]
    step: StepRecord,
    seen: Observation,
) -> Iterator[Breach]:
    batch, page_size = step.batch, step.config.page_size
    for row in range(len(value)):
        if row < batch.raw_bs:
            used = -(-int(batch.seq_lens[row]) // page_size)
            allowed = batch.pages.row(row)
            part = value[row, :used]
        else:
            allowed, part = np.array([RESERVED_PAGE]), value[row, :1]
        strangers = part[~np.isin(part, allowed)]
        if strangers.size:
            owner = f"row {row}" if row < batch.raw_bs else f"padded row {row}"
            yield (
                field.name,
                f"{field.name} of {owner} holds page {int(strangers[0])}, which is not its own",
            )
            return


def _capture_breaches(step: StepRecord) -> Iterator[Breach]:
    for change in step.address_changes:
        yield (
            change.name,
            f"{change.name} lies at another address than the graph captured: the replay reads"
            " the old buffer",
        )
    for name, got in step.at_capture.items():
        want = step.capture_truth[name]
        worst = first_difference(got.reshape(-1), want.to(got.dtype).reshape(-1))
        if worst is not None:
            yield name, f"{name}{worst} at capture, by the rule that the replay follows"
