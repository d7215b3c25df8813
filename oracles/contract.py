"""Clause "metadata and capture tell the truth": what can be judged from one step alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import Field, Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.oracles.comparison import first_difference
from fuzzgraph.reference import capture_truth, live_tokens, live_truth
from fuzzgraph.world import RESERVED_PAGE, RESERVED_SLOT, Batch

__all__ = ["Contract"]

Values = npt.NDArray[Any]
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
                step, self.name, self.clause, buffer=name, symptom="broken_contract",
                message=message,
            )  # fmt: skip
        if (seen := step.runs.get("replay")) is not None:
            yield from self._at_capture(step, seen)

    def _at_capture(self, step: StepRecord, seen: Observation) -> Iterable[Finding]:
        """Values that the graph saw at its capture, by the rule that the replay follows."""
        fields = {field.name: field for field in step.fields}
        for name, got in step.at_capture.items():
            want = capture_truth(fields[name], seen, step.config) if name in fields else None
            if want is None:
                continue
            worst = first_difference(got.reshape(-1), torch.full_like(got, want).reshape(-1))
            if worst is not None:
                message = f"{name}{worst} at capture, by the rule that the replay follows"
                yield claim(
                    step, self.name, self.clause, buffer=name, symptom="broken_contract",
                    message=message, stage="capture", want=want,
                )  # fmt: skip

    def _breaches(self, step: StepRecord) -> Iterator[Breach]:
        seen = step.runs.get("replay")
        if seen is None:
            return
        values = {
            name: _host(tensor)
            for name, tensor in seen.metadata.items()
            if not tensor.is_floating_point()
        }
        for field in step.fields:
            if field.name in seen.metadata:
                yield from _dtype_breaches(field, seen.metadata[field.name])
            if field.name in values:
                yield from _field_breaches(field, values, step, seen)
        yield from _address_breaches(step)
        yield from _engagement_breaches(step)
        for name, actual in seen.types.items():
            needed = seen.types.get(f"{name}.needed", actual)
            if needed != actual:
                yield name, f"{name} is {actual}, the forward needs {needed}: it was not upgraded"


def _host(tensor: torch.Tensor) -> Values:
    return tensor.numpy() if tensor.device.type == "cpu" else tensor.cpu().numpy()


def _field_breaches(
    field: Field, values: dict[str, Values], step: StepRecord, seen: Observation
) -> Iterator[Breach]:
    value = values[field.name]
    if field.axis == "indptr":
        yield from _indptr_breaches(field, value, seen)
        yield from _step_breaches(field, value, step)
    elif field.axis == "indices":
        offsets = values.get(field.name.replace("_indices", "_indptr"))
        if offsets is not None:
            yield from _indices_breaches(field, value, offsets, step, seen)
    elif field.axis == "page_table":
        yield from _page_table_breaches(field, value, step)
    elif field.name == "num_token_non_padded":
        yield from _count_breaches(field, value, step, seen)
    elif field.name == "seq_lens_sum" and "seq_lens" in values:
        yield from _sum_breaches(field, value, values["seq_lens"], seen)
    elif field.axis in ("requests", "tokens"):
        live, padded = _sizes(field, seen)
        if len(value) != padded:
            yield field.name, f"{field.name} has {len(value)} entries for {padded} padded rows"
        yield from _live_breaches(field, value, step)
        yield from _padding_breaches(field, value, live)
    elif field.axis == "scalar":
        yield from _live_breaches(field, value, step)
    if field.selects == "length" and value.size and (least := int(value.min())) < 0:
        yield field.name, f"{field.name} holds the negative length {least}"


def _sizes(field: Field, seen: Observation) -> tuple[int, int]:
    """Live and padded entries of a field on the axis of requests or of tokens."""
    if field.axis == "requests":
        return seen.raw_bs, seen.padded_bs
    return seen.num_tokens, seen.padded_tokens


def _dtype_breaches(field: Field, tensor: torch.Tensor) -> Iterator[Breach]:
    """A kernel takes the bytes for what its signature says, whatever the tensor's dtype is."""
    actual, wanted = str(tensor.dtype).removeprefix("torch."), field.promised_dtype
    if wanted and actual != wanted:
        yield field.name, f"{field.name} must be {wanted}; got {actual}"
    elif tensor.is_floating_point() and field.selects != "nothing":
        yield field.name, f"{field.name} selects a {field.selects} and cannot be {actual}"


def _live_breaches(field: Field, value: Values, step: StepRecord) -> Iterator[Breach]:
    truth = live_truth(field, step.batch, step.config)
    if truth is None:
        return
    flat = value.reshape(-1)
    if len(truth) > len(flat):
        yield field.name, f"{field.name} has {len(flat)} entries for {len(truth)} live ones"
    elif (got := flat[: len(truth)].tolist()) != (want := truth.tolist()):
        at = _first_unequal(got, want)
        yield field.name, f"{field.name}[{at}] is {got[at]}, the batch says {want[at]}"


def _padding_breaches(field: Field, value: Values, live: int) -> Iterator[Breach]:
    if field.padding.kind == "free" or live >= len(value):
        return
    tail = value[live:].reshape(-1).tolist()
    must = [field.padding.value] * len(tail)
    if tail != must:
        at = _first_unequal(tail, must)
        yield (
            field.name,
            f"{field.name}[{live + at}] of a padded row is {tail[at]}, must be the"
            f" {field.padding.kind} value {field.padding.value}"
            + (f" ({field.source})" if field.source else ""),
        )


def _first_unequal(got: list[int], want: list[int]) -> int:
    return next(at for at, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1])


def _count_breaches(
    field: Field,
    value: np.ndarray,
    step: StepRecord,
    seen: Observation,
) -> Iterator[Breach]:
    """Live tokens of this rank: more would let padded rows through, fewer drop live ones."""
    rank, ranks = step.config.attn_tp_rank, step.config.attn_tp_size
    live = live_tokens(step.batch.num_tokens, seen.padded_tokens, step.config)
    if value.size and int(value.flat[0]) != live:
        whose = f"rank {rank} of {ranks} has {live} live tokens of {seen.num_tokens}"
        if seen.padded_tokens % ranks:
            whose = f"{ranks} ranks cannot share {seen.padded_tokens} tokens evenly, rank {rank}"
            whose += f" has {live} live ones of {seen.num_tokens}"
        yield field.name, f"{field.name} is {int(value.flat[0])}, {whose}"


def _sum_breaches(
    field: Field, value: Values, lengths: Values, seen: Observation
) -> Iterator[Breach]:
    """Builders size what they write by it: padded rows have lengths too."""
    if int(value.flat[0]) != (total := int(lengths[: seen.padded_bs].sum())):
        yield (
            field.name,
            f"{field.name} is {int(value.flat[0])}, the lengths of the {seen.padded_bs} padded rows"
            f" add up to {total}",
        )


def _indptr_breaches(field: Field, value: Values, seen: Observation) -> Iterator[Breach]:
    rows, remainder = divmod(len(value) - 1, max(seen.padded_bs, 1))
    if remainder or (not rows and seen.padded_bs):  # several for each, where rows have branches
        yield (
            field.name,
            f"{field.name} must hold padded_bs + 1 = {seen.padded_bs + 1} offsets;"
            f" got {len(value)}",
        )
    offsets = value.tolist()
    if offsets and offsets[0] != 0:
        yield field.name, f"{field.name} must start at 0; got {offsets[0]}"
    for row, (low, high) in enumerate(pairwise(offsets)):
        if high < low:
            yield field.name, f"{field.name} decreases from {low} to {high} at row {row}"
            return


def _step_breaches(field: Field, value: Values, step: StepRecord) -> Iterator[Breach]:
    """The steps of live rows are what the batch says, where the field declares that."""
    truth = live_truth(field, step.batch, step.config)
    if truth is None:
        return
    steps = np.diff(value)
    if len(steps) < len(truth):
        yield field.name, f"{field.name} has {len(steps)} rows for {len(truth)} live ones"
    elif (got := steps[: len(truth)].tolist()) != (want := truth.tolist()):
        at = _first_unequal(got, want)
        yield (
            field.name,
            f"{field.name} gives row {at} {got[at]} entries, the batch says {want[at]}",
        )


def _drafted(batch: Batch, row: int) -> list[int]:
    """Slots of a draft's new tokens, which batch row `row` may read beside its history."""
    if batch.mode != "draft":
        return []
    per_row = len(batch.slot_mapping) // batch.raw_bs
    drafted: list[int] = batch.slot_mapping[row * per_row : (row + 1) * per_row].tolist()
    return drafted


def _indices_breaches(
    field: Field, value: Values, offsets: Values, step: StepRecord, seen: Observation
) -> Iterator[Breach]:
    batch, bounds, slots = step.batch, offsets.tolist(), value.tolist()
    if not bounds or bounds[0] != 0 or any(high < low for low, high in pairwise(bounds)):
        return  # the offsets' own breach says it
    branches = max(1, (len(bounds) - 1) // max(seen.padded_bs, 1))
    encoder = field.name.startswith("encoder")
    for row, (low, high) in enumerate(pairwise(bounds)):
        request = row // branches
        live = request < batch.raw_bs
        truth: list[int] = []
        allowed = {RESERVED_SLOT}
        if live:
            truth = (batch.encoder_slots if encoder else batch.kv_slots).row(request).tolist()
            allowed = {*truth, *([] if encoder else _drafted(batch, request))}
        part = slots[low:high]
        if (stranger := _stranger(part, allowed)) is not None:
            owner = f"row {row}" if live else f"padded row {row}"
            yield field.name, f"{field.name} of {owner} holds slot {stranger}, which is not its own"
            return
        if live and (wrong := _miscounted(part, truth, step)):
            yield field.name, f"{field.name} of row {row} {wrong}"
            return


def _stranger(part: list[int], allowed: set[int]) -> int | None:
    """The first entry that is none of the allowed ones."""
    if allowed.issuperset(part):
        return None
    return next((entry for entry in part if entry not in allowed), None)


def _miscounted(part: list[int], truth: list[int], step: StepRecord) -> str:
    """What is wrong with the slots of one row, all of them its own; '' where nothing is.

    Attention does not ask for an order, but each slot counts once, and a decode reads all of them.
    Windows and cached prefixes are a part; in a draft come those of the branch as well.
    """
    if len(distinct := set(part)) < len(part):
        twice = next(slot for slot in part if part.count(slot) > 1)
        return f"holds slot {twice} {part.count(twice)} times"
    whole = step.batch.mode == "decode" and not step.config.sliding_window
    if whole and (missing := [slot for slot in truth if slot not in distinct]):
        return f"lacks slot {missing[0]}, {len(missing)} of its {len(truth)} tokens"
    return ""


def _page_table_breaches(field: Field, value: Values, step: StepRecord) -> Iterator[Breach]:
    batch, page_size = step.batch, step.config.page_size
    for row in range(len(value)):
        live = row < batch.raw_bs
        used = -(-int(batch.seq_lens[row]) // page_size) if live else 1
        if live and used > value.shape[1]:
            yield (
                field.name,
                f"{field.name} has {value.shape[1]} pages for row {row}, whose"
                f" {int(batch.seq_lens[row])} tokens lie in {used}",
            )
            return
        pages = batch.pages.row(row).tolist() if live else [RESERVED_PAGE]
        part = value[row, :used].tolist()
        if (stranger := _stranger(part, set(pages))) is not None:
            owner = f"row {row}" if live else f"padded row {row}"
            yield field.name, f"{field.name} of {owner} holds page {stranger}, which is not its own"
            return
        if not step.config.sliding_window and part != (want := pages[:used]):
            at = _first_unequal(part, want)
            yield (
                field.name,
                f"{field.name}[{row}, {at}] is page {part[at]}, the row's page there is {want[at]}",
            )
            return


def _engagement_breaches(step: StepRecord) -> Iterator[Breach]:
    if step.engagements == ():
        yield "graph", "no graph was replayed although the batch fits the captured sizes"
    for engaged in step.engagements or ():
        if engaged.python_calls:
            yield (
                "graph",
                f"a replay ran the captured Python again ({engaged.python_calls} calls): it was no"
                " replay",
            )
        for output in engaged.unwritten:
            yield "graph", f"the replay left {output} as it was poisoned before"


def _address_breaches(step: StepRecord) -> Iterator[Breach]:
    for change in step.address_changes:
        yield (
            change.name,
            f"{change.name} lies at another address than the graph captured: the replay reads"
            " the old buffer",
        )
    for name, captured, now in step.dtype_changes:
        yield name, f"{name} is {now} now; the graph captured and reads {captured}"
