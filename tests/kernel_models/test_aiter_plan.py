"""AITER's plan of a persistent latent decode, and the kernel that follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.graphs import Recorder
from fuzzgraph.kernel_models.aiter import (
    get_mla_metadata_info_v1,
    get_mla_metadata_v1,
    mla_decode_fwd,
    persistent,
)
from fuzzgraph.memory import GuardedMemory
from tests.kernel_models.dense import dense_attention

HEADS, COLUMNS, VALUE = 16, 8, 5
NAMES = ("work_meta_data", "work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map",
         "reduce_partial_map")  # fmt: skip


def _buffers(rows: int, new: int, **changes: Any) -> dict[str, Any]:
    sizes = get_mla_metadata_info_v1(
        rows, new, HEADS, torch.bfloat16, torch.bfloat16, is_sparse=False, **changes
    )
    found = {}
    for name, (shape, dtype) in zip(NAMES, sizes, strict=True):
        size = shape if isinstance(shape, tuple) else (shape,)
        found[name] = torch.zeros(size, dtype=dtype)
    return found


def _planned(lens: list[int], new: int, block: int = 16, **changes: Any) -> dict[str, Any]:
    """A plan for rows of these lengths."""
    plan = _buffers(len(lens), new, **changes)
    _make(plan, _call(lens, new), new, block)
    return plan


def _make(plan: dict[str, Any], call: dict[str, Any], new: int, block: int = 16) -> None:
    names = {"work_metadata_ptrs" if name == "work_meta_data" else name: tensor
             for name, tensor in plan.items()}  # fmt: skip
    get_mla_metadata_v1(
        call["qo_indptr"], call["kv_indptr"], call["kv_last_page_lens"], HEADS, 1, False, **names,
        kv_granularity=block, max_seqlen_qo=new, uni_seqlen_qo=new,
    )  # fmt: skip


def _call(lens: list[int], new: int) -> dict[str, Any]:
    torch.manual_seed(3)
    slots = torch.randperm(sum(lens) + 3)[: sum(lens)]
    return dict(
        q=torch.randn(len(lens) * new, HEADS, COLUMNS),
        kv_buffer=torch.randn(sum(lens) + 3, 1, 1, COLUMNS),
        o=torch.full((len(lens) * new, HEADS, VALUE), 7.0),
        qo_indptr=torch.arange(0, (len(lens) + 1) * new, new).int(),
        kv_indptr=torch.tensor([0, *lens]).cumsum(0).int(), kv_indices=slots.int(),
        kv_last_page_lens=torch.ones(len(lens)).int(), max_seqlen_q=new, sm_scale=0.5,
    )  # fmt: skip


def _want(call: dict[str, Any], lens: list[int], new: int) -> torch.Tensor:
    ends = np.cumsum(lens)
    rows = []
    for row, length in enumerate(lens):
        slots = call["kv_indices"][ends[row] - length : ends[row]].long()
        keys = call["kv_buffer"][slots, 0]
        seen = torch.ones(new, length).tril(length - new).bool()
        q = call["q"][row * new : (row + 1) * new]
        rows.append(dense_attention(q, keys, keys[..., :VALUE], seen, scale=0.5)[0])
    return torch.cat(rows)


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("block", [1, 4, 16])
@pytest.mark.parametrize("units", [1, 2, 5])
@pytest.mark.parametrize("lens", [[5], [40, 3, 9], [3, 3, 33, 4]])
def test_rows_give_dense_attention_however_they_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, new: int, block: int, units: int, lens: list[int]
) -> None:
    monkeypatch.setattr(persistent, "_UNITS", units)
    call = _call(lens, new)
    mla_decode_fwd(**call, **_planned(lens, new, block))
    torch.testing.assert_close(call["o"].double(), _want(call, lens, new), rtol=1e-6, atol=1e-6)


def test_the_bits_of_a_row_do_not_depend_on_the_plan() -> None:
    lens, outs = [40, 3], []
    for block in (1, 16):
        call = _call(lens, 2)
        mla_decode_fwd(**call, **_planned(lens, 2, block))
        outs.append(call["o"])
    assert torch.equal(*outs)


def test_a_plan_names_every_key_of_every_row_once() -> None:
    lens = [40, 3, 9]
    plan = _planned(lens, 2, 4)
    items = plan["work_info_set"][: plan["work_indptr"][-1]].tolist()
    named = [key for _, _, _, _, low, high, *_ in items for key in range(low, high)]
    assert sorted(named) == list(range(sum(lens)))
    ends = np.cumsum(lens)
    assert all(high + behind == ends[row] for row, _, _, _, _, high, behind, _ in items)


def test_a_plan_for_shorter_rows_shows_in_the_outputs() -> None:
    call = _call([40, 9], 1)
    mla_decode_fwd(**call, **_planned([39, 9], 1))
    assert not torch.allclose(call["o"].double(), _want(call, [40, 9], 1))


def test_a_plan_for_fewer_rows_leaves_the_others_as_they_were() -> None:
    call = _call([5, 4], 1)
    mla_decode_fwd(**call, **_planned([5], 1))
    assert (call["o"][1] == 7.0).all() and (call["o"][0] != 7.0).all()


def test_a_replay_follows_the_plan_that_was_made_since() -> None:
    lens, memory = [40, 9], GuardedMemory()
    with memory.intercept("engine"):
        call, plan = _call(lens, 1), _planned([5, 5], 1, 4)
    graph = Recorder(memory).capture(lambda: mla_decode_fwd(**call, **plan), key="decode/2")
    with memory.over_lanes():
        _make(plan, call, 1, 4)
        graph.replay()
    torch.testing.assert_close(call["o"].double(), _want(call, lens, 1), rtol=1e-6, atol=1e-6)


def _misuse(plan: dict[str, Any], lens: list[int]) -> str:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        mla_decode_fwd(**_call(lens, 1), **plan)
    return str(memory.lanes.report.take_misuses()[0])


def test_a_plan_whose_addresses_are_those_of_another_breaks_a_rule() -> None:
    plan = _planned([40, 9], 1, 4) | {"work_info_set": _buffers(2, 1)["work_info_set"]}
    assert "must lead to the work_indptr and work_info_set beside it" in _misuse(plan, [40, 9])


def test_a_part_that_no_item_computes_breaks_a_rule() -> None:
    plan = _planned([40, 9], 1, 4)
    plan["reduce_partial_map"][0] = 17
    assert "must name parts that work items compute" in _misuse(plan, [40, 9])


def test_an_item_of_more_keys_than_there_are_breaks_a_rule() -> None:
    plan = _planned([40, 9], 1, 4)
    plan["work_info_set"][0, 5] = 1 << 30
    assert "must share out the keys of all rows" in _misuse(plan, [40, 9])


def test_a_plan_larger_than_its_buffers_is_written_beyond_them() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        _make(_buffers(1, 1), _call([5] * 8, 1), 1, 4)
    found = memory.lanes.report.take_accesses()
    assert {access.buffer for access in found} >= {"work_info_set", "reduce_final_map"}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("reduce_final_map", r"reduce_final_map must be \[any, 2\]; got \[4\]"),
        ("work_info_set", r"work_info_set must be \[any, 8\]; got \[4\]"),
        ("reduce_indptr", r"reduce_indptr must be \[any\]; got \[2, 2\]"),
    ],
)
def test_a_plan_of_other_shapes_than_documented_is_refused(name: str, rule: str) -> None:
    wrong = torch.zeros((2, 2) if name == "reduce_indptr" else 4, dtype=torch.int32)
    with pytest.raises(KernelRefused, match=rule):
        _make(_buffers(2, 1) | {name: wrong}, _call([40, 9], 1), 1)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"work_meta_data": torch.zeros(2)}, "work_meta_data must be uint64; got float32"),
        ({"work_info_set": None}, "a persistent call needs work_info_set"),
        ({"reduce_indptr": torch.zeros(3)}, "reduce_indptr must be int32; got float32"),
    ],
)
def test_a_persistent_call_refuses(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        mla_decode_fwd(**_call([5], 1), **(_planned([5], 1) | changes))


def test_the_planner_refuses_blocks_that_are_no_power_of_two() -> None:
    with pytest.raises(KernelRefused, match="must be a power of 2; got 12"):
        _planned([5], 1, 12)


def test_pages_of_several_keys_are_not_followed_with_a_plan() -> None:
    with pytest.raises(KernelNotModelled, match="page_size=4"):
        mla_decode_fwd(**_call([5], 1), **_planned([5], 1), page_size=4)


@pytest.mark.parametrize("mode", [{}, {"fast_mode": False, "intra_batch_mode": True},
                                  {"fast_mode": False}])  # fmt: skip
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_every_plan_fits_into_buffers_of_the_announced_sizes(
    mode: dict[str, bool], rows: int
) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        _planned([40, 3, 9, 1, 25, 17, 2][:rows], 2, 1, **mode)
    assert not memory.lanes.report.take_accesses()
