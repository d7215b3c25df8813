"""What FlashInfer's compiled planners check, and what of a plan its kernels follow.

A real plan cuts rows into work items and writes them into the wrapper's integer workspace. The cut
is a schedule, which no result depends on. What a result depends on is which queries and keys the
items of a row cover, so this is what a model's plan holds: the host's offsets of queries and of KV,
and the host's lengths. A real item covers 128 keys or more; here a row is covered to the very key
that was planned, so a plan that is too short shows in short rows as it would in long ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.first_plan import FirstPlan, held_to_first
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["DecodePlanner", "MlaPlanner", "Plan", "PrefillPlanner", "host_ints", "int_workspace",
           "int_workspace_bytes", "planned", "read_plan", "sizes_of"]  # fmt: skip

SOURCE = "FlashInfer 0.6.12, include/flashinfer/attention/scheduler.cuh"

_PLAN_MARK = 0x504C414E
"""Begins a plan. Where it is missing, real kernels would follow whatever lies there."""
_LARGEST_PLAN = 8 << 20
"""Bytes of the real integer workspace (decode.py, prefill.py, mla/_core.py)."""
_FEW_MULTIPROCESSORS = 4

STANDS_FOR: dict[int, int] = {}
"""Bytes of a float workspace that was made small on purpose -> the bytes that it stands for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the work items of a plan cover, by row."""

    queries: Ints
    """[rows + 1] offsets of the queries, by which outputs are laid out."""
    pages: Ints
    """[rows + 1] offsets of the pages in the index buffer."""
    lens: Ints
    """[rows] keys; only MLA's kernels read them."""


def int_workspace(rows: int, device: torch.device) -> torch.Tensor:
    """uint8; room for the plan of so many rows, in place of the real 8 MiB."""
    return torch.empty(int_workspace_bytes(rows), dtype=torch.uint8, device=device)


def int_workspace_bytes(rows: int) -> int:
    """Bytes that the plan of so many rows takes."""
    return _plan_words(rows) * 4


def _plan_words(rows: int) -> int:
    return 2 + 2 * (rows + 1) + rows


def host_ints(tensor: torch.Tensor) -> Ints:
    """int64 copy of a tensor, read to the host as a plan reads it."""
    found: Ints = tensor.detach().to("cpu").numpy().astype(np.int64)
    return found


def _write_plan(
    call: Call, workspace: torch.Tensor, queries: Ints, pages: Ints, lens: Ints
) -> None:
    words = np.concatenate(([_PLAN_MARK, len(lens)], queries, pages, lens)).astype(np.int32)
    call.needs(
        words.nbytes <= _LARGEST_PLAN, f"a plan must fit {_LARGEST_PLAN} bytes", words.nbytes
    )
    workspace[: words.nbytes].copy_(torch.from_numpy(words.view(np.uint8)))


def read_plan(memory: KernelMemory, workspace: torch.Tensor, rows: int) -> Plan | None:
    """The plan that lies in a workspace, as a launch over `rows` rows finds it; None if none does.

    Args:
        rows: of the plan at the time of the call, which a graph keeps.
    """
    found = _parsed_plan(workspace, rows)
    if found is None:
        memory.misused(
            "plan", "plan must be called before run, for as many rows", f"none of {rows}"
        )
    return found


def planned(workspace: torch.Tensor) -> Plan | None:
    """The plan that lies in a workspace; None if none does."""
    words = _workspace_words(workspace)
    return (
        _parsed_plan(workspace, int(words[1]))
        if len(words) > 1 and words[0] == _PLAN_MARK
        else None
    )


def _workspace_words(workspace: torch.Tensor) -> Ints:
    found: Ints = workspace.detach().cpu().numpy().view(np.int32).astype(np.int64)
    return found


def _parsed_plan(workspace: torch.Tensor, rows: int) -> Plan | None:
    words = _workspace_words(workspace)
    if len(words) < _plan_words(rows) or words[0] != _PLAN_MARK or words[1] != rows:
        return None
    queries, pages, lens = np.split(words[2 : _plan_words(rows)], [rows + 1, 2 * (rows + 1)])
    return Plan(queries, pages, lens)


def sizes_of(info: Sequence[int]) -> dict[str, int]:
    """The sizes that a plan of decode or prefill was made for, by the names of its arguments."""
    return dict(zip(("num_qo_heads", "num_kv_heads", "page_size"), info[2:], strict=True))


class _Planner:
    """The compiled module of a wrapper, as its plans and the engine's own fast plans call it.

    Args:
        graph: whether a graph's kernels follow its plans.
    """

    name: str
    plan: Callable[..., list[int]]

    def __init__(self, graph: bool) -> None:
        if graph:
            self.plan = held_to_first(self.plan, FirstPlan(self.name))

    def _call(self, on_device: Sequence[torch.Tensor], pinned: torch.Tensor | None) -> Call:
        """A call whose plan is staged in `pinned`, which wrappers that are models have none of.

        The planner writes to it from the host, then copies it to the integer workspace.
        """
        call = Call(self.name, SOURCE)
        if pinned is not None:
            apart = all(pinned.data_ptr() != each.data_ptr() for each in on_device)
            rule = "page_locked_int_workspace_buffer must be memory of the host"
            call.needs(apart, rule, "a workspace of the device")
        return call


def _host_offsets(call: Call, name: str, tensor: torch.Tensor, rows: int) -> Ints:
    """[rows + 1] the host's offsets, as the planner reads them: int32."""
    call.needs_dtype(name, tensor, torch.int32)
    rule = f"{name} must hold {rows + 1} offsets, one more than there are rows"
    call.needs(len(tensor) > rows, rule, len(tensor))
    return host_ints(tensor)[: rows + 1]


def _must_ascend(call: Call, name: str, offsets: Ints) -> None:
    falls = np.flatnonzero(np.diff(offsets) < 0)
    got = f"{offsets[falls[0]]} before {offsets[falls[0] + 1]}" if len(falls) else ""
    call.needs(not len(falls), f"{name} of a plan must not decrease", got)


def _float_bytes(workspace: torch.Tensor) -> int:
    size = workspace.numel() * workspace.element_size()
    return STANDS_FOR.get(size, size)


def _planned_multiprocessors() -> int:
    """Of the device; engines that run without one have said what it has."""
    try:
        return int(torch.cuda.get_device_properties(0).multi_processor_count)
    except (AssertionError, RuntimeError):
        return _FEW_MULTIPROCESSORS


class DecodePlanner(_Planner):
    """Of kernels with one query in each row."""

    name = "BatchDecodeWithPagedKVCacheWrapper.plan"

    def plan(
        self,
        float_workspace: torch.Tensor,
        int_workspace: torch.Tensor,
        pinned: torch.Tensor | None,
        indptr: torch.Tensor,
        batch_size: int,
        num_qo_heads: int,
        num_kv_heads: int,
        page_size: int,
        *_: Any,
    ) -> list[int]:
        """Plan by the host's offsets of pages.

        Returns:
            What `run` is told of the plan: its rows, one query of a tile, sizes; see `sizes_of`.

        Raises:
            KernelRefused: the real planner refuses these, or fails on them.
        """
        call = self._call((float_workspace, int_workspace), pinned)
        pages = _host_offsets(call, "indptr", indptr, batch_size)
        # DecodeSplitKVIndptr: as unsigned numbers a fall makes more items than memory holds.
        _must_ascend(call, "indptr", pages)
        queries = np.arange(batch_size + 1)
        _write_plan(call, int_workspace, queries, pages, np.diff(pages) * page_size)
        return [batch_size, 1, num_qo_heads, num_kv_heads, page_size]


class PrefillPlanner(_Planner):
    """Of kernels with several queries in a row, paged and ragged."""

    name = "BatchPrefillWithPagedKVCacheWrapper.plan"

    def plan(
        self,
        float_workspace: torch.Tensor,
        int_workspace: torch.Tensor,
        pinned: torch.Tensor | None,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        _kv_lens: Any,
        total_num_rows: int,
        batch_size: int,
        num_qo_heads: int,
        num_kv_heads: int,
        page_size: int,
        enable_cuda_graph: bool,
        head_dim_qk: int,
        head_dim_vo: int,
        causal: bool = False,
        window_left: int = -1,
        fixed_split_size: int = -1,
        disable_split_kv: bool = False,
        *_: Any,
    ) -> list[int]:
        """Plan by the host's offsets of queries and of pages.

        Returns:
            What `run` is told of the plan: its rows, queries times heads of a tile, sizes.

        Raises:
            KernelRefused: the real planner refuses these: offsets that decrease, heads that do not
                divide, a workspace that is too small.
        """
        call = self._call((float_workspace, int_workspace), pinned)
        rule = "num_qo_heads must be divisible by num_kv_heads"
        call.needs(num_qo_heads % num_kv_heads == 0, rule, f"{num_qo_heads} and {num_kv_heads}")
        queries = _host_offsets(call, "qo_indptr", qo_indptr, batch_size)
        pages = _host_offsets(call, "kv_indptr", kv_indptr, batch_size)
        _must_ascend(call, "qo_indptr", queries)
        _must_ascend(call, "kv_indptr", pages)
        group = num_qo_heads // num_kv_heads
        packed = np.diff(queries) * group
        if enable_cuda_graph:
            # PrefillSplitQOKVIndptr: the queries that a graph was captured with bound its tiles.
            tile = _cta_tile_q((total_num_rows - batch_size + 1) * group, head_dim_vo)
            tiles = -(-total_num_rows * group // tile) + batch_size - 1
            items = max(2 * _planned_multiprocessors() // num_kv_heads, tiles)
            if not disable_split_kv:
                bytes_of_items = num_qo_heads * items * tile * (head_dim_vo + 1) * 4
                room = _float_bytes(float_workspace)
                call.needs(
                    bytes_of_items <= room,
                    f"the workspace must hold {bytes_of_items} bytes of partial results",
                    f"{room} bytes",
                )
            if fixed_split_size > 0 and not disable_split_kv:
                chunks = -(-np.maximum(np.diff(pages), 1) // fixed_split_size)
                needed = int((-(-packed // tile) * chunks).sum())
                rule = f"a plan must have at most the {items} work items of its graph"
                call.needs(needed <= items, rule, needed)
        else:
            tile = _cta_tile_q(int(packed.sum()) // max(1, batch_size), head_dim_vo)
        _write_plan(call, int_workspace, queries, pages, np.diff(pages) * page_size)
        return [batch_size, tile, num_qo_heads, num_kv_heads, page_size]


def _cta_tile_q(packed: int, head_dim: int) -> int:
    """Queries times heads of a group that a tile holds (utils.cuh FA2DetermineCtaTileQ)."""
    if packed > 64 and head_dim < 256:
        return 128
    return 64 if packed > 16 else 16


class MlaPlanner(_Planner):
    """Of latent attention, whose kernels read offsets and lengths from the plan alone."""

    name = "BatchMLAPagedAttentionWrapper.plan"

    def plan(
        self,
        float_workspace: torch.Tensor,
        int_workspace: torch.Tensor,
        pinned: torch.Tensor | None,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_len: torch.Tensor,
        num_heads: int,
        head_dim_o: int,
        causal: bool,
        *_: Any,
    ) -> list[int]:
        """Plan by the host's offsets and lengths.

        Returns:
            What `run` is told of the plan: its rows.

        Raises:
            KernelRefused: the real planner refuses these: another dtype, queries that decrease.
        """
        call = self._call((float_workspace, int_workspace), pinned)
        call.needs_dtype("kv_len", kv_len, torch.int32)
        rows = len(kv_len)
        queries = _host_offsets(call, "qo_indptr", qo_indptr, rows)
        pages = _host_offsets(call, "kv_indptr", kv_indptr, rows)
        _must_ascend(call, "qo_indptr", queries)
        _write_plan(call, int_workspace, queries, pages, host_ints(kv_len))
        return [rows]
