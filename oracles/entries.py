"""Entries of one field: their number and dtype, what live and padded ones hold, counts, offsets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.observation import Field, Observation, StepRecord
from fuzzgraph.reference import live_tokens, live_truth

__all__ = [
    "Breach",
    "Values",
    "branches",
    "count_breaches",
    "dtype_breaches",
    "first_unequal",
    "indptr_breaches",
    "live_breaches",
    "padding_breaches",
    "sizes",
    "step_breaches",
    "sum_breaches",
]

Values = npt.NDArray[Any]
Breach = tuple[str, str]
"""Field name and what is wrong with it."""


def sizes(field: Field, seen: Observation) -> tuple[int, int]:
    """Live and padded entries of a field on the axis of requests or of tokens."""
    if field.axis == "requests":
        return seen.raw_bs, seen.padded_bs
    return seen.num_tokens, seen.padded_tokens


def branches(field: Field, step: StepRecord, seen: Observation) -> int:
    """Padded entries of a field over the branches of a draft, where tokens are those of all steps.

    Elsewhere -1, which is no number of entries.
    """
    drafts = "draft" in (step.batch.mode, step.config.modes[0])
    return seen.padded_bs * step.config.spec_topk if drafts and field.axis == "tokens" else -1


def dtype_breaches(field: Field, tensor: torch.Tensor) -> Iterator[Breach]:
    """A kernel takes the bytes for what its signature says, whatever the tensor's dtype is."""
    actual, wanted = str(tensor.dtype).removeprefix("torch."), field.promised_dtype
    if wanted and actual != wanted:
        yield field.name, f"{field.name} must be {wanted}; got {actual}"
    elif tensor.is_floating_point() and field.selects != "nothing":
        yield field.name, f"{field.name} selects a {field.selects} and cannot be {actual}"


def live_breaches(field: Field, value: Values, step: StepRecord) -> Iterator[Breach]:
    truth = live_truth(field, step.batch, step.config)
    if truth is None:
        return
    flat = value.reshape(-1)
    if len(truth) > len(flat):
        yield field.name, f"{field.name} has {len(flat)} entries for {len(truth)} live ones"
    elif (got := flat[: len(truth)].tolist()) != (want := truth.tolist()):
        at = first_unequal(got, want)
        yield field.name, f"{field.name}[{at}] is {got[at]}, the batch says {want[at]}"


def padding_breaches(field: Field, value: Values, live: int) -> Iterator[Breach]:
    if field.padding.kind == "free" or live >= len(value):
        return
    tail = value[live:].reshape(-1).tolist()
    must = [field.padding.value] * len(tail)
    if tail != must:
        at = first_unequal(tail, must)
        yield (
            field.name,
            f"{field.name}[{live + at}] of a padded row is {tail[at]}, must be the"
            f" {field.padding.kind} value {field.padding.value}"
            + (f" ({field.source})" if field.source else ""),
        )


def first_unequal(got: list[int], want: list[int]) -> int:
    return next(at for at, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1])


def count_breaches(
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


def sum_breaches(
    field: Field, value: Values, lengths: Values, seen: Observation
) -> Iterator[Breach]:
    """Builders size what they write by it: padded rows have lengths too."""
    if int(value.flat[0]) != (total := int(lengths[: seen.padded_bs].sum())):
        yield (
            field.name,
            f"{field.name} is {int(value.flat[0])}, the lengths of the {seen.padded_bs} padded rows"
            f" add up to {total}",
        )


def indptr_breaches(field: Field, value: Values, seen: Observation) -> Iterator[Breach]:
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


def step_breaches(field: Field, value: Values, step: StepRecord) -> Iterator[Breach]:
    """The steps of live rows are what the batch says, where the field declares that."""
    truth = live_truth(field, step.batch, step.config)
    if truth is None:
        return
    steps = np.diff(value)
    if len(steps) < len(truth):
        yield field.name, f"{field.name} has {len(steps)} rows for {len(truth)} live ones"
    elif (got := steps[: len(truth)].tolist()) != (want := truth.tolist()):
        at = first_unequal(got, want)
        yield (
            field.name,
            f"{field.name} gives row {at} {got[at]} entries, the batch says {want[at]}",
        )
