"""What of a plan FlashInfer's kernels follow, where it lies, and what its numbers say.

A real plan cuts rows into work items and writes them into the wrapper's integer workspace. The cut
is a schedule, which no result depends on. What a result depends on is which queries and keys the
items of a row cover, so this is what a model's plan holds: the host's offsets of queries and of KV,
and the host's lengths. A real item covers 128 keys or more; here a row is covered to the very key
that was planned, so a plan that is too short shows in short rows as it would in long ones.

Beside it a plan is a list of numbers, with which a launch finds its parts; a graph keeps them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["Plan", "Planned", "PlanOf", "host_ints", "int_workspace", "int_workspace_bytes",
           "numbers_of", "planned", "planned_by", "read_plan", "write_plan"]  # fmt: skip

SOURCE = "FlashInfer 0.6.18, include/flashinfer/attention/scheduler.cuh"

_PLAN_MARK = 0x504C414E
"""Begins a plan. Where it is missing, real kernels would follow whatever lies there."""
_LARGEST_PLAN = 8 << 20
"""Bytes of the real integer workspace (decode.py, prefill.py, mla/_core.py)."""

PlanOf = Literal["decode", "fa2", "fa3", "mla"]
"""Which planner made a plan."""
_COUNTS: Mapping[PlanOf, int] = {"decode": 10, "fa2": 15, "fa3": 9, "mla": 18}
"""Numbers of a plan (scheduler.cuh DecodePlanInfo, PrefillPlanInfo, PrefillPlanSM90Info and
MLAPlanInfo, FromVector)."""
_NAMES: Mapping[PlanOf, tuple[str, ...]] = {
    "decode": ("num_qo_heads", "num_kv_heads", "page_size"),
    "fa2": ("num_qo_heads", "num_kv_heads", "page_size", "head_dim_qk", "head_dim_vo",
            "window_left"),
    "fa3": ("num_qo_heads", "num_kv_heads", "page_size", "head_dim_qk", "head_dim_vo"),
    "mla": ("num_heads", "head_dim_o", "causal"),
}  # fmt: skip
"""What the numbers say behind the first three, by the names of the planner's arguments."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the work items of a plan cover, by row."""

    queries: Ints
    """[rows + 1] offsets of the queries, by which outputs are laid out."""
    pages: Ints
    """[rows + 1] offsets of the pages in the index buffer."""
    lens: Ints
    """[rows] keys; read by the kernels of latent attention and of FlashAttention 3."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What the numbers of a plan tell a launch."""

    rows: int
    tile: int
    """Queries times heads of a group that a tile holds."""
    mark: int
    """Of the plan's content where a plan lies elsewhere for each batch; 0 for a graph's."""
    sizes: Mapping[str, int]
    """What it was planned for, by the names of the planner's arguments."""


def numbers_of(of: PlanOf, planned: Planned) -> list[int]:
    """A plan as the list of numbers that the engine keeps for its run."""
    told = [planned.rows, planned.tile, planned.mark, *(planned.sizes[n] for n in _NAMES[of])]
    return [*told, *(0 for _ in range(_COUNTS[of] - len(told)))]


def planned_by(call: Call, of: PlanOf, numbers: Sequence[int]) -> Planned:
    """What the numbers of a plan say.

    Raises:
        KernelRefused: they are not as many as this kernel's planner gives.
    """
    rule = f"plan_info must be the {_COUNTS[of]} numbers of this kernel's own planner"
    call.needs(len(numbers) == _COUNTS[of], rule, f"{len(numbers)} numbers")
    rows, tile, mark, *sizes = numbers
    return Planned(rows, tile, mark, dict(zip(_NAMES[of], sizes, strict=False)))


def int_workspace(rows: int, device: torch.device) -> torch.Tensor:
    """uint8; room for the plan of so many rows, in place of the real 8 MiB."""
    return torch.empty(int_workspace_bytes(rows), dtype=torch.uint8, device=device)


def int_workspace_bytes(rows: int) -> int:
    """Bytes that the plan of so many rows takes."""
    return _plan_words(rows) * 4


def _plan_words(rows: int) -> int:
    return 3 + 2 * (rows + 1) + rows


def host_ints(tensor: torch.Tensor) -> Ints:
    """int64 copy of a tensor, read to the host as a plan reads it."""
    found: Ints = tensor.detach().to("cpu").numpy().astype(np.int64)
    return found


def write_plan(call: Call, workspace: torch.Tensor, plan: Plan, *, moves: bool) -> int:
    """Lay a plan into the integer workspace.

    Args:
        moves: whether another batch's plan would lie elsewhere, as without a graph.

    Returns:
        The plan's mark, for `Planned.mark`.

    Raises:
        KernelRefused: it does not fit.
    """
    content = np.concatenate((plan.queries, plan.pages, plan.lens)).astype(np.int32)
    mark = 1 + zlib.crc32(content.tobytes()) % 0x7FFFFFFE if moves else 0
    words = np.concatenate(([_PLAN_MARK, len(plan.lens), mark], content)).astype(np.int32)
    room = min(workspace.numel() * workspace.element_size(), _LARGEST_PLAN)
    call.needs(words.nbytes <= room, f"a plan must fit {room} bytes", words.nbytes)
    place = workspace.view(torch.uint8) if workspace.is_contiguous() else workspace
    place.reshape(-1)[: words.nbytes].copy_(torch.from_numpy(words.view(np.uint8)))
    return mark


def read_plan(
    memory: KernelMemory, workspace: torch.Tensor, rows: int, mark: int | None = None
) -> Plan | None:
    """The plan that lies in a workspace, as a launch over `rows` rows finds it; None if none does.

    Args:
        rows, mark: of the plan at the time of the call, which a graph keeps; a mark of None takes
            any.
    """
    found = _parsed_plan(workspace, rows)
    if found is None:
        memory.misused(
            "plan", "plan must be called before run, for as many rows", f"none of {rows}"
        )
    elif mark is not None and _workspace_words(workspace)[2] != mark:
        rule = "enable_cuda_graph must be true for a plan that launches of another plan follow"
        memory.misused("enable_cuda_graph", rule, "plans that lie elsewhere for each batch")
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
    raw = workspace.detach().cpu().contiguous().view(torch.uint8).reshape(-1).numpy()
    found: Ints = raw[: len(raw) // 4 * 4].view(np.int32).astype(np.int64)
    return found


def _parsed_plan(workspace: torch.Tensor, rows: int) -> Plan | None:
    words = _workspace_words(workspace)
    if len(words) < _plan_words(rows) or words[0] != _PLAN_MARK or words[1] != rows:
        return None
    queries, pages, lens = np.split(words[3 : _plan_words(rows)], [rows + 1, 2 * (rows + 1)])
    return Plan(queries, pages, lens)
