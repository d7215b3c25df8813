"""Attention backends whose kernels need a GPU and whose metadata code does not, one entry each.

An entry says where a backend lies, what it runs on, where it holds what the kernels of a graph
read, and what stands in for compiled code that its constructor or its builders call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzzgraph.case import Mode
from fuzzgraph.targets.offline.stub import Stub

__all__ = ["BACKENDS", "MetadataBackend"]

Tensors = dict[str, torch.Tensor]

_ATTENTION = "sglang.srt.layers.attention"


@dataclass(frozen=True, slots=True)
class MetadataBackend:
    """One backend of the engine, as `MetadataSession` drives it."""

    name: str
    """As `--attention-backend` spells it."""
    places: tuple[tuple[str, str], ...]
    """(module, class) under its names, the release's own first found."""
    attention: Literal["mha", "mla"]
    page_sizes: tuple[int, ...]
    held: Callable[[Any, Mode, int | None], Any]
    """(backend, mode, size of the graph or None without one) -> its metadata."""
    read: Callable[[Any], Tensors]
    """Metadata -> what kernels read of it, whole, by field."""
    planned: Callable[[Any], Tensors] = lambda metadata: {}
    """Metadata -> what a plan was made of on the host."""
    modes: tuple[Mode, ...] = ("decode", "target_verify")
    max_context_len: int = 64
    adapt: Callable[[Any], None] = lambda runner: None
    """Gives the model runner's stand-in what only this backend reads of it."""
    stand_ins: tuple[tuple[str, str, Any], ...] = ()
    """(module, name, what stands in for it on a machine without a GPU)."""
    asserts_gpu: tuple[str, ...] = ()
    """Functions in its module that assert tensors of a GPU and run without one."""
    settings: tuple[tuple[str, str], ...] = ()
    """What the engine reads from the environment, for the life of the worker."""


def _current(backend: Any, mode: Mode, size: int | None) -> Any:
    """Every preparation leaves its metadata in the same place."""
    return backend.forward_metadata


def _trtllm_mla(backend: Any, mode: Mode, size: int | None) -> Any:
    if size is None:
        return backend.forward_decode_metadata
    return backend.decode_cuda_graph_metadata[size]


def _latent_table(backend: Any, mode: Mode, size: int | None) -> Any:
    """For a graph the whole buffer: kernels find rows by its stride, whatever a view's width."""
    if size is None:
        return backend.forward_metadata
    return Stub(block_kv_indices=backend.cuda_graph_kv_indices[:size])


def _flashinfer(backend: Any, mode: Mode, size: int | None) -> Any:
    """The wrapper, of several the first."""
    held = backend.forward_metadata
    if size is not None:
        kept = "decode" if mode == "decode" else "prefill"
        found = getattr(backend, f"{kept}_cuda_graph_metadata")[size]
    else:
        names = ("decode_wrappers", "prefill_wrappers", "decode_wrapper", "prefill_wrapper")
        found = next(getattr(held, name) for name in names if hasattr(held, name))
    return found[0] if isinstance(found, list) else found


def _attributes(**fields: str) -> Callable[[Any], Tensors]:
    """Field -> attribute of the metadata; what a mode does not have is left out."""

    def read(metadata: Any) -> Tensors:
        found = {field: getattr(metadata, name, None) for field, name in fields.items()}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    return read


def _paged_buffers(wrapper: Any) -> Tensors:
    fields = {name.removeprefix("paged_"): wrapper.buffer(name) for name in wrapper.order}
    return fields


def _latent_buffers(wrapper: Any) -> Tensors:
    """Lengths and offsets of latent attention reach its kernels by the plan alone."""
    return {"kv_indices": wrapper.buffer("kv_indices")}


def _offsets(wrapper: Any) -> Tensors:
    made_of: dict[str, list[int]] = wrapper.planned
    return {name: torch.tensor(values, dtype=torch.int32) for name, values in made_of.items()}


def _planned_offsets(wrapper: Any) -> Tensors:
    return {f"planned_{name}": values for name, values in _offsets(wrapper).items()}


def _no_tiles(cache_seqlens: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of FlashMLA's planner: a plan of the right shapes, in which nothing is planned."""
    rows = cache_seqlens.shape[0]
    return torch.zeros(1, 8, dtype=torch.int32), torch.zeros(rows + 1, dtype=torch.int32)


def _few_bytes(*_: Any, **__: Any) -> int:
    """In place of what a compiled kernel says that its scratch memory needs."""
    return 64


def _no_build(*_: Any, **__: Any) -> None:
    """In place of compiling a kernel for later."""


_TRTLLM = (
    (f"{_ATTENTION}.trtllm_mla_backend", "_multi_ctas_kv_counter_bytes", _few_bytes),
    (f"{_ATTENTION}.trtllm_mla_backend", "_jit_fixup_module", _no_build),
)

_FA = _attributes(
    cache_seqlens="cache_seqlens_int32",
    page_table="page_table",
    cu_seqlens_q="cu_seqlens_q",
    cu_seqlens_k="cu_seqlens_k",
)

_TOPK = 16


def _sparse_model(runner: Any) -> None:
    """A model whose attention selects among its keys, whose KV is not quantised."""
    described = runner.model_config.hf_config
    described.architectures = ["DeepseekV32ForCausalLM"]
    described.index_topk = _TOPK
    pool = runner.token_to_kv_pool
    pool.nsa_kv_cache_store_fp8 = pool.dsa_kv_cache_store_fp8 = False


BACKENDS = (
    MetadataBackend(
        name="fa3",
        places=((f"{_ATTENTION}.flashattention_backend", "FlashAttentionBackend"),),
        attention="mha",
        page_sizes=(1, 2, 16),
        held=_current,
        read=_FA,
    ),
    MetadataBackend(
        name="flashinfer",
        places=((f"{_ATTENTION}.flashinfer_backend", "FlashInferAttnBackend"),),
        attention="mha",
        page_sizes=(1, 16),
        held=_flashinfer,
        read=_paged_buffers,
        planned=_planned_offsets,
    ),
    MetadataBackend(
        name="flashinfer_mla",
        places=((f"{_ATTENTION}.flashinfer_mla_backend", "FlashInferMLAAttnBackend"),),
        attention="mla",
        page_sizes=(1, 16),
        held=_flashinfer,
        read=_latent_buffers,
        planned=_offsets,
    ),
    MetadataBackend(
        name="trtllm_mha",
        places=((f"{_ATTENTION}.trtllm_mha_backend", "TRTLLMHAAttnBackend"),),
        attention="mha",
        page_sizes=(16, 32, 64),
        max_context_len=256,
        held=_current,
        read=_FA,
        stand_ins=_TRTLLM,
    ),
    MetadataBackend(
        name="flashmla",
        places=((f"{_ATTENTION}.flashmla_backend", "FlashMLABackend"),),
        attention="mla",
        page_sizes=(64,),
        max_context_len=256,
        held=_latent_table,
        read=_attributes(page_table="block_kv_indices"),
        stand_ins=((f"{_ATTENTION}.flashmla_backend", "get_mla_metadata", _no_tiles),),
    ),
    MetadataBackend(
        name="cutlass_mla",
        places=((f"{_ATTENTION}.cutlass_mla_backend", "CutlassMLABackend"),),
        attention="mla",
        page_sizes=(128,),
        modes=("decode",),
        max_context_len=512,
        held=_latent_table,
        read=_attributes(page_table="block_kv_indices"),
        stand_ins=(
            (f"{_ATTENTION}.cutlass_mla_backend", "cutlass_mla_get_workspace_size", _few_bytes),
        ),
    ),
    MetadataBackend(
        name="trtllm_mla",
        places=((f"{_ATTENTION}.trtllm_mla_backend", "TRTLLMMLABackend"),),
        attention="mla",
        page_sizes=(32, 64),
        max_context_len=256,
        held=_trtllm_mla,
        read=_attributes(page_table="block_kv_indices", cache_seqlens="seq_lens_k"),
        stand_ins=_TRTLLM,
    ),
    MetadataBackend(
        name="nsa",
        places=(
            (f"{_ATTENTION}.dsa_backend", "DeepseekSparseAttnBackend"),
            (f"{_ATTENTION}.nsa_backend", "NativeSparseAttnBackend"),
        ),
        attention="mla",
        page_sizes=(64,),
        max_context_len=256,
        held=_current,
        read=_attributes(
            cache_seqlens="cache_seqlens_int32",
            cu_seqlens_k="cu_seqlens_k",
            page_table="real_page_table",
            token_table="page_table_1",
        ),
        adapt=_sparse_model,
        asserts_gpu=("seqlens_expand_triton",),
        # The newer selection has a compiled planner.
        settings=(("SGLANG_OPT_USE_TOPK_V2", "0"),),
    ),
)
