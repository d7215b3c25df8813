"""AITER's latent attention over pages that a CSR lists.

Source: ROCm/aiter, aiter/mla.py and csrc/py_itfs_cu/asm_mla.cu, 2026. A decode that gets a plan
(`persistent`) follows it. Left out is context parallelism: `KernelNotModelled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.aiter.csr import ALSO, FP8, csr_keys, csr_length, kernel_scalar
from fuzzgraph.kernel_models.aiter.persistent import (
    PersistentPlan,
    check_plan,
    persistent_rows,
    plan_of,
)
from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3, Tensor4
from fuzzgraph.kernel_models.attention import (
    Row,
    Softmax,
    attend,
    below_diagonal,
    rows_between,
)
from fuzzgraph.kernel_models.checks import Call, check_longest, check_offsets
from fuzzgraph.kernel_models.latent import latent
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["mla_decode_fwd", "mla_prefill_fwd"]

_LATENT = "ROCm/aiter, aiter/mla.py and csrc/py_itfs_cu/asm_mla.cu, 2026"
_LATENT_HEADS = (8, 16, 32, 48, 64, 80, 96, 112, 128)
_LATENT_SCHEDULE = ("num_kv_splits", "num_kv_splits_indptr", "intra_batch_mode", "return_logits")
_LATENT_DEFAULTS = {"cp_world_size": 1, "cp_rank": 0, "causal": True}


def mla_decode_fwd(
    q: Tensor3,
    kv_buffer: Tensor4,
    o: Tensor3,
    qo_indptr: Tensor1,
    kv_indptr: Tensor1,
    kv_indices: Tensor1,
    kv_last_page_lens: Tensor1,
    max_seqlen_q: int,
    page_size: int = 1,
    nhead_kv: int = 1,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    q_scale: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    return_lse: bool = False,
    **others: Any,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Latent attention of new queries over the pages that a CSR lists, aligned at the last ones.

    Args:
        q: [T, H, D], contiguous; H 8 or a multiple of 16.
        kv_buffer: [pages, page_size, 1, D]; its first Dv columns are values.
        o: [T, H, Dv], written.
        qo_indptr, kv_indptr: int32 [B + 1]; kv_indices: int32 pages.
        kv_last_page_lens: int32 [B] keys in each row's last page.
        max_seqlen_q: query tokens of the longest row.
        q_scale, kv_scale: [1] factors of queries and keys that are FP8.
        others: `work_meta_data` and the rest of a `persistent.PersistentPlan`. With it the kernel
            computes what its work items say, and no offsets are read.

    Returns:
        (partial results, of which the documentation promises nothing, here None; lse float32
        [T, H] with `return_lse`, else None).

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("mla_decode_fwd", _LATENT)
    known = (*_LATENT_SCHEDULE, *PersistentPlan.__slots__)
    call.leaves_out({name: others[name] for name in others if name not in known}, _LATENT_DEFAULTS)
    plan = plan_of(others)
    if plan is not None:
        check_plan(call, plan)
        call.leaves_out({"page_size": page_size}, {"page_size": 1})
    call.needs(q.is_contiguous(), "q must be contiguous", f"strides {list(q.stride())}")
    heads = o.shape[1]
    call.needs(heads in _LATENT_HEADS, f"query heads are one of {_LATENT_HEADS}", heads)
    lse = torch.empty(o.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
    _launch_aiter_latent(
        _AITER_MLA_DECODE, call, q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices,
        kv_last_page_lens, max_seqlen_q, page_size, nhead_kv, sm_scale, logit_cap,
        q_scale, kv_scale, lse, plan,
    )  # fmt: skip
    return None, lse


def mla_prefill_fwd(
    q: Tensor3,
    kv_buffer: Tensor4,
    o: Tensor3,
    qo_indptr: Tensor1,
    kv_indptr: Tensor1,
    kv_indices: Tensor1,
    kv_last_page_lens: Tensor1,
    max_seqlen_q: int,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    num_kv_splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `mla_decode_fwd` computes, for rows with many new tokens.

    Returns:
        (`o`, float32 [T, 1, H, 1] lse).

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("mla_prefill_fwd", _LATENT)
    call.needs(q.is_contiguous(), "q must be contiguous", f"strides {list(q.stride())}")
    tokens, heads = o.shape[:2]
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
    _launch_aiter_latent(
        _AITER_MLA_PREFILL, call, q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices,
        kv_last_page_lens, max_seqlen_q, kv_buffer.shape[1], kv_buffer.shape[2], sm_scale,
        logit_cap, None, None, lse,
    )  # fmt: skip
    return o, lse.view(tokens, 1, heads, 1)


def _launch_aiter_latent(
    kernel: ModelKernel,
    call: Call,
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    page_size: int,
    nhead_kv: int,
    sm_scale: float | None,
    logit_cap: float,
    q_scale: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    lse: torch.Tensor | None,
    plan: PersistentPlan | None = None,
) -> None:
    """What the host code of both latent kernels checks, and the launch."""
    # asm_mla.cu takes the pointers of these as those of int32.
    for name, tensor in (
        ("qo_indptr", qo_indptr),
        ("kv_indptr", kv_indptr),
        ("kv_indices", kv_indices),
        ("kv_last_page_lens", kv_last_page_lens),
    ):
        call.needs_dtype(name, tensor, torch.int32)
    call.needs_dtype("q", q, torch.bfloat16, *FP8, *ALSO)
    call.needs_dtype("kv_buffer", kv_buffer, torch.bfloat16, *FP8, *ALSO)
    call.needs(logit_cap <= 0, "logit_cap is not supported", logit_cap)
    call.needs(nhead_kv == 1, "there must be one head of keys", nhead_kv)
    call.needs_shape("o", o, *q.shape[:2], None)
    columns = kv_buffer.shape[-1]
    call.needs(q.shape[-1] == columns, f"q must have {columns} columns", q.shape[-1])
    scaled = q.dtype in FP8
    call.needs(
        not scaled or (q_scale is not None and kv_scale is not None),
        "FP8 queries need q_scale and kv_scale",
        None,
    )
    launch(
        kernel,
        q=q,
        kv_buffer=kv_buffer,
        o=o,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_last_page_lens=kv_last_page_lens,
        max_seqlen_q=max_seqlen_q,
        page_size=page_size,
        scale=columns**-0.5 if sm_scale is None else sm_scale,
        q_scale=q_scale if scaled else None,
        kv_scale=kv_scale if kv_buffer.dtype in FP8 else None,
        lse=lse,
        **(
            {} if plan is None else {name: getattr(plan, name) for name in PersistentPlan.__slots__}
        ),
    )


def _run_aiter_latent(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    page_size: int,
    scale: float,
    q_scale: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    lse: torch.Tensor | None,
    **plan: torch.Tensor,
) -> None:
    if plan:
        rows = persistent_rows(memory, PersistentPlan(**plan), kv_indices, causal=True)
    else:
        rows = _listed_rows(
            memory, len(q), qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q,
            page_size,
        )  # fmt: skip
    cache = latent(kv_buffer, o.shape[-1], "kv_buffer", kernel_scalar(kv_scale))
    softmax = Softmax(scale * kernel_scalar(q_scale), empty="undefined")
    attend(memory, q, cache, rows, softmax, o, None if lse is None else lse.transpose(0, 1))


def _listed_rows(
    memory: KernelMemory,
    tokens: int,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    page_size: int,
) -> list[Row]:
    """The rows between the offsets, each over the pages listed for it."""
    # asm_mla.cu takes the number of rows from these offsets.
    starts = memory.ints(qo_indptr)
    check_offsets(memory, "qo_indptr", starts, tokens)
    offsets = memory.entries("kv_indptr", kv_indptr, np.arange(len(starts)))
    # Of the list it gets an address: what lies behind its end shows when it is read.
    check_offsets(memory, "kv_indptr", offsets)
    rows = []
    for (row, token, count), (_, page, pages) in zip(
        rows_between(starts), rows_between(offsets), strict=True
    ):
        check_longest(memory, "max_seqlen_q", max_seqlen_q, row, count)
        length = csr_length(memory, kv_last_page_lens, row, pages, page_size)
        keys = csr_keys(memory, "kv_indices", kv_indices, page, length, page_size)
        rows.append(Row(token, count, keys, below_diagonal(count, length, (-1, 0))))
    return rows


_AITER_MLA_DECODE = ModelKernel("mla_decode_fwd", _run_aiter_latent, _LATENT)
_AITER_MLA_PREFILL = ModelKernel("mla_prefill_fwd", _run_aiter_latent, _LATENT)
