"""What FlashInfer's wrappers for decode and prefill share on the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.first_plan import FirstPlan, held_to_first
from fuzzgraph.kernel_models.flashinfer.plan import (
    Planned,
    PlanOf,
    int_workspace,
    int_workspace_bytes,
    planned,
    planned_by,
)
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["PACK_BITS", "PlannedWrapper", "Wrapper", "dtype_of", "packed_mask"]

SOURCE = "FlashInfer 0.6.12, flashinfer/decode.py and prefill.py"

_MODELLED = ("auto", "fa2", "fa3")
"""Backends of one meaning; they differ in speed."""
_PLANS = ("plan", "begin_forward")
"""Names of what plans a wrapper, to which engines bind faster plans of their own."""
_PLAIN_ROWS = 16
"""Rows for which a wrapper without a graph has room at first; it is made anew for more."""


class PlannedWrapper:
    """State of a wrapper that its kernels, and an engine's own plans, read by these names.

    Args:
        float_workspace_buffer: for partial results, of which only the size is looked at.
        rows: of the graph; None without one.
    """

    order: tuple[str, ...]
    """Names of the first arguments of `plan`, each with a buffer."""
    source: str
    """Where its rules stand, with the version."""
    plan_of: PlanOf = "fa2"
    """Whose plans its kernels follow."""
    plan: Callable[..., None]

    def __init__(
        self, float_workspace_buffer: torch.Tensor, backend: str, rows: int | None
    ) -> None:
        self._call = Call(type(self).__name__, self.source)
        self._backend = backend
        self._use_cuda_graph = rows is not None
        self._fixed_batch_size = rows or 0
        self._float_workspace_buffer = float_workspace_buffer
        self._pin_memory_int_workspace_buffer = None
        self.device = float_workspace_buffer.device
        self._int_workspace_buffer = int_workspace(
            _PLAIN_ROWS if rows is None else rows, self.device
        )
        self._cached_module: Any = None
        self._plan_info: list[int] | None = None
        self._causal = False
        if self._use_cuda_graph:
            self._first_plan = FirstPlan(f"{type(self).__name__}.plan")
            for name in _PLANS:
                if hasattr(self, name):
                    setattr(self, name, getattr(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PLANS and self._use_cuda_graph:
            value = held_to_first(value, self._first_plan)
        super().__setattr__(name, value)

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether its buffers and its batch size are fixed."""
        return self._use_cuda_graph

    @property
    def planned(self) -> dict[str, list[int]]:
        """Offsets and lengths of the plan that lies in the workspace; empty if none does."""
        plan = planned(self._int_workspace_buffer)
        if plan is None:
            return {}
        held = {"qo_indptr": plan.queries, "kv_indptr": plan.pages, "kv_len_arr": plan.lens}
        names = (name.removeprefix("paged_") for name in self.order)
        return {name: held[name].tolist() for name in names if name in held}

    def buffer(self, name: str) -> torch.Tensor:
        """The buffer of one of `order`, whole."""
        found: torch.Tensor = getattr(self, f"_{name}_buf")
        return found

    def _numbers(self) -> Planned:
        """What the present plan tells a launch."""
        info = self._plan_info
        self._call.needs(info is not None, "plan must be called before run", None)
        assert info is not None
        return planned_by(self._call, self.plan_of, info)

    # Steps of a plan

    def _needs_modelled(self) -> None:
        if self._backend not in _MODELLED:
            raise KernelNotModelled(
                f"the model of {self._call.kernel} does not follow backend={self._backend!r}. The"
                " target says in which configs an engine asks for it; leave those out."
            )

    def _make_room(self, rows: int) -> None:
        """Without a graph the workspace holds the plan of any number of rows."""
        needed = int_workspace_bytes(rows)
        if not self._use_cuda_graph and self._int_workspace_buffer.numel() < needed:
            self._int_workspace_buffer = int_workspace(rows, self.device)

    def _bind(self, name: str, tensor: torch.Tensor) -> None:
        """Copy an argument to where a graph reads it, or keep it."""
        if not self._use_cuda_graph:
            setattr(self, f"_{name}_buf", tensor.to(self.device))
            return
        room, size = self.buffer(name), len(tensor)
        if name.endswith("_indices"):
            self._fits(name, tensor)
            room = room[:size]
        else:
            rule = f"{name} must be as long as the graph's buffer, {len(room)}"
            self._call.needs(size == len(room), rule, size)
        room.copy_(tensor)

    def _fits(self, name: str, indices: torch.Tensor) -> None:
        room = len(self.buffer(name))
        rule = f"{name} must fit the graph's buffer of {room}"
        self._call.needs(len(indices) <= room, rule, len(indices))


class Wrapper(PlannedWrapper):
    """What wrappers over separate keys and values share beyond that.

    Args:
        kv_layout: NHD or HND.
    """

    source = SOURCE

    def __init__(
        self, float_workspace_buffer: torch.Tensor, kv_layout: str, backend: str, rows: int | None
    ) -> None:
        super().__init__(float_workspace_buffer, backend, rows)
        self._call.needs(kv_layout in ("NHD", "HND"), "kv_layout must be NHD or HND", kv_layout)
        self._kv_layout = kv_layout
        self._max_total_num_rows: int | None = None
        self._custom_mask_buf: torch.Tensor | None = None
        self._mask_indptr_buf: torch.Tensor | None = None
        self._window_left = -1
        self._windowed = self._capped = False
        self._logits_soft_cap: float | None = 0.0
        self._sm_scale: float | None = None

    def _begin(self, rows: int, others: dict[str, Any], defaults: dict[str, Any]) -> None:
        self._needs_modelled()
        self._call.leaves_out(others, defaults)
        if self._use_cuda_graph:
            self._call.needs(
                rows == self._fixed_batch_size,
                f"a graph of {self._fixed_batch_size} rows must be planned for as many",
                f"{rows} rows",
            )
        self._make_room(rows)

    def _bind_mask(self, mask: torch.Tensor, indptr: torch.Tensor) -> None:
        if not self._use_cuda_graph:
            self._custom_mask_buf, self._mask_indptr_buf = mask, indptr
            return
        held, starts = self._custom_mask_buf, self._mask_indptr_buf
        rule = "custom_mask_buf and mask_indptr_buf must be tensors if a graph has a mask"
        self._call.needs(held is not None and starts is not None, rule, "none")
        assert held is not None and starts is not None
        rule = f"custom_mask must fit the graph's buffer of {len(held)}"
        self._call.needs(len(mask) <= len(held), rule, len(mask))
        held[: len(mask)].copy_(mask)
        starts.copy_(indptr)

    def _remember(
        self, q_data_type: Any, kv_data_type: Any, o_data_type: Any, window_left: int,
        logits_soft_cap: float | None, sm_scale: float | None,
    ) -> None:  # fmt: skip
        self._cached_q_data_type = dtype_of(q_data_type)
        self._cached_kv_data_type = dtype_of(kv_data_type or q_data_type)
        self._cached_o_data_type = dtype_of(o_data_type or q_data_type)
        self._windowed, self._capped = window_left >= 0, (logits_soft_cap or 0.0) > 0
        self._window_left, self._logits_soft_cap = window_left, logits_soft_cap or 0.0
        self._sm_scale = sm_scale

    def _count_queries(self, qo_indptr: torch.Tensor) -> int:
        """Queries of a plan, of which a graph's may not have more than its first one."""
        queries = int(qo_indptr[-1].item())
        self._qo_indptr_last = queries
        if self._use_cuda_graph:
            most = self._max_total_num_rows
            self._max_total_num_rows = queries if most is None else most
            rule = f"a graph's plan must have at most the {most} queries of its first plan"
            self._call.needs(most is None or queries <= most, rule, queries)
        return queries

    # A run

    def _scalars(self) -> dict[str, Any]:
        """The plan, what decides which keys a query sees, and how logits are capped."""
        numbers = self._numbers()
        return dict(
            plan=self._int_workspace_buffer,
            rows=numbers.rows,
            planned=numbers,
            causal=self._causal,
            window_left=self._window_left,
            windowed=self._windowed,
            tile=numbers.tile,
            softcap=self._logits_soft_cap or 0.0,
            capped=self._capped,
        )

    def _scale(self, q: torch.Tensor, *factors: float | None) -> float:
        scale = 1.0 / math.sqrt(q.shape[-1]) if self._sm_scale is None else self._sm_scale
        for factor in factors:
            scale *= 1.0 if factor is None else factor
        return scale

    def _check_dtypes(self, q: torch.Tensor, k: torch.Tensor) -> None:
        self._call.needs_dtype("q", q, self._cached_q_data_type)
        self._call.needs_dtype("k", k, self._cached_kv_data_type)

    def _results(
        self, q: torch.Tensor, columns: int, out: torch.Tensor | None, lse: torch.Tensor | None,
        return_lse: bool, zeroed: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        shape = (*q.shape[:-1], columns)
        if out is None:
            make = torch.zeros if zeroed else torch.empty
            out = make(shape, dtype=self._cached_o_data_type, device=q.device)
        else:
            self._call.needs(out.shape == shape, f"out must be {list(shape)}", list(out.shape))
            self._call.needs_dtype("out", out, self._cached_o_data_type)
        if not return_lse:
            return out, None
        if lse is None:
            return out, torch.empty(shape[:2], dtype=torch.float32, device=q.device)
        self._call.needs(lse.shape == shape[:2], f"lse must be {list(shape[:2])}", list(lse.shape))
        self._call.needs_dtype("lse", lse, torch.float32)
        return out, lse


def dtype_of(named: Any) -> torch.dtype:
    """A dtype, or the one of a name."""
    found: torch.dtype = getattr(torch, named) if isinstance(named, str) else named
    return found


def packed_mask(
    call: Call,
    mask: torch.Tensor | None,
    packed: torch.Tensor | None,
    qo_indptr: torch.Tensor,
    keys: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(bits, [rows + 1] offsets) of a plan's mask; a packed one is taken as it is, and first.

    Args:
        mask: [sum of queries * keys] not 0 where a query sees a key; needed without `packed`.
        keys: [rows] of each row.

    Source: flashinfer/prefill.py plan, _compute_page_mask_indptr.
    """
    sizes = (qo_indptr[1:] - qo_indptr[:-1]) * keys
    if packed is None:
        assert mask is not None, "called without a mask"
        return pack_mask(call, mask, sizes)
    starts = torch.zeros_like(qo_indptr)
    starts[1:] = torch.cumsum(sizes, 0)
    return packed, starts


def pack_mask(
    call: Call, mask: torch.Tensor, sizes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8 bits, int32 [rows + 1] offsets in bytes) of a mask, each row from a whole byte on.

    Args:
        mask: [sum of sizes] not 0 where a query sees a key.
        sizes: [rows] entries of each row.

    Source: flashinfer/quantization/packbits.py segment_packbits, bitorder little.
    """
    starts = torch.zeros(len(sizes) + 1, dtype=torch.int32, device=sizes.device)
    starts[1:] = torch.cumsum(sizes, 0)
    packed = torch.zeros_like(starts)
    packed[1:] = torch.cumsum((sizes + 7) // 8, 0)
    total = int(packed[-1].item())
    call.needs(total >= 0, "a mask must have no fewer than 0 bytes, by offsets and pages", total)
    bits = torch.empty(total, dtype=torch.uint8, device=mask.device)
    launch(PACK_BITS, mask=mask.reshape(-1), starts=starts, bytes_at=packed, bits=bits)
    return bits, packed


def _segment_packbits(
    memory: KernelMemory,
    *,
    mask: torch.Tensor,
    starts: torch.Tensor,
    bytes_at: torch.Tensor,
    bits: torch.Tensor,
) -> None:
    for low, high, byte in zip(
        memory.ints(starts)[:-1], memory.ints(starts)[1:], memory.ints(bytes_at), strict=False
    ):
        shown = memory.entries("custom_mask", mask, np.arange(low, max(low, high))) != 0
        packed = np.packbits(shown, bitorder="little")
        memory.store("packed", bits, torch.from_numpy(packed), byte + np.arange(len(packed)))


PACK_BITS = ModelKernel(
    "segment_packbits", _segment_packbits, "FlashInfer 0.6.12, quantization/packbits.py"
)
