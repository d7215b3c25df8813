"""FlashInfer's compiled planners: what they take, what they check, and what they plan by.

Each reads the arguments that the compiled one reads, and no others: FlashAttention 2 takes the
lengths of keys and leaves them, FlashAttention 3 plans by them. All read offsets and lengths on the
host, whatever lies on the device.

Source: FlashInfer 0.6.3 to 0.6.18, include/flashinfer/attention/scheduler.cuh and csrc
batch_decode.cu, batch_prefill.cu, batch_prefill_sm90.cu, batch_mla_plan.cu.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.first_plan import FirstPlan
from fuzzgraph.kernel_models.flashinfer.plan import (
    SOURCE,
    Plan,
    Planned,
    PlanOf,
    host_ints,
    numbers_of,
    write_plan,
)
from fuzzgraph.kernel_models.flashinfer.typed_call import Parameter, named, parameters
from fuzzgraph.kernel_models.launch import side_of
from fuzzgraph.kernel_models.memory import Ints

__all__ = ["STANDS_FOR", "DecodePlanner", "MlaPlanner", "Planner", "PrefillPlanner",
           "PrefillSm90Planner"]  # fmt: skip

STANDS_FOR: dict[int, int] = {}
"""Bytes of a float workspace that was made small on purpose -> the bytes that it stands for."""

_FEW_MULTIPROCESSORS = 4
# Wrappers that are models have no memory in which a plan is staged.
_WORKSPACES = (
    "float_workspace_buffer int_workspace_buffer page_locked_int_workspace_buffer:tensor? "
)
_PREFILL = (
    "qo_indptr kv_indptr kv_len_arr total_num_rows:int batch_size:int num_qo_heads:int"
    " num_kv_heads:int page_size:int enable_cuda_graph:bool head_dim_qk:int head_dim_vo:int"
    " causal:bool window_left:int"
)


class Planner:
    """The compiled module of a wrapper, as its plans and the engine's own fast plans call it.

    Args:
        graph: whether a graph's kernels follow its plans.
    """

    name: ClassVar[str]
    of: ClassVar[PlanOf]
    known: ClassVar[tuple[Parameter, ...]]
    fewest: ClassVar[int | None] = None
    """Of arguments, where releases differ in how many there are."""

    def __init__(self, graph: bool) -> None:
        self._first = FirstPlan(self.name) if graph else None

    def plan(self, *args: Any) -> list[int]:
        """Plan a batch by the host's offsets, into the integer workspace.

        Returns:
            The numbers of the plan; see `plan.planned_by`.

        Raises:
            KernelRefused: the real planner refuses these arguments, or fails on them.
        """
        call = Call(self.name, SOURCE)
        given = named(call, self.known, args, self.fewest)
        if self._first is not None:
            self._first.hold(given)
        self._check_sides(call, given)
        return self._planned(call, given)

    def _planned(self, call: Call, given: Mapping[str, Any]) -> list[int]:
        raise NotImplementedError

    @staticmethod
    def _check_sides(call: Call, given: Mapping[str, Any]) -> None:
        """The planner runs on the host, and stages its plan there; then it is copied."""
        staged = given["page_locked_int_workspace_buffer"]
        on_device = given["float_workspace_buffer"], given["int_workspace_buffer"]
        if staged is not None:
            apart = all(staged.data_ptr() != each.data_ptr() for each in on_device)
            rule = "page_locked_int_workspace_buffer must be memory of the host"
            call.needs(apart and side_of(staged) != "device", rule, "memory of the device")
        for name in ("qo_indptr", "kv_indptr", "indptr", "kv_len_arr", "kv_len"):
            if name in given:
                on_host = side_of(given[name]) != "device"
                call.needs(on_host, f"{name} must be memory of the host", "memory of the device")


class DecodePlanner(Planner):
    """Of kernels with one query in each row.

    `num_kv_heads` and `page_size` scale its items; `window_left`, the cap and the two empty tensors
    are read by nothing.
    """

    name = "BatchDecodeWithPagedKVCacheWrapper.plan"
    of = "decode"
    known = parameters(
        _WORKSPACES + "indptr batch_size:int num_qo_heads:int num_kv_heads:int page_size:int"
        " enable_cuda_graph:bool window_left:int logits_soft_cap:float head_dim_qk:int"
        " head_dim_vo:int empty_q_data empty_kv_data"
    )

    def _planned(self, call: Call, given: Mapping[str, Any]) -> list[int]:
        dims = given["head_dim_qk"], given["head_dim_vo"]
        call.needs(dims[0] == dims[1], "head_dim_qk and head_dim_vo must be the same", dims)
        sizes, rows = _counts(call, given, "num_qo_heads", "num_kv_heads", "page_size")
        pages = _host_offsets(call, "indptr", given["indptr"], rows)
        # DecodeSplitKVIndptr: as unsigned numbers a fall makes more items than memory holds.
        _must_ascend(call, "indptr", pages)
        plan = Plan(np.arange(rows + 1), pages, np.diff(pages) * sizes["page_size"])
        moves = not given["enable_cuda_graph"]
        mark = write_plan(call, given["int_workspace_buffer"], plan, moves=moves)
        return numbers_of(self.of, Planned(rows, 1, mark, sizes))


class PrefillPlanner(Planner):
    """Of FlashAttention 2 with several queries in a row, paged and ragged.

    The lengths of keys are taken and left, as its kernels read them on the device; `causal` too.
    `fixed_uniform_q_len` promises that each plan of a graph has the same uniform length: then
    a plan with more tiles than it may split does without partial results.
    """

    name = "BatchPrefillWithPagedKVCacheWrapper.plan"
    of = "fa2"
    known = parameters(
        _WORKSPACES + _PREFILL + " fixed_split_size:int disable_split_kv:bool"
        " num_colocated_ctas:int uniform_q_len:int fixed_uniform_q_len:bool"
    )
    fewest = len(known) - 2  # up to 0.6.15 without a uniform length, and up to 0.7.2 a fixed one

    def _planned(self, call: Call, given: Mapping[str, Any]) -> list[int]:
        sizes, rows = _counts(call, given, "num_qo_heads", "num_kv_heads", "page_size",
                              "head_dim_qk", "head_dim_vo")  # fmt: skip
        some = rows > 0 or given["enable_cuda_graph"]
        call.needs(some, "batch_size must be at least 1", rows)  # the mean of rows is taken
        group = _group(call, sizes)
        queries = _host_offsets(call, "qo_indptr", given["qo_indptr"], rows)
        pages = _host_offsets(call, "kv_indptr", given["kv_indptr"], rows)
        _must_ascend(call, "qo_indptr", queries)
        _must_ascend(call, "kv_indptr", pages)
        if given["enable_cuda_graph"] or not given["disable_split_kv"]:
            _rows_fit(call, given["total_num_rows"], queries)
        packed = np.diff(queries) * group
        if given["enable_cuda_graph"]:
            tile = self._tile_of_graph(call, given, packed, group)
            self._fits_graph(call, given, packed, np.diff(pages), tile, group)
        else:
            tile = _cta_tile_q(int(packed.sum()) // rows, sizes["head_dim_vo"])
        plan = Plan(queries, pages, np.diff(pages) * sizes["page_size"])
        moves = not given["enable_cuda_graph"]
        mark = write_plan(call, given["int_workspace_buffer"], plan, moves=moves)
        sizes = {**sizes, "window_left": given["window_left"]}
        return numbers_of(self.of, Planned(rows, tile, mark, sizes))

    @staticmethod
    def _tile_of_graph(call: Call, given: Mapping[str, Any], packed: Ints, group: int) -> int:
        """PrefillSplitQOKVIndptr: the longest row that a plan of this graph could have."""
        uniform, dim = given.get("uniform_q_len", 0), given["head_dim_vo"]
        if uniform <= 0:
            longest = given["total_num_rows"] - given["batch_size"] + 1
            return _cta_tile_q(longest * group, dim)
        other = np.flatnonzero(packed != uniform * group)
        rule = f"every row must have the {uniform} queries that uniform_q_len says"
        got = f"{packed[other[0]] // group} in row {other[0]}" if len(other) else ""
        call.needs(not len(other), rule, got)
        return _cta_tile_q(uniform * group, dim)

    @staticmethod
    def _fits_graph(
        call: Call, given: Mapping[str, Any], packed: Ints, pages: Ints, tile: int, group: int
    ) -> None:
        """PrefillSplitQOKVIndptr: the queries that a graph was captured with bound its tiles."""
        rows, uniform = given["batch_size"], given.get("uniform_q_len", 0)
        blocks = max(0, 2 * _planned_multiprocessors() - given["num_colocated_ctas"])
        tiles = -(-given["total_num_rows"] * group // tile) + rows - 1
        if uniform > 0:
            tiles = rows * -(-uniform * group // tile)
        budget = blocks // given["num_kv_heads"]
        items = max(budget, tiles)
        split = 0 if given["disable_split_kv"] else max(0, given["fixed_split_size"])
        chunks = np.ones_like(pages)
        if split:
            if given["window_left"] >= 0:
                reach = -(-(given["window_left"] + tile) // given["page_size"])
                pages = np.minimum(pages, reach)
            chunks = -(-np.maximum(pages, 1) // split)
        needed = int((-(-packed // tile) * chunks).sum())
        rule = f"a plan must have at most the {items} work items of its graph"
        call.needs(needed <= items, rule, needed)
        whole = given.get("fixed_uniform_q_len", False) and uniform > 0 and tiles > budget
        if not given["disable_split_kv"] and (split or not whole):
            size = given["num_qo_heads"] * items * tile * (given["head_dim_vo"] + 1) * 4
            room = _float_bytes(given["float_workspace_buffer"])
            rule = f"the workspace must hold {size} bytes of partial results"
            call.needs(size <= room, rule, f"{room} bytes")


class PrefillSm90Planner(Planner):
    """Of FlashAttention 3, whose kernels read offsets and lengths from the plan alone.

    `causal` weighs its items, and `page_size` and `window_left` are read by nothing.
    """

    name = "BatchPrefillWithPagedKVCacheWrapper.plan of FlashAttention 3"
    of = "fa3"
    known = parameters(_WORKSPACES + _PREFILL)

    def _planned(self, call: Call, given: Mapping[str, Any]) -> list[int]:
        sizes, rows = _counts(call, given, "num_qo_heads", "num_kv_heads", "page_size",
                              "head_dim_qk", "head_dim_vo")  # fmt: skip
        _group(call, sizes)
        queries = _host_offsets(call, "qo_indptr", given["qo_indptr"], rows)
        pages = _host_offsets(call, "kv_indptr", given["kv_indptr"], rows)
        lens = _host_lens(call, "kv_len_arr", given["kv_len_arr"], rows)
        _must_ascend(call, "qo_indptr", queries)
        if given["enable_cuda_graph"]:
            _rows_fit(call, given["total_num_rows"], queries)
        moves = not given["enable_cuda_graph"]
        plan = Plan(queries, pages, lens)
        mark = write_plan(call, given["int_workspace_buffer"], plan, moves=moves)
        return numbers_of(self.of, Planned(rows, 1, mark, sizes))


class MlaPlanner(Planner):
    """Of latent attention, whose kernels read offsets and lengths from the plan alone.

    Its plans lie at the same places for any batch.
    """

    name = "BatchMLAPagedAttentionWrapper.plan"
    of = "mla"
    known = parameters(
        _WORKSPACES + "qo_indptr kv_indptr kv_len num_heads:int head_dim_o:int causal:bool"
    )

    def _planned(self, call: Call, given: Mapping[str, Any]) -> list[int]:
        sizes, _ = _counts(call, {**given, "batch_size": 1}, "num_heads", "head_dim_o")
        kv_len = given["kv_len"]
        call.needs(kv_len.dim() == 1, "kv_len must have 1 dimension", list(kv_len.shape))
        rows = len(kv_len)
        call.needs(rows > 0, "kv_len must have at least one row", rows)
        call.needs_dtype("kv_len", kv_len, torch.int32)
        queries = _host_offsets(call, "qo_indptr", given["qo_indptr"], rows)
        pages = _host_offsets(call, "kv_indptr", given["kv_indptr"], rows)
        _must_ascend(call, "qo_indptr", queries)
        plan = Plan(queries, pages, host_ints(kv_len))
        mark = write_plan(call, given["int_workspace_buffer"], plan, moves=False)
        sizes = {**sizes, "causal": int(given["causal"])}
        return numbers_of(self.of, Planned(rows, 1, mark, sizes))


def _counts(call: Call, given: Mapping[str, Any], *names: str) -> tuple[dict[str, int], int]:
    """(sizes by name, rows); a size that is not above 0 is divided by, or counts nothing."""
    for name in names:
        call.needs(given[name] > 0, f"{name} must be above 0", given[name])
    rows = given["batch_size"]
    call.needs(rows >= 0, "batch_size must not be negative", rows)
    return {name: int(given[name]) for name in names}, int(rows)


def _group(call: Call, sizes: Mapping[str, int]) -> int:
    heads = sizes["num_qo_heads"], sizes["num_kv_heads"]
    rule = "num_qo_heads must be divisible by num_kv_heads"
    call.needs(heads[0] % heads[1] == 0, rule, f"{heads[0]} and {heads[1]}")
    return heads[0] // heads[1]


def _host_offsets(call: Call, name: str, tensor: torch.Tensor, rows: int) -> Ints:
    """[rows + 1] the host's offsets, as the planner reads them: int32."""
    call.needs(tensor.dim() == 1, f"{name} must have 1 dimension", list(tensor.shape))
    call.needs_dtype(name, tensor, torch.int32)
    rule = f"{name} must hold {rows + 1} offsets, one more than there are rows"
    call.needs(len(tensor) > rows, rule, len(tensor))
    return host_ints(tensor)[: rows + 1]


def _host_lens(call: Call, name: str, tensor: torch.Tensor, rows: int) -> Ints:
    """[rows] the host's lengths."""
    call.needs(tensor.dim() == 1, f"{name} must have 1 dimension", list(tensor.shape))
    call.needs_dtype(name, tensor, torch.int32)
    call.needs(
        len(tensor) >= rows, f"{name} must hold a length for each of {rows} rows", len(tensor)
    )
    lens = host_ints(tensor)[:rows]
    call.needs(bool((lens >= 0).all()), f"{name} must not be negative", lens.min(initial=0))
    return lens


def _must_ascend(call: Call, name: str, offsets: Ints) -> None:
    falls = np.flatnonzero(np.diff(offsets) < 0)
    got = f"{offsets[falls[0]]} before {offsets[falls[0] + 1]}" if len(falls) else ""
    call.needs(not len(falls), f"{name} of a plan must not decrease", got)


def _rows_fit(call: Call, total: int, queries: Ints) -> None:
    """The parts of a plan that have an entry for each query are made for `total_num_rows`."""
    rule = f"total_num_rows must be at least the {queries[-1]} queries of the plan"
    call.needs(total >= queries[-1], rule, total)


def _cta_tile_q(packed: int, head_dim: int) -> int:
    """Queries times heads of a group that a tile holds (utils.cuh FA2DetermineCtaTileQ)."""
    if packed > 64 and head_dim < 256:
        return 128
    return 64 if packed > 16 else 16


def _float_bytes(workspace: torch.Tensor) -> int:
    size = workspace.numel() * workspace.element_size()
    return STANDS_FOR.get(size, size)


def _planned_multiprocessors() -> int:
    """Of the device; engines that run without one have said what it has."""
    try:
        return int(torch.cuda.get_device_properties(0).multi_processor_count)
    except (AssertionError, RuntimeError):
        return _FEW_MULTIPROCESSORS
