"""FlashInfer's wrapper for several queries in each row over KV in pages.

Source: FlashInfer 0.6.12, flashinfer/prefill.py.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3
from fuzzgraph.kernel_models.flashinfer.kernels import PREFILL
from fuzzgraph.kernel_models.flashinfer.paged import (
    PLAN_DEFAULTS,
    RUN_DEFAULTS,
    PagedWrapper,
    check_pages,
    check_window,
    followed,
    rows_of,
    seq_lens,
)
from fuzzgraph.kernel_models.flashinfer.planners import PrefillPlanner
from fuzzgraph.kernel_models.flashinfer.wrapper import packed_mask

__all__ = ["BatchPrefillWithPagedKVCacheWrapper"]


class BatchPrefillWithPagedKVCacheWrapper(PagedWrapper):
    """Several queries in each row, causal to the bottom right, or by a mask."""

    order = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor1 | None = None,
        paged_kv_indptr_buf: Tensor1 | None = None,
        paged_kv_indices_buf: Tensor1 | None = None,
        paged_kv_last_page_len_buf: Tensor1 | None = None,
        custom_mask_buf: Tensor1 | None = None,
        mask_indptr_buf: Tensor1 | None = None,
        backend: str = "auto",
        jit_args: Any = None,
        jit_kwargs: Any = None,
    ) -> None:
        rows = None
        if use_cuda_graph:
            name = type(self).__name__
            rows = rows_of(
                name, paged_kv_indptr_buf, qo_indptr_buf, last_page_len=paged_kv_last_page_len_buf
            )
        super().__init__(float_workspace_buffer, kv_layout, backend, rows)
        self._call.leaves_out({"jit_args": jit_args, "jit_kwargs": jit_kwargs}, {})
        self._qo_indptr_buf = qo_indptr_buf
        self._paged_kv_indptr_buf = paged_kv_indptr_buf
        self._paged_kv_indices_buf = paged_kv_indices_buf
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buf
        self._custom_mask_buf, self._mask_indptr_buf = custom_mask_buf, mask_indptr_buf
        self._qo_indptr_last = 0

    def plan(
        self,
        qo_indptr: Tensor1,
        paged_kv_indptr: Tensor1,
        paged_kv_indices: Tensor1,
        paged_kv_last_page_len: Tensor1,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        **others: Any,
    ) -> None:
        """Copy a batch to where the graph reads it, and plan it by its offsets.

        Raises:
            KernelRefused: another batch size than the graph's, more queries than at its first
                plan, indices that do not fit, a workspace that is too small.
            KernelNotModelled: an argument that the model does not follow.
        """
        rows = len(qo_indptr) - 1
        given = {**others, "use_fp16_qk_reduction": use_fp16_qk_reduction}
        self._begin(rows, followed(given, pos_encoding_mode), PLAN_DEFAULTS)
        self._call.needs(rows >= 0, "qo_indptr must hold an offset or more", "none")
        check_pages(self._call, paged_kv_indptr, paged_kv_last_page_len)
        held = None
        if custom_mask is not None or packed_custom_mask is not None:
            rule = f"paged_kv_indptr must be as long as qo_indptr, {rows + 1}"
            self._call.needs(len(paged_kv_indptr) == rows + 1, rule, len(paged_kv_indptr))
            full = (paged_kv_indptr[1:] - paged_kv_indptr[:-1] - 1) * page_size
            keys = full + paged_kv_last_page_len
            held = packed_mask(self._call, custom_mask, packed_custom_mask, qo_indptr, keys)
        queries = self._count_queries(qo_indptr)
        self._bind("qo_indptr", qo_indptr)
        self._bind("paged_kv_indptr", paged_kv_indptr)
        self._bind("paged_kv_last_page_len", paged_kv_last_page_len)
        self._bind("paged_kv_indices", paged_kv_indices)
        if held is not None:
            self._bind_mask(*held)
        elif not self._use_cuda_graph:
            self._custom_mask_buf = self._mask_indptr_buf = None
        self._remember(
            q_data_type, kv_data_type, o_data_type, window_left, logits_soft_cap, sm_scale
        )
        self._causal = causal
        hosts = qo_indptr.to("cpu"), paged_kv_indptr.to("cpu")
        keys = seq_lens(hosts[1], paged_kv_last_page_len.to("cpu"), page_size)
        self._cached_module = PrefillPlanner(self._use_cuda_graph)
        self._plan_info = self._cached_module.plan(
            self._float_workspace_buffer, self._int_workspace_buffer,
            self._pin_memory_int_workspace_buffer, *hosts, keys,
            self._max_total_num_rows or queries, rows, num_qo_heads, num_kv_heads, page_size,
            self._use_cuda_graph, head_dim_qk, head_dim_vo or head_dim_qk, causal, window_left,
            fixed_split_size or -1, disable_split_kv, 0, 0,
        )  # fmt: skip

    begin_forward = plan

    def forward(
        self,
        q: Tensor3,
        paged_kv_cache: Any,
        causal: bool = False,
        *,
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
        self._causal, self._sm_scale = causal, sm_scale
        self._window_left, self._logits_soft_cap = window_left, logits_soft_cap
        return self.run(q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)

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
        """[T, Hq, D] attention of each row's queries over its pages.

        A wrapper that was made with a mask's buffer follows what lies there, whatever it was
        planned with.

        Args:
            q: [T, Hq, D], as many queries as were planned.
            paged_kv_cache: (keys, values), each [pages, page_size, Hkv, D] for NHD, or both in one.

        Returns:
            The outputs; with `return_lse` also float32 [T, Hq] to base 2.

        Raises:
            KernelRefused: what the host code or the launch refuses.
            KernelNotModelled: an argument that the model does not follow.
        """
        self._call.leaves_out(others, RUN_DEFAULTS)
        k, v = self._unpacked(paged_kv_cache)
        self._check_dtypes(q, k)
        rule = f"q must have the {self._qo_indptr_last} queries that were planned"
        self._call.needs(len(q) == self._qo_indptr_last, rule, len(q))
        check_window(self, window_left)
        out, lse = self._results(q, v.shape[-1], out, lse, return_lse, zeroed=True)
        scale = self._scale(q, q_scale, k_scale)
        out = self._launch(PREFILL, q, k, v, scale, out, lse, self._qo_indptr_buf, v_scale)
        return (out, lse) if return_lse else out

    run_return_lse = partialmethod(run, return_lse=True)
