"""Metadata against the logical batch alone: each slot and page is there, once, and in its place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.layout import plan
from fuzzgraph.observation import Axis, Contract, Field, Observation, Selects, StepRecord
from fuzzgraph.oracles.contract import Contract as ContractOracle

_FREE = Contract("free")


def _step(length: int, page_size: int = 2, **config: object) -> StepRecord:
    """A decode of one request on a graph of one row."""
    case = Case(
        schema_version=1,
        config=EngineConfig(capture_bs=(1,), page_size=page_size, **config),  # type: ignore[arg-type]
        steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=length),)),),
    )
    return StepRecord(0, "engine", case.config, plan(case)[0], ())


def _messages(step: StepRecord, **metadata: torch.Tensor) -> list[str]:
    kinds: dict[str, tuple[Axis, Selects]] = {
        "kv_indptr": ("indptr", "offset"),
        "kv_indices": ("indices", "slot"),
        "page_table": ("page_table", "page"),
    }
    step.fields = tuple(
        Field(name, *kinds[name], _FREE, unjudged="by this test") for name in metadata
    )
    seen = Observation(1, 1, 1, 1)
    seen.metadata = metadata
    step.runs["replay"] = seen
    return [finding.message for finding in ContractOracle().judge(step)]


def _slots(step: StepRecord) -> list[int]:
    return [int(slot) for slot in step.batch.kv_slots.row(0)]


def _pages(step: StepRecord) -> list[int]:
    return [int(page) for page in step.batch.pages.row(0)]


def _indices(step: StepRecord, slots: list[int]) -> list[str]:
    return _messages(
        step,
        kv_indptr=torch.tensor([0, len(slots)], dtype=torch.int32),
        kv_indices=torch.tensor(slots, dtype=torch.int32),
    )


def _table(step: StepRecord, pages: list[int]) -> list[str]:
    return _messages(step, page_table=torch.tensor([pages], dtype=torch.int32))


def test_the_slots_of_a_row_may_come_in_any_order() -> None:
    step = _step(5)
    assert _indices(step, _slots(step)) == []
    assert _indices(step, _slots(step)[::-1]) == []


def test_a_slot_that_a_decode_leaves_out_is_named() -> None:
    step = _step(5)
    first, *rest = _slots(step)
    (said,) = _indices(step, rest)
    assert f"kv_indices of row 0 lacks slot {first}, 1 of its 5 tokens" in said


def test_a_row_without_any_slots_is_found() -> None:
    (said,) = _indices(_step(5), [])
    assert "5 of its 5 tokens" in said


def test_a_slot_that_counts_twice_is_named() -> None:
    step = _step(5)
    (said,) = _indices(step, [*_slots(step), _slots(step)[1]])
    assert f"kv_indices of row 0 holds slot {_slots(step)[1]} 2 times" in said


def test_a_window_leaves_slots_out() -> None:
    step = _step(5, sliding_window=2)
    assert _indices(step, _slots(step)[-2:]) == []


def test_offsets_for_no_row_at_all_are_found() -> None:
    (said,) = _messages(_step(5), kv_indptr=torch.zeros(1, dtype=torch.int32))
    assert "kv_indptr must hold padded_bs + 1 = 2 offsets; got 1" in said


def test_a_table_names_the_pages_of_a_row_in_order() -> None:
    step = _step(5)
    assert _table(step, _pages(step)) == []


@pytest.mark.parametrize("order", [(0, 0, 0), (2, 1, 0), (0, 2, 2)])
def test_pages_out_of_place_are_found(order: tuple[int, ...]) -> None:
    step = _step(5)
    pages = np.array(_pages(step))[list(order)].tolist()
    (said,) = _table(step, pages)
    at = next(i for i, place in enumerate(order) if place != i)
    assert f"page_table[0, {at}] is page {pages[at]}, the row's page there is" in said
