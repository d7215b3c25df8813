"""Slots and pages that each row names: its own, each once, padded rows the reserved one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from fuzzgraph.observation import Field, Observation, StepRecord
from fuzzgraph.oracles.entries import Breach, Values, first_unequal
from fuzzgraph.world import RESERVED_PAGE, RESERVED_SLOT, Batch

__all__ = ["indices_breaches", "page_table_breaches"]


def _drafted(batch: Batch, row: int) -> list[int]:
    """Slots of a draft's new tokens, which batch row `row` may read beside its history."""
    if batch.mode != "draft":
        return []
    per_row = len(batch.slot_mapping) // batch.raw_bs
    drafted: list[int] = batch.slot_mapping[row * per_row : (row + 1) * per_row].tolist()
    return drafted


def indices_breaches(
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


def page_table_breaches(field: Field, value: Values, step: StepRecord) -> Iterator[Breach]:
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
            at = first_unequal(part, want)
            yield (
                field.name,
                f"{field.name}[{row}, {at}] is page {part[at]}, the row's page there is {want[at]}",
            )
            return
