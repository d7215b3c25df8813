"""AITER's persistent latent decode: a plan shares the keys of all rows out, the kernel follows it.

Source: ROCm/aiter, aiter/ops/attention.py and csrc/kernels/mla/metadata/v1_2_device.cuh for the
plan, asm_mla.cu for who reads it, reduce.cu for the merge of parts, all 2026. How many work items a
row has depends on the device and on nothing that a caller can see, so the model shares blocks out
evenly among a few compute units. Left out are pages of several keys, tiles of one row's queries,
and the folding of heads into rows of 16, which planner and kernel do alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1
from fuzzgraph.kernel_models.attention import Row
from fuzzgraph.kernel_models.checks import Call, check_offsets
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = [
    "PersistentPlan",
    "get_mla_metadata_info_v1",
    "get_mla_metadata_v1",
    "plan_of",
    "persistent_rows",
]

_SOURCE = "ROCm/aiter, aiter/ops/attention.py and metadata/v1_2_device.cuh, 2026"
_UNITS = 4
"""Compute units; a device has hundreds, and short rows would never be split."""
_COLUMNS = 8
# Of an entry of work_info_set: which row, where its partial result goes (-1: it is the result), its
# queries, its keys, and how many keys of the row come behind them.
_ROW = 0
_INTO = 1
_FIRST = 2
_STOP = 3
_KEY = 4
_END = 5
_BEHIND = 6
_SHAPES: dict[str, tuple[int | None, ...]] = {
    "work_info_set": (None, _COLUMNS),
    "reduce_final_map": (None, 2),
}
"""Of a plan's tensors, as `get_mla_metadata_v1` documents them; the others are lists. With heads
that are folded into rows of 16 a kernel needs all of the entries that these shapes announce."""


@dataclass(frozen=True, slots=True)
class PersistentPlan:
    """What the planner writes, by the names that the kernel gives it; all but the first int32."""

    work_meta_data: torch.Tensor
    """uint64 [2] addresses of the next two: by these the kernel finds them."""
    work_indptr: torch.Tensor
    """[units + 1] first work item of each compute unit."""
    work_info_set: torch.Tensor
    """[items, 8]"""
    reduce_indptr: torch.Tensor
    """[tiles + 1] first part of each result."""
    reduce_final_map: torch.Tensor
    """[tiles, 2] query tokens of each result."""
    reduce_partial_map: torch.Tensor
    """[parts] where each part lies."""

    def addresses(self) -> torch.Tensor:
        """int64 [2] of the items, counted from the plan itself: twins lie at other addresses."""
        here = self.work_meta_data.data_ptr()
        items = (self.work_indptr, self.work_info_set)
        return torch.tensor([each.data_ptr() - here for each in items])


def check_plan(call: Call, plan: PersistentPlan) -> None:
    """Refuse what the host code refuses."""
    call.needs_dtype("work_meta_data", plan.work_meta_data, torch.uint64)
    for name in PersistentPlan.__slots__[1:]:
        tensor = getattr(plan, name)
        call.needs(tensor is not None, f"a persistent call needs {name}", None)
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_shape(name, tensor, *_SHAPES.get(name, (None,)))
        call.needs_contiguous(name, tensor)


def plan_of(arguments: dict[str, Any]) -> PersistentPlan | None:
    """The plan among a kernel's arguments; None where it is called without one."""
    if arguments.get("work_meta_data") is None:
        return None
    return PersistentPlan(**{name: arguments.get(name) for name in PersistentPlan.__slots__})  # type: ignore[arg-type]


# ---- the planner


def get_mla_metadata_info_v1(
    batch_size: int,
    max_seqlen_qo: int,
    num_head_qo: int,
    q_dtype: torch.dtype,
    kv_dtype: torch.dtype,
    is_sparse: bool,
    fast_mode: bool = True,
    num_kv_splits: int = 32,
    intra_batch_mode: bool = False,
    max_split_per_batch: int = -1,
) -> tuple[tuple[Any, torch.dtype], ...]:
    """(shape, dtype) of the six tensors of a plan, in the order of `get_mla_metadata_v1`.

    Args:
        batch_size, max_seqlen_qo: rows, and query tokens of the longest.
        num_kv_splits: parts of a row at most where `intra_batch_mode`.
    """
    call = Call("get_mla_metadata_info_v1", _SOURCE)
    call.leaves_out({"is_sparse": is_sparse}, {"is_sparse": False})
    call.needs(num_head_qo % 8 == 0, "query heads must be a multiple of 8", num_head_qo)
    # Heads other than 16 count as rows of 16.
    each = math.ceil(max_seqlen_qo * num_head_qo / (128 if num_head_qo == 16 else 16))
    tiles = batch_size * each
    if intra_batch_mode:
        items = parts = tiles * num_kv_splits
    elif fast_mode:
        items = (batch_size + _UNITS - 1) * each
        parts = min(batch_size + _UNITS - 1, (_UNITS - 1) * 2) * each
    else:
        items = parts = tiles * _UNITS
    if max_split_per_batch > 0:
        parts = max(parts, tiles + min(_UNITS, max_split_per_batch * batch_size))
    shapes = ((items, _COLUMNS), tiles + 1, (tiles, 2), parts)
    return (
        (2, torch.uint64),
        (_UNITS + 1, torch.int32),
        *((shape, torch.int32) for shape in shapes),
    )


def get_mla_metadata_v1(
    seqlens_qo_indptr: Tensor1,
    seqlens_kv_indptr: Tensor1,
    kv_last_page_lens: Tensor1,
    num_heads_per_head_k: int,
    num_heads_k: int,
    is_causal: bool,
    work_metadata_ptrs: torch.Tensor,
    work_info_set: torch.Tensor,
    work_indptr: torch.Tensor,
    reduce_indptr: torch.Tensor,
    reduce_final_map: torch.Tensor,
    reduce_partial_map: torch.Tensor,
    page_size: int = 1,
    kv_granularity: int = 16,
    max_seqlen_qo: int = -1,
    uni_seqlen_qo: int = -1,
    fast_mode: bool = True,
    topk: int = -1,
    max_split_per_batch: int = -1,
    intra_batch_mode: bool = False,
    is_cp_round_robin: bool = False,
    dtype_q: torch.dtype | None = None,
    dtype_kv: torch.dtype | None = None,
) -> None:
    """Share the keys of all rows out among the compute units, in blocks of `kv_granularity`.

    Args:
        seqlens_qo_indptr, seqlens_kv_indptr: int32 [B + 1] offsets of queries and of keys.
        work_metadata_ptrs, ..., reduce_partial_map: a `PersistentPlan`, written.
        uni_seqlen_qo: query tokens of every row; then `seqlens_qo_indptr` is not read. Below 1 it
            is.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("get_mla_metadata_v1", _SOURCE)
    call.leaves_out(
        {"page_size": page_size, "topk": topk, "is_cp_round_robin": is_cp_round_robin,
         "num_heads_k": num_heads_k},
        {"page_size": 1, "topk": -1, "is_cp_round_robin": False, "num_heads_k": 1},
    )  # fmt: skip
    power = kv_granularity > 0 and kv_granularity & (kv_granularity - 1) == 0
    call.needs(power, "kv_granularity must be a power of 2", kv_granularity)
    for name, tensor in (
        ("seqlens_qo_indptr", seqlens_qo_indptr),
        ("seqlens_kv_indptr", seqlens_kv_indptr),
        ("kv_last_page_lens", kv_last_page_lens),
    ):
        call.needs_dtype(name, tensor, torch.int32)
        call.needs(tensor.stride(0) == 1, f"{name} must be contiguous", list(tensor.stride()))
    plan = PersistentPlan(
        work_metadata_ptrs, work_indptr, work_info_set, reduce_indptr, reduce_final_map,
        reduce_partial_map,
    )  # fmt: skip
    check_plan(call, plan)
    launch(
        _PLANNER, qo_indptr=seqlens_qo_indptr, kv_indptr=seqlens_kv_indptr, block=kv_granularity,
        tokens=uni_seqlen_qo, most=max_split_per_batch,
        **{name: getattr(plan, name) for name in PersistentPlan.__slots__},
    )  # fmt: skip


def _plan(
    memory: KernelMemory,
    *,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    block: int,
    tokens: int,
    most: int,
    **tensors: torch.Tensor,
) -> None:
    plan = PersistentPlan(**tensors)
    # v1_2_device.cuh takes the number of rows from the offsets of keys.
    ends = memory.ints(kv_indptr)
    check_offsets(memory, "seqlens_kv_indptr", ends)
    rows = len(ends) - 1
    starts = np.arange(rows + 1) * tokens
    if tokens < 1:
        starts = memory.entries("seqlens_qo_indptr", qo_indptr, np.arange(rows + 1))
    units = _UNITS if most < 0 else min(_UNITS, most * rows)
    blocks = -(-np.maximum(np.diff(ends), 0) // block)
    payload = max(1, -(-int(blocks.sum()) // max(units, 1)))
    items: list[tuple[int, ...]] = []
    firsts, parts, results = [0], [], [0]
    done = into = 0
    for row, (low, high) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        # Where the row crosses from one unit to the next.
        first, last = done, done + int(blocks[row])
        cuts = [first, *range((first // payload + 1) * payload, last, payload), last]
        done = last
        for start, stop in zip(cuts[:-1], cuts[1:], strict=True):
            while len(firsts) <= start // payload:
                firsts.append(len(items))
            split = len(cuts) > 2
            end = min(high, low + (stop - first) * block)
            items.append((row, into if split else -1, int(starts[row]), int(starts[row + 1]),
                          low + (start - first) * block, end, high - end, 0))  # fmt: skip
            if split:
                parts.append(into)
                into += int(starts[row + 1] - starts[row])
        results.append(len(parts))
    firsts += [len(items)] * (_UNITS + 1 - len(firsts))
    results += [len(parts)] * (len(plan.reduce_indptr) - len(results))
    _write_numbers(memory, "work_indptr", plan.work_indptr, firsts)
    _write_numbers(memory, "work_info_set", plan.work_info_set, items)
    _write_numbers(memory, "reduce_indptr", plan.reduce_indptr, results)
    _write_numbers(memory, "reduce_final_map", plan.reduce_final_map,
           list(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)))  # fmt: skip
    _write_numbers(memory, "reduce_partial_map", plan.reduce_partial_map, parts)
    memory.store("work_metadata_ptrs", plan.work_meta_data.view(torch.int64), plan.addresses(),
                 np.arange(2))  # fmt: skip


def _write_numbers(
    memory: KernelMemory, name: str, tensor: torch.Tensor, values: list[Any]
) -> None:
    if values:
        memory.store(name, tensor, torch.tensor(values), np.arange(len(values)))


_PLANNER = ModelKernel("get_mla_metadata_v1", _plan, _SOURCE)


# ---- who follows it


def persistent_rows(
    memory: KernelMemory, plan: PersistentPlan, kv_indices: torch.Tensor, causal: bool
) -> list[Row]:
    """The rows that a decode computes by its plan, parts of one result joined.

    What no work item computes stays as it was; parts that nothing computed are recorded.
    """
    if not torch.equal(plan.work_meta_data.view(torch.int64), plan.addresses()):
        rule = "work_meta_data must lead to the work_indptr and work_info_set beside it"
        memory.misused("work_meta_data", rule, "the addresses of others")
    found, parts = [], {}
    # Of the list it gets an address, and behind its end there may be more of it.
    most = kv_indices.untyped_storage().nbytes() // kv_indices.element_size()
    for item in _work(memory, plan, most):
        if item[_INTO] < 0:
            found.append(_row(memory, kv_indices, [item], item[_FIRST], causal))
        else:
            parts[item[_INTO]] = item
    firsts = memory.ints(plan.reduce_indptr)
    check_offsets(memory, "reduce_indptr", firsts, len(plan.reduce_partial_map))
    for tile in np.flatnonzero(np.diff(firsts) > 1):  # reduce.cu: one part is no result
        count = min(firsts[tile + 1] - firsts[tile], len(plan.reduce_partial_map) + 1)
        span = firsts[tile] + np.arange(count)
        places = memory.entries("reduce_partial_map", plan.reduce_partial_map, span).tolist()
        low, high = memory.ints(plan.reduce_final_map[tile]).tolist()
        group = [parts[place] for place in places if place in parts]
        queries = {item[_STOP] - item[_FIRST] for item in group}
        if len(group) < len(places) or queries != {high - low}:
            # The rest is uninitialised scratch memory or another row's, and so is the result.
            rule = "reduce_partial_map must name parts that work items compute"
            memory.misused("reduce_partial_map", rule, f"{places} for tokens {low} to {high}")
            continue
        found.append(_row(memory, kv_indices, group, low, causal))
    return found


def _work(memory: KernelMemory, plan: PersistentPlan, keys: int) -> list[list[int]]:
    """The entries of work_info_set that compute units take.

    Args:
        keys: that all rows can have together. An item with more is recorded and left out.
    """
    firsts, most = memory.ints(plan.work_indptr), len(plan.work_info_set)
    check_offsets(memory, "work_indptr", firsts, most)
    taken = firsts[0] + np.arange(min(max(0, firsts[-1] - firsts[0]), most))
    found = memory.entries("work_info_set", plan.work_info_set, taken)
    wrong = (found[:, _END] - found[:, _KEY] > keys) | (found[:, _STOP] - found[:, _FIRST] > keys)
    if wrong.any():
        rule = f"work_info_set must share out the keys of all rows, {keys} at most"
        memory.misused("work_info_set", rule, f"{found[wrong][0].tolist()}")
    items: list[list[int]] = found[~wrong].tolist()
    return items


def _row(
    memory: KernelMemory, kv_indices: torch.Tensor, items: list[list[int]], into: int, causal: bool
) -> Row:
    """Queries of these work items, which are those of the first, over the keys of them all."""
    first, tokens = items[0][_FIRST], max(0, items[0][_STOP] - items[0][_FIRST])
    at = np.concatenate([np.arange(item[_KEY], item[_END]) for item in items])
    end = items[-1][_END] + items[-1][_BEHIND]
    slots = memory.entries("kv_indices", kv_indices, at)
    # The last query stands at the row's last key.
    behind = at[None, :] > (end - tokens + np.arange(tokens))[:, None]
    return Row(first, tokens, (slots, np.zeros_like(slots)), behind if causal else None, into=into)
