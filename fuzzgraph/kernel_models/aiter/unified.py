"""AITER's unified attention of new queries over a paged cache.

Source: ROCm/aiter, aiter/ops/triton/attention/unified_attention.py and its kernels, 2026. Left out
are ALiBi, quantised outputs and biases among queries: `KernelNotModelled`.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.aiter.csr import kernel_scalar
from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3, Tensor4
from fuzzgraph.kernel_models.attention import (
    Cache,
    Row,
    Softmax,
    attend,
    below_diagonal,
    rows_between,
)
from fuzzgraph.kernel_models.checks import Call, check_offsets
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.pages import paged_keys

__all__ = ["unified_attention"]

_UNIFIED = "ROCm/aiter, aiter/ops/triton/attention/unified_attention.py, 2026"


def unified_attention(
    q: Tensor3,
    k: Tensor4,
    v: Tensor4,
    out: Tensor3,
    cu_seqlens_q: Tensor1,
    max_seqlen_q: int,
    seqused_k: Tensor1,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: Tensor2,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
    qq_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Causal attention of new queries over a paged cache, aligned at the last token and key.

    Args:
        q: [T, Hq, D]; out: [T, Hq, Dv].
        k, v: [pages, page_size, Hkv, D or Dv], any strides.
        cu_seqlens_q: [B + 1] first query token of each row.
        max_seqlen_q: 1 says that token i is row i.
        seqused_k: [B] keys of each row, new tokens included.
        max_seqlen_k: chooses a schedule only.
        window_size: its first is how many keys before itself a token sees; -1 is no limit.
        block_table: [B, width], rows with any stride.
        q_descale, k_descale, v_descale: [1] factors of stored numbers.
        sinks: [Hq].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("unified_attention", _UNIFIED)
    unfollowed = {"alibi_slopes": alibi_slopes, "output_scale": output_scale, "qq_bias": qq_bias}
    call.leaves_out(unfollowed, {})
    call.needs(bool(causal), "only causal attention is supported", causal)
    call.needs(
        sinks is None or len(sinks) == q.shape[1],
        f"sinks must hold {q.shape[1]} logits, one for each query head",
        None if sinks is None else len(sinks),
    )
    call.needs(
        q.shape[1] % k.shape[2] == 0,
        "query heads must be a multiple of those of the cache",
        f"{q.shape[1]} and {k.shape[2]}",
    )
    if not q.shape[2] == k.shape[3] == v.shape[3] == out.shape[2]:
        # Its one HEAD_SIZE is that of the queries; it would walk the others by it.
        raise KernelNotModelled(
            f"the model of unified_attention does not follow heads of {q.shape[2]}, {k.shape[3]},"
            f" {v.shape[3]} and {out.shape[2]} columns in q, k, v and out, which the kernel takes"
            " for one width. Leave out configs in which v_head_dim is not head_dim."
        )
    # The kernel walks these by their first strides alone.
    for name, tensor in (("q", q), ("out", out), ("block_table", block_table)):
        call.needs_contiguous_last(name, tensor)
    launch(
        _AITER_UNIFIED,
        q=q,
        k=k,
        v=v,
        out=out,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        seqused_k=seqused_k,
        scale=softmax_scale,
        window=(window_size[0], 0),
        block_table=block_table,
        softcap=softcap or 0.0,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        sinks=sinks,
    )


def _run_aiter_unified(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    scale: float,
    window: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    lens = memory.ints(seqused_k)
    offsets = memory.entries("cu_seqlens_q", cu_seqlens_q, np.arange(len(lens) + 1))
    check_offsets(memory, "cu_seqlens_q", offsets, len(q))
    if max_seqlen_q == 1 and (np.diff(offsets) != 1).any():
        rule = "cu_seqlens_q must count one token to a row where max_seqlen_q is 1"
        memory.misused("cu_seqlens_q", rule, f"{offsets.tolist()}")
    rows = []
    for row, first, count in rows_between(offsets):
        length = max(0, int(lens[row]))
        keys = paged_keys(memory, "block_table", block_table, row, length, k.shape[1])
        rows.append(Row(first, count, keys, below_diagonal(count, length, window)))
    # kernel_unified_attention_2d takes them together or not at all.
    both = k_descale is not None and v_descale is not None
    cache = Cache(
        k,
        v,
        kernel_scalar(k_descale if both else None),
        kernel_scalar(v_descale if both else None),
        ("k", "v"),
    )
    softmax = Softmax(scale * kernel_scalar(q_descale), softcap, sinks, empty="undefined")
    attend(memory, q, cache, rows, softmax, out)


_AITER_UNIFIED = ModelKernel("unified_attention", _run_aiter_unified, _UNIFIED)
