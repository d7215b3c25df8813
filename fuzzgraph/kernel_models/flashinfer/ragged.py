"""FlashInfer's wrapper for keys and values of each row behind one another, without a cache.

Source: FlashInfer 0.6.12, flashinfer/prefill.py.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3
from fuzzgraph.kernel_models.flashinfer.kernels import RAGGED
from fuzzgraph.kernel_models.flashinfer.paged import (
    PLAN_DEFAULTS,
    RUN_DEFAULTS,
    check_window,
    followed,
    rows_of,
)
from fuzzgraph.kernel_models.flashinfer.planners import PrefillPlanner
from fuzzgraph.kernel_models.flashinfer.wrapper import Wrapper, packed_mask
from fuzzgraph.kernel_models.launch import launch

__all__ = ["BatchPrefillWithRaggedKVCacheWrapper"]


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Several queries in each row, causal to the bottom right, or by a mask."""

    order = ("qo_indptr", "kv_indptr")

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor1 | None = None,
        kv_indptr_buf: Tensor1 | None = None,
        custom_mask_buf: Tensor1 | None = None,
        mask_indptr_buf: Tensor1 | None = None,
        backend: str = "auto",
        jit_args: Any = None,
        jit_kwargs: Any = None,
    ) -> None:
        rows = (
            rows_of(type(self).__name__, qo_indptr_buf, kv_indptr_buf) if use_cuda_graph else None
        )
        super().__init__(float_workspace_buffer, kv_layout, backend, rows)
        self._call.leaves_out({"jit_args": jit_args, "jit_kwargs": jit_kwargs}, {})
        self._qo_indptr_buf, self._kv_indptr_buf = qo_indptr_buf, kv_indptr_buf
        self._custom_mask_buf, self._mask_indptr_buf = custom_mask_buf, mask_indptr_buf
        self._qo_indptr_last = 0

    def plan(
        self,
        qo_indptr: Tensor1,
        kv_indptr: Tensor1,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: torch.Tensor | None = None,
        packed_custom_mask: torch.Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
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
                plan, a workspace that is too small.
            KernelNotModelled: an argument or a backend that the model does not follow.
        """
        rows = len(qo_indptr) - 1
        self._call.needs(rows >= 0, "qo_indptr must hold an offset or more", "none")
        given = {**others, "use_fp16_qk_reduction": use_fp16_qk_reduction}
        self._begin(rows, followed(given, pos_encoding_mode), PLAN_DEFAULTS)
        rule = f"kv_indptr must hold {rows + 1} offsets, as many as qo_indptr"
        self._call.needs(len(kv_indptr) == rows + 1, rule, len(kv_indptr))
        self._bind("qo_indptr", qo_indptr)
        self._bind("kv_indptr", kv_indptr)
        if custom_mask is not None or packed_custom_mask is not None:
            keys = kv_indptr[1:] - kv_indptr[:-1]
            self._bind_mask(
                *packed_mask(self._call, custom_mask, packed_custom_mask, qo_indptr, keys)
            )
        queries = self._count_queries(qo_indptr)
        self._remember(
            q_data_type, kv_data_type, o_data_type, window_left, logits_soft_cap, sm_scale
        )
        self._causal = causal
        hosts = qo_indptr.to("cpu"), kv_indptr.to("cpu")
        keys = hosts[1].diff()
        self._cached_module = PrefillPlanner(self._use_cuda_graph)
        self._plan_info = self._cached_module.plan(
            self._float_workspace_buffer, self._int_workspace_buffer,
            self._pin_memory_int_workspace_buffer, *hosts, keys,
            self._max_total_num_rows or queries, rows, num_qo_heads, num_kv_heads, 1,
            self._use_cuda_graph, head_dim_qk, head_dim_vo or head_dim_qk, causal, window_left,
            fixed_split_size or -1, disable_split_kv, 0, 0,
        )  # fmt: skip

    begin_forward = plan

    def forward(
        self,
        q: Tensor3,
        k: Tensor3,
        v: Tensor3,
        causal: bool = False,
        *,
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
        return self.run(q, k, v, return_lse=return_lse)

    forward_return_lse = partialmethod(forward, return_lse=True)

    def run(
        self,
        q: Tensor3,
        k: Tensor3,
        v: Tensor3,
        *,
        out: Tensor3 | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        **others: Any,
    ) -> Any:
        """[T, Hq, Dv] attention of each row's queries over its keys.

        Args:
            q: [T, Hq, D], as many queries as were planned.
            k, v: [n, Hkv, D or Dv] for NHD, [Hkv, n, D or Dv] for HND.

        Returns:
            The outputs; with `return_lse` also float32 [T, Hq] to base 2.

        Raises:
            KernelRefused: what the host code or the launch refuses.
            KernelNotModelled: an argument that the model does not follow.
        """
        self._call.leaves_out(others, RUN_DEFAULTS)
        self._check_dtypes(q, k)
        rule = f"q must have the {self._qo_indptr_last} queries that were planned"
        self._call.needs(len(q) == self._qo_indptr_last, rule, len(q))
        check_window(self, window_left)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            self._call.needs_contiguous_last(name, tensor)
        if self._kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        out, lse = self._results(q, v.shape[-1], out, lse, return_lse, zeroed=False)
        launch(
            RAGGED,
            q=q,
            k=k,
            v=v,
            qo_indptr=self._qo_indptr_buf,
            kv_indptr=self._kv_indptr_buf,
            custom_mask=self._custom_mask_buf,
            mask_indptr=self._mask_indptr_buf,
            sm_scale=self._scale(q),
            out=out,
            lse=lse,
            **self._scalars(),
        )
        return (out, lse) if return_lse else out

    run_return_lse = partialmethod(run, return_lse=True)
