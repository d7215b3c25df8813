"""FlashInfer's wrapper for one query in each row over KV in pages, and its fast plan.

Source: FlashInfer 0.6.12, flashinfer/decode.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partialmethod
from typing import Any

import torch

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3
from fuzzgraph.kernel_models.flashinfer.kernels import DECODE, PREFILL, PREFILL_SM90
from fuzzgraph.kernel_models.flashinfer.paged import (
    PLAN_DEFAULTS,
    RUN_DEFAULTS,
    PagedWrapper,
    check_window,
    followed,
    rows_of,
)
from fuzzgraph.kernel_models.flashinfer.paged import seq_lens as keys_of
from fuzzgraph.kernel_models.flashinfer.plan import PlanOf
from fuzzgraph.kernel_models.flashinfer.planners import (
    DecodePlanner,
    Planner,
    PrefillPlanner,
    PrefillSm90Planner,
)

__all__ = ["BatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan"]

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_PLANNERS: Mapping[PlanOf, type[Planner]] = {
    "decode": DecodePlanner, "fa2": PrefillPlanner, "fa3": PrefillSm90Planner,
}  # fmt: skip


class BatchDecodeWithPagedKVCacheWrapper(PagedWrapper):
    """One query in each row; with `use_tensor_cores` by the prefill's kernel.

    Of prefills' kernels that of FlashAttention 3 takes queries in FP8, and runs for them alone: so
    far on a Hopper GPU (decode.py plan, utils.py is_fa3_backend_supported).
    """

    order = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor1 | None = None,
        paged_kv_indices_buffer: Tensor1 | None = None,
        paged_kv_last_page_len_buffer: Tensor1 | None = None,
        backend: str = "auto",
        jit_args: Any = None,
    ) -> None:
        rows = None
        if use_cuda_graph:
            rows = rows_of(
                type(self).__name__, paged_kv_indptr_buffer,
                last_page_len=paged_kv_last_page_len_buffer,
            )  # fmt: skip
        super().__init__(float_workspace_buffer, kv_layout, backend, rows)
        self._call.leaves_out({"jit_args": jit_args}, {})
        self._paged_kv_indptr_buf = paged_kv_indptr_buffer
        self._paged_kv_indices_buf = paged_kv_indices_buffer
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buffer
        self._use_tensor_cores = use_tensor_cores
        self._head_dim: int | None = None
        self._of_fp8_queries = False
        self._qo_indptr_buf: torch.Tensor | None = None
        if use_tensor_cores and rows is not None:
            self._qo_indptr_buf = torch.arange(rows + 1, dtype=torch.int32, device=self.device)

    @property
    def plan_of(self) -> PlanOf:  # type: ignore[override]
        """Whose plans its kernels follow."""
        if not self._use_tensor_cores:
            return "decode"
        return "fa3" if self._of_fp8_queries else "fa2"

    @property
    def use_tensor_cores(self) -> bool:
        """Whether the prefill's kernel runs."""
        return self._use_tensor_cores

    def plan(
        self,
        indptr: Tensor1,
        indices: Tensor1,
        last_page_len: Tensor1,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        data_type: Any = None,
        sm_scale: float | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        seq_lens: Tensor1 | None = None,
        **others: Any,
    ) -> None:
        """Copy a batch to where the graph reads it, and plan it by its offsets.

        Args:
            seq_lens: [B] keys of each row, by which FlashAttention 3 plans; by default those that
                offsets and last pages say.

        Raises:
            KernelRefused: another batch size than the graph's, indices that do not fit, dtypes for
                which there is no kernel.
            KernelNotModelled: an argument that the model does not follow.
        """
        rows = len(last_page_len)
        self._begin(rows, followed(others, pos_encoding_mode), PLAN_DEFAULTS)
        self._bind("paged_kv_indptr", indptr)
        self._bind("paged_kv_last_page_len", last_page_len)
        self._bind("paged_kv_indices", indices)
        if not self._use_cuda_graph:
            self._qo_indptr_buf = torch.arange(rows + 1, dtype=torch.int32, device=self.device)
        rule = "fixed_split_size must be None without tensor cores"
        self._call.needs(fixed_split_size is None or self.use_tensor_cores, rule, fixed_split_size)
        self._remember(
            q_data_type or data_type, kv_data_type or data_type, o_data_type, window_left,
            logits_soft_cap, sm_scale,
        )  # fmt: skip
        self._head_dim = head_dim  # of which its module is built
        self._of_fp8_queries = self._takes_fp8_queries()
        self._cached_module = _PLANNERS[self.plan_of](self._use_cuda_graph)
        _plan_decode(
            self, indptr, last_page_len, seq_lens, rows, num_qo_heads, num_kv_heads, head_dim,
            page_size, window_left, fixed_split_size, disable_split_kv,
        )  # fmt: skip

    begin_forward = plan

    def _takes_fp8_queries(self) -> bool:
        """jit/attention/modules.py gen_batch_prefill_module: which dtypes have a kernel."""
        if self._cached_q_data_type not in _FP8:
            return False
        if not self.use_tensor_cores:
            raise KernelNotModelled(f"{self._call.kernel}: queries in FP8 without tensor cores")
        rule = "queries in FP8 must not be for backend fa2"
        self._call.needs(self._backend != "fa2", rule, self._backend)
        keys, outputs = self._cached_kv_data_type, self._cached_o_data_type
        self._call.needs(keys in _FP8, "kv_data_type must be FP8 as queries are", keys)
        self._call.needs(outputs not in _FP8, "o_data_type must not be FP8", outputs)
        return True

    def forward(
        self,
        q: Tensor3,
        paged_kv_cache: Any,
        *,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        return_lse: bool = False,
        **others: Any,
    ) -> Any:
        """`run` with scalars that replace those of the plan."""
        self._call.leaves_out(others, RUN_DEFAULTS)
        self._window_left, self._logits_soft_cap = window_left, logits_soft_cap
        self._sm_scale = sm_scale
        return self.run(
            q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
            return_lse=return_lse,
        )  # fmt: skip

    forward_return_lse = partialmethod(forward, return_lse=True)

    def run(
        self,
        q: Tensor3,
        paged_kv_cache: Any,
        *,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor3 | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        **others: Any,
    ) -> Any:
        """[B, Hq, D] attention of each row's query over its pages.

        Args:
            q: [B, Hq, D].
            paged_kv_cache: (keys, values), each [pages, page_size, Hkv, D] for NHD, or both in one.

        Returns:
            The outputs; with `return_lse` also float32 [B, Hq] to base 2.

        Raises:
            KernelRefused: what the host code or the launch refuses.
            KernelNotModelled: an argument that the model does not follow.
        """
        self._call.leaves_out(others, RUN_DEFAULTS)
        k, v = self._unpacked(paged_kv_cache)
        self._check_dtypes(q, k)
        rows = len(self.buffer("paged_kv_last_page_len"))
        self._call.needs(len(q) == rows, f"q must have {rows} rows, one for each request", len(q))
        check_window(self, window_left)
        dim = self._head_dim
        self._call.needs(
            dim is None or q.shape[2] == dim, f"q must have the {dim} columns of the plan",
            q.shape[2],
        )  # fmt: skip
        same = q.shape[2] == v.shape[3]
        self._call.needs(
            self.use_tensor_cores or same, "q and v_cache must have as many columns",
            f"{q.shape[2]} and {v.shape[3]}",
        )  # fmt: skip
        out, lse = self._results(q, v.shape[-1], out, lse, return_lse, zeroed=False)
        scale = self._scale(q, q_scale, k_scale)
        if self._of_fp8_queries:
            out = self._launch_planned(PREFILL_SM90, q, k, v, scale, out, lse, v_scale)
            return (out, lse) if return_lse else out
        indptr = self._qo_indptr_buf if self.use_tensor_cores else None
        kernel = PREFILL if self.use_tensor_cores else DECODE
        out = self._launch(kernel, q, k, v, scale, out, lse, indptr, v_scale)
        return (out, lse) if return_lse else out

    run_return_lse = partialmethod(run, return_lse=True)


def fast_decode_plan(
    wrapper: BatchDecodeWithPagedKVCacheWrapper,
    indptr: Tensor1,
    indices: Tensor1,
    last_page_len: Tensor1,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    pos_encoding_mode: str = "NONE",
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    fixed_split_size: int | None = None,
    disable_split_kv: bool = False,
    global_override_indptr_cpu: Tensor1 | None = None,
    **others: Any,
) -> None:
    """A decode's plan that copies nothing to where a graph reads, by the host's offsets if given.

    Raises:
        KernelRefused: another batch size than the graph's, indices that do not fit.
    """
    rows = len(last_page_len)
    dtypes = ("q_data_type", "kv_data_type", "data_type")
    left = {name: value for name, value in others.items() if name not in dtypes}
    wrapper._begin(rows, followed(left, pos_encoding_mode), PLAN_DEFAULTS)
    if wrapper.is_cuda_graph_enabled:
        wrapper._fits("paged_kv_indices", indices)
    else:
        wrapper._paged_kv_indptr_buf = indptr
        wrapper._paged_kv_indices_buf = indices
        wrapper._paged_kv_last_page_len_buf = last_page_len
        wrapper._qo_indptr_buf = torch.arange(rows + 1, dtype=torch.int32, device=wrapper.device)
    host = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
    _plan_decode(
        wrapper, host, last_page_len, None, rows, num_qo_heads, num_kv_heads, head_dim, page_size,
        window_left, fixed_split_size, disable_split_kv,
    )  # fmt: skip
    wrapper._window_left, wrapper._logits_soft_cap = window_left, logits_soft_cap or 0.0
    wrapper._sm_scale = sm_scale


def _plan_decode(
    wrapper: BatchDecodeWithPagedKVCacheWrapper, indptr: torch.Tensor, last_page_len: torch.Tensor,
    lens: torch.Tensor | None, rows: int, num_qo_heads: int, num_kv_heads: int, head_dim: int,
    page_size: int, window_left: int, fixed_split_size: int | None, disable_split_kv: bool,
) -> None:  # fmt: skip
    workspaces = (
        wrapper._float_workspace_buffer,
        wrapper._int_workspace_buffer,
        wrapper._pin_memory_int_workspace_buffer,
    )
    graph, host = wrapper.is_cuda_graph_enabled, indptr.to("cpu")
    if wrapper.use_tensor_cores:
        each = torch.arange(rows + 1, dtype=torch.int32, device="cpu")
        fa2 = wrapper.plan_of == "fa2"
        if fa2:  # whose planner leaves them
            lens = host.diff() * page_size
        elif lens is None:
            lens = keys_of(host, last_page_len.to("cpu"), page_size)
        wrapper._plan_info = wrapper._cached_module.plan(
            *workspaces, each, host, lens.to("cpu").int(), rows, rows, num_qo_heads, num_kv_heads,
            page_size, graph, head_dim, head_dim, False, window_left,
            *((fixed_split_size or -1, disable_split_kv, 0, 0) if fa2 else ()),
        )  # fmt: skip
    else:
        no_data = (torch.empty(0, device="cpu"),) * 2  # of which the real planner takes the dtypes
        wrapper._plan_info = wrapper._cached_module.plan(
            *workspaces, host, rows, num_qo_heads, num_kv_heads, page_size, graph, window_left,
            wrapper._logits_soft_cap or 0.0, head_dim, head_dim, *no_data,
        )  # fmt: skip
