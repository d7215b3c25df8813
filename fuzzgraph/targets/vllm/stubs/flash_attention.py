"""FlashAttention 3 as vLLM calls it, by the models of its kernels.

vLLM's build names the arguments otherwise than the one whose interface the models have. KV goes to
its slots by the engine's own Triton kernel for it, which has the compiled one's signature.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.errors import AdapterUnavailable, KernelNotModelled
from fuzzgraph.kernel_models import flash_attention, flash_attention_plan
from fuzzgraph.targets.offline.kernel_arguments import put_model, strict
from fuzzgraph.targets.vllm.release import engine_module, has_module, release

_UTILS = "vllm.v1.attention.backends.fa_utils"
_ROUNDED = "round_up"
"""Name in the backend's module by which it sizes a plan in parts that are aligned, as the model
lays it out; before 0.17 a plan had a number for each row and one more."""
_STORE = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
_RANK = "cp_rank"
"""Counts where a row's keys lie on several ranks, which is refused."""
_attend = strict(flash_attention.flash_attn_with_kvcache)
_plan = strict(flash_attention_plan.get_scheduler_metadata)


def put_flash_attention(backend: str) -> None:
    """Have the backend's module call the models; once per process, before a session opens.

    Raises:
        AdapterUnavailable: the release has another layout of plans than the model.
    """
    if not hasattr(engine_module(backend), _ROUNDED):
        raise AdapterUnavailable(
            f"vllm {release()} has a FlashAttention whose plans are laid out otherwise than the "
            "model's. Name a release from 0.17.0 on, for example --release 0.33.0, or take "
            "vllm-triton."
        )
    for place in filter(has_module, (_UTILS, backend)):
        module = engine_module(place)
        put_model(module, "flash_attn_varlen_func", flash_attn_varlen_func)
        put_model(module, "get_scheduler_metadata", get_scheduler_metadata)
        if hasattr(module, "reshape_and_cache_flash"):
            store = engine_module(_STORE).triton_reshape_and_cache_flash
            module.reshape_and_cache_flash = store


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_k: int,
    *,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = None,
    softcap: float = 0.0,
    return_softmax_lse: bool = False,
    out: torch.Tensor | None = None,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 0,
    fa_version: int = 3,
    s_aux: torch.Tensor | None = None,
    q_v: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    cp_world_size: int = 1,
    **others: Any,
) -> Any:
    """Attention over a paged cache, written to `out`.

    Raises:
        KernelNotModelled: an argument of another version, or of a kind of attention without pages.
    """
    named = [name for name, value in others.items() if value is not None and name != _RANK]
    if named or block_table is None or seqused_k is None or fa_version != 3 or cp_world_size != 1:
        what = named[0] if named else f"fa_version={fa_version}, pages={block_table is not None}"
        raise KernelNotModelled(f"flash_attn_varlen_func of vLLM: {what}")
    return _attend(
        q, k, v,
        cache_seqlens=seqused_k,
        page_table=block_table,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=_window(window_size),
        softcap=softcap,
        sinks=s_aux,
        qv=q_v,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        scheduler_metadata=scheduler_metadata,
        num_splits=num_splits,
        return_softmax_lse=return_softmax_lse,
        out=out,
    )  # fmt: skip


def get_scheduler_metadata(
    *, num_heads_q: int, num_heads_kv: int, window_size: Any = None, **given: Any
) -> Any:
    """The plan of a batch."""
    heads = {"num_heads": num_heads_q, "num_heads_k": num_heads_kv}
    return _plan(**heads, window_size=_window(window_size), **given)


def _window(window_size: Any) -> tuple[int, int]:
    return (-1, -1) if window_size is None else (int(window_size[0]), int(window_size[1]))
