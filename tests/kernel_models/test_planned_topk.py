"""The model of the selection by a plan, against sorting by hand and its own rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.planned_topk import plan_topk, transform_planned
from fuzzgraph.memory import GuardedMemory

KEYS, PAGE, TOPK = 8, 4, 3
UNTOUCHED = 99


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values).int()


def scores(rows: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.stack([torch.randperm(KEYS).float() for _ in range(rows)])


def tables(rows: int) -> torch.Tensor:
    return torch.arange(10, 10 + 2 * rows).view(rows, 2).int()


def planned(lens: torch.Tensor, threshold: int = -1, width: int = 2) -> torch.Tensor:
    plan = torch.full((len(lens) + 1, width), UNTOUCHED, dtype=torch.int32)
    plan_topk(lens, plan, threshold)
    return plan


def best(score: torch.Tensor, length: int) -> list[int]:
    """Places of the best keys by repeated search for the largest."""
    left = {place: float(score[place]) for place in range(length)}
    found: list[int] = []
    while left and len(found) < TOPK:
        found.append(max(left, key=lambda place: left[place]))
        del left[found[-1]]
    return sorted(found) + [-1] * (TOPK - len(found))


def slots_of(table: torch.Tensor, places: list[int]) -> list[int]:
    return [-1 if at < 0 else int(table[at // PAGE]) * PAGE + at % PAGE for at in places]


def selected(lens: torch.Tensor, plan: torch.Tensor, **changes: Any) -> torch.Tensor:
    slots = torch.full((len(lens), TOPK), UNTOUCHED, dtype=torch.int32)
    call = {"seq_lens": lens, "page_indices": slots, "page_size": PAGE, "metadata": plan, **changes}
    call.setdefault("page_table", tables(len(lens)))
    if "scores" not in call:
        call["scores"] = scores(len(lens))
    transform_planned(**call)
    return slots


def misuses(lens: torch.Tensor, plan: torch.Tensor) -> list[str]:
    """Rules that a selection breaks by the content of its arguments."""
    memory = GuardedMemory()
    with memory.intercept("engine"):
        selected(lens, plan)
    return [found.rule for found in memory.lanes.report.take_misuses()]


def test_a_plan_lists_each_row_with_keys_and_its_length() -> None:
    assert planned(ints(8, 0, 5)).tolist() == [[0, 2], [0, 8], [2, 5], [UNTOUCHED] * 2]


def test_a_plan_lists_the_rows_beyond_the_threshold_that_it_is_given() -> None:
    assert planned(ints(8, 3, 5), threshold=5)[:2].tolist() == [[5, 1], [0, 8]]


def test_a_plan_of_an_older_release_has_wider_entries() -> None:
    assert planned(ints(8, 5), width=4).tolist() == [[0, 2, 0, 0], [0, 8, 0, 0], [1, 5, 0, 0]]


def test_a_single_row_is_selected_without_a_plan() -> None:
    lens = ints(8)
    plan = planned(lens)
    assert plan.tolist() == [[UNTOUCHED] * 2] * 2
    assert selected(lens, plan)[0].tolist() == slots_of(tables(1)[0], best(scores(1)[0], 8))


@pytest.mark.parametrize("width", [2, 4])
def test_each_row_gives_the_slots_of_its_best_keys(width: int) -> None:
    lens = ints(8, 4, 3, 0)
    found = selected(lens, planned(lens, width=width))
    for row, length in enumerate(lens.tolist()):
        assert found[row].tolist() == slots_of(tables(4)[row], best(scores(4)[row], length))


def test_rows_below_the_threshold_are_selected_without_the_pool() -> None:
    lens = ints(8, 5)
    found = selected(lens, planned(lens, threshold=6))
    assert [row.tolist() for row in found] == [
        slots_of(tables(2)[row], best(scores(2)[row], int(lens[row]))) for row in range(2)
    ]


def test_without_a_page_table_places_are_given() -> None:
    lens = ints(8, 2)
    found = selected(lens, planned(lens), page_table=None)
    assert found.tolist() == [best(scores(2)[0], 8), [0, 1, -1]]


def test_places_are_given_beside_the_slots() -> None:
    lens, places = ints(8, 2), torch.zeros(2, TOPK, dtype=torch.int32)
    selected(lens, planned(lens), raw_indices=places)
    assert places.tolist() == [best(scores(2)[0], 8), [0, 1, -1]]


def test_a_row_with_few_keys_takes_all_of_them_without_a_look_at_scores() -> None:
    lens = ints(3, 2)
    found = selected(lens, planned(lens), scores=torch.full((2, KEYS), math.nan))
    assert found.tolist() == [slots_of(tables(2)[row], at) for row, at in
                              enumerate([[0, 1, 2], [0, 1, -1]])]  # fmt: skip


def test_a_row_that_a_plan_leaves_out_keeps_what_its_output_held() -> None:
    found = selected(ints(8, 8), planned(ints(8, 0)), page_table=None)
    assert found.tolist() == [best(scores(2)[0], 8), [UNTOUCHED] * TOPK]


def test_a_row_is_selected_among_as_many_keys_as_its_plan_says() -> None:
    found = selected(ints(8, 8), planned(ints(5, 4)), page_table=None)
    assert found.tolist() == [best(scores(2)[row], length) for row, length in enumerate((5, 4))]


def test_a_plan_of_the_same_lengths_breaks_no_rule() -> None:
    assert misuses(ints(8, 5), planned(ints(8, 5))) == []


@pytest.mark.parametrize("others", [(8, 0), (8, 4), (8, 8)])
def test_a_plan_of_other_lengths_breaks_a_rule(others: tuple[int, ...]) -> None:
    (rule,) = misuses(ints(8, 5), planned(ints(*others)))
    assert "metadata must be planned for these lengths" in rule


def test_a_plan_that_nobody_wrote_breaks_a_rule() -> None:
    plan = torch.full((3, 2), -(2**31), dtype=torch.int32)
    (rule,) = misuses(ints(8, 5), plan)
    assert "metadata must be planned for these lengths" in rule


def test_a_negative_length_breaks_a_rule() -> None:
    lens = ints(8, -1)
    assert "seq_lens must not be negative" in misuses(lens, planned(lens))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"scores": scores(2).double()}, "scores must be float32"),
        ({"scores": torch.zeros(2, 7)}, "score_stride must be a multiple of 4"),
        ({"scores": torch.zeros(8, 4).T}, "contiguous in its last dimension"),
        ({"seq_lens": torch.tensor([3, 3])}, "seq_lens must be int32"),
        ({"seq_lens": ints(3)}, r"seq_lens must be \[2\]"),
        ({"page_table": tables(3)}, r"page_table must be \[2, any\]"),
        ({"page_table": tables(2).long()}, "page_table must be int32"),
        ({"page_indices": torch.zeros(2, 3)}, "page_indices must be int32"),
        ({"page_indices": torch.zeros(2, 6).int()[:, :3]}, "page_indices must be contiguous"),
        ({"page_indices": torch.zeros(2, 0).int()}, "topk must be positive"),
        ({"page_indices": torch.zeros(2, 2049).int()}, "at most 2048"),
        ({"page_size": 3}, "page_size must be a power of two"),
        ({"metadata": torch.zeros(2, 2).int()}, r"metadata must be \[3, any\]"),
        ({"metadata": torch.zeros(3, 3).int()}, "2 integers or 4"),
        ({"metadata": torch.zeros(3, 2)}, "metadata must be int32"),
        ({"raw_indices": torch.zeros(2, 2).int()}, r"raw_indices must be \[2, 3\]"),
        (
            {"raw_indices": torch.zeros(2, 3).int(), "page_table": None},
            "raw_indices requires a page table",
        ),
    ],
)
def test_a_selection_refuses(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        selected(ints(3, 3), planned(ints(3, 3)), **changes)


@pytest.mark.parametrize(
    ("lens", "plan", "rule"),
    [
        (torch.tensor([3, 3]), torch.zeros(3, 2).int(), "seq_lens must be int32"),
        (ints(3, 3), torch.zeros(2, 2).int(), r"metadata must be \[3, any\]"),
        (ints(3, 3, 3, 3)[::2], torch.zeros(3, 2).int(), "seq_lens must be contiguous"),
    ],
)
def test_a_planner_refuses(lens: torch.Tensor, plan: torch.Tensor, rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        plan_topk(lens, plan, -1)


def test_a_length_beyond_the_page_table_is_followed_and_recorded() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        lens = ints(8, 8)
        selected(lens, planned(lens), page_table=tables(2)[:, :1].contiguous())
    found = memory.lanes.report.take_accesses()
    assert {access.buffer for access in found} == {"page_table"}


def test_a_replay_selects_by_the_present_plan() -> None:
    memory = GuardedMemory()
    graphs = Recorder(memory)
    with memory.intercept("engine"):
        lens = ints(8, 8)
        plan = planned(lens)
    given = {"scores": scores(2), "page_table": None}
    graph = graphs.capture(lambda: selected(lens, plan, **given), key="decode/2")
    lens.fill_(5)
    plan.copy_(planned(ints(5, 5)))
    with memory.over_lanes():
        graph.replay()
    assert graph.outputs.tolist() == [best(scores(2)[row], 5) for row in range(2)]
