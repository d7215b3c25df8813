"""Keys that tokens see where a model computes a batch in parts."""

from __future__ import annotations

import numpy as np

from fuzzgraph.handover import Attended, Handover, QueryRow
from fuzzgraph.observation import BatchPart, StepRecord
from fuzzgraph.oracles.handover import Handovers
from tests.unit.oracles.test_handover import record

HALVES = (BatchPart(0, 1, 2), BatchPart(1, 3, 3))
"""Of four rows, two of them live; the first half is given one token more than it has."""


def messages(step: StepRecord, *halves: list[list[int]]) -> list[str]:
    """What is found of one launch for each half, which sees these slots, token by token."""
    step.runs["replay"].parts = HALVES
    step.runs["replay"].handovers = tuple(
        Handover("attend", "kernel", number, attended=(_attended(slots),))
        for number, slots in enumerate(halves)
    )
    del step.runs["eager"]
    return [finding.message for finding in Handovers().judge(step)]


def _attended(slots: list[list[int]]) -> Attended:
    rows = tuple(QueryRow(token, 1, np.array(each)) for token, each in enumerate(slots))
    return Attended(rows, len(slots), "slot", 0.5)


def keys(step: StepRecord, row: int) -> list[int]:
    found: list[int] = step.batch.kv_slots.row(row).tolist()
    return found


def test_each_half_counts_its_tokens_from_its_first_one() -> None:
    step = record()
    assert messages(step, [keys(step, 0), [0]], [keys(step, 1), [0], [0]]) == []


def test_a_half_with_the_rows_of_the_first_is_found() -> None:
    step = record()
    (message,) = messages(step, [keys(step, 0), [0]], [keys(step, 0), [0], [0]])
    assert "token 1 sees slot" in message


def test_a_token_that_pads_a_half_sees_the_reserved_page_alone() -> None:
    step = record()
    (message,) = messages(step, [keys(step, 0), keys(step, 1)], [keys(step, 1), [0], [0]])
    assert "not of the reserved page" in message
