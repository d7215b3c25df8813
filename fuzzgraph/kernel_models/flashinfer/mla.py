"""FlashInfer's wrapper for latent attention over pages.

Its kernels read indices from the buffer that the wrapper was made with, and all else of the batch,
offsets and lengths, from the plan.

Source: FlashInfer 0.6.12, flashinfer/mla/_core.py and include/flashinfer/attention/mla.cuh.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3
from fuzzgraph.kernel_models.attention import Cache, Row, Softmax, attend, below_diagonal
from fuzzgraph.kernel_models.flashinfer.plan import Planned, read_plan
from fuzzgraph.kernel_models.flashinfer.planners import MlaPlanner
from fuzzgraph.kernel_models.flashinfer.wrapper import PlannedWrapper
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["MLA", "BatchMLAPagedAttentionWrapper"]

_SOURCE = "FlashInfer 0.6.12, flashinfer/mla/_core.py and mla.cuh"


class BatchMLAPagedAttentionWrapper(PlannedWrapper):
    """Latent attention of several queries in each row, causal to the bottom right if planned so."""

    order = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
    source = _SOURCE
    plan_of = "mla"

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: Tensor1 | None = None,
        kv_indptr: Tensor1 | None = None,
        kv_indices: Tensor1 | None = None,
        kv_len_arr: Tensor1 | None = None,
        backend: str = "auto",
    ) -> None:
        rows = len(kv_len_arr) if use_cuda_graph and kv_len_arr is not None else None
        super().__init__(float_workspace_buffer, backend, rows)
        self._needs_modelled()
        rule = "kv_len_arr must be a tensor if a graph is planned"
        self._call.needs(rows is not None or not use_cuda_graph, rule, None)
        self._qo_indptr_buf, self._kv_indptr_buf = qo_indptr, kv_indptr
        self._kv_indices_buf, self._kv_len_arr_buf = kv_indices, kv_len_arr
        self._page_size, self._sm_scale = 1, 1.0

    def plan(
        self,
        qo_indptr: Tensor1,
        kv_indptr: Tensor1,
        kv_indices: Tensor1,
        kv_len_arr: Tensor1,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        use_profiler: bool = False,
    ) -> None:
        """Copy a batch to where the graph reads it, and plan it by its offsets and lengths.

        Raises:
            KernelRefused: what the planner refuses.
        """
        given = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        for name, tensor in zip(self.order, given, strict=True):
            self._bind(name, tensor)
        self._make_room(len(kv_len_arr))
        self._causal, self._page_size, self._sm_scale = causal, page_size, sm_scale
        self._q_data_type, self._kv_data_type = q_data_type, kv_data_type
        hosts = tuple(each.to("cpu") for each in (qo_indptr, kv_indptr, kv_len_arr))
        self._cached_module = MlaPlanner(self._use_cuda_graph)
        self._plan_info = self._cached_module.plan(
            self._float_workspace_buffer, self._int_workspace_buffer,
            self._pin_memory_int_workspace_buffer, *hosts, num_heads, head_dim_ckv, causal,
        )  # fmt: skip

    def run(
        self,
        q_nope: Tensor3,
        q_pe: Tensor3,
        ckv_cache: Tensor3,
        kpe_cache: Tensor3,
        out: Tensor3 | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        return_lse_base_on_e: bool = False,
        **others: Any,
    ) -> Any:
        """[T, H, Dckv] latent attention: values are the first part of keys.

        Args:
            q_nope: [T, H, Dckv]; q_pe [T, H, Dkpe].
            ckv_cache: [pages, page_size, Dckv]; kpe_cache [pages, page_size, Dkpe].

        Returns:
            The outputs; with `return_lse` also float32 [T, H] to base 2, or e if asked for.

        Raises:
            KernelRefused: shapes or dtypes that the host code refuses.
            KernelNotModelled: an argument that the model does not follow.
        """
        self._call.leaves_out(others, {})
        numbers = self._numbers()
        # mla/_core.py from 0.6.18 on checks them; before, the launch reads them as the plan's.
        self._call.needs_dtype("q_nope", q_nope, self._q_data_type)
        self._call.needs_dtype("q_pe", q_pe, self._q_data_type)
        self._call.needs_dtype("ckv_cache", ckv_cache, self._kv_data_type)
        self._call.needs_dtype("kpe_cache", kpe_cache, self._kv_data_type)
        indices = self._kv_indices_buf
        self._call.needs(indices is not None, "kv_indices must be a tensor", None)
        assert indices is not None
        self._call.needs_dtype("kv_indices", indices, torch.int32)
        for name, tensor in (
            ("q_nope", q_nope),
            ("q_pe", q_pe),
            ("ckv_cache", ckv_cache),
            ("kpe_cache", kpe_cache),
        ):
            self._call.needs_contiguous_last(name, tensor)
        tokens, heads, columns = q_nope.shape
        pages, keys = ckv_cache.shape[:2]
        self._call.needs_shape("ckv_cache", ckv_cache, None, None, columns)
        self._call.needs_shape("kpe_cache", kpe_cache, pages, keys, None)
        self._call.needs_shape("q_pe", q_pe, tokens, heads, kpe_cache.shape[-1])
        if out is None:
            out = torch.empty_like(q_nope)
        rule = f"out must be {list(q_nope.shape)}"
        self._call.needs(out.shape == q_nope.shape, rule, list(out.shape))
        self._call.needs_dtype("out", out, q_nope.dtype)
        if return_lse and lse is None:
            lse = torch.empty(q_nope.shape[:2], dtype=torch.float32, device=q_nope.device)
        launch(
            MLA,
            q_nope=q_nope,
            q_pe=q_pe,
            ckv_cache=ckv_cache,
            kpe_cache=kpe_cache,
            kv_indices=indices,
            plan=self._int_workspace_buffer,
            rows=numbers.rows,
            planned=numbers,
            page_size=self._page_size,
            causal=self._causal,
            sm_scale=self._sm_scale,
            natural=return_lse_base_on_e,
            out=out,
            lse=lse if return_lse else None,
        )
        return (out, lse) if return_lse else out


def _flashinfer_mla(
    memory: KernelMemory,
    *,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    plan: torch.Tensor,
    rows: int,
    page_size: int,
    causal: bool,
    sm_scale: float,
    natural: bool,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    planned: Planned | None = None,
) -> None:
    work = read_plan(memory, plan, rows)
    if work is None:
        return
    if planned is not None:
        _latent_as_planned(memory, planned, q_nope, causal, work.queries)
    # A length that holds no number of a batch strays at once; a launch over it need not end.
    lens = work.lens.clip(min=0, max=(len(kv_indices) + 1) * page_size)
    positions = np.concatenate([np.arange(0), *(np.arange(n) for n in lens)])
    entries = np.repeat(work.pages[:-1], lens) + positions // page_size
    pages = memory.entries("kv_indices", kv_indices, entries)
    latent = memory.rows("ckv_cache", ckv_cache, pages, positions % page_size)
    rope = memory.rows("kpe_cache", kpe_cache, pages, positions % page_size)
    cache = Cache(torch.cat((latent, rope), -1).unsqueeze(1), latent.unsqueeze(1))
    ends = np.cumsum(lens)
    queries = np.diff(work.queries)
    found = [
        Row(
            int(first),
            int(count),
            (np.arange(end - keys, end),),
            below_diagonal(int(count), int(keys), (-1, 0)) if causal else None,
        )
        for first, count, keys, end in zip(work.queries[:-1], queries, lens, ends, strict=True)
    ]
    softmax = Softmax(sm_scale, lse_base="e" if natural else "2")
    q = torch.cat((q_nope, q_pe), -1)
    attend(memory, q, cache, found, softmax, out, None if lse is None else lse.transpose(0, 1))


def _latent_as_planned(
    memory: KernelMemory, planned: Planned, q_nope: torch.Tensor, causal: bool, queries: Ints
) -> None:
    """MLAPlan: tiles are of heads and queries, and those of a causal plan end where they see."""
    there = {"num_heads": q_nope.shape[1], "head_dim_o": q_nope.shape[2]}
    for name, size in there.items():
        if planned.sizes[name] != size:
            rule = f"{name} of a plan must be that of the run, {size}"
            memory.misused(name, rule, str(planned.sizes[name]))
    if planned.sizes["causal"] and not causal and np.diff(queries).max(initial=0) > 1:
        rule = "causal must be false for a plan whose run sees all keys"
        memory.misused("causal", rule, "true")


MLA = ModelKernel("BatchMLAPagedAttention", _flashinfer_mla, _SOURCE)
