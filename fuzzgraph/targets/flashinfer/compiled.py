"""In place of the modules that FlashInfer compiles: planners and kernels as models of them.

The release generates a module for a list of dtypes, dims and flags, and calls its `plan`, `run` and
`paged_run` by position. What such a call hands over is taken apart here, and nothing else is done.
Plans of one workspace are held to its first one, because a graph keeps what it was captured with.

Source: FlashInfer 0.6.3, 0.6.18 and 0.7.2, decode.py get_batch_decode_module, prefill.py
get_batch_prefill_module, mla get_batch_mla_module: the order of arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.kernels import DECODE, PREFILL
from fuzzgraph.kernel_models.flashinfer.mla import MLA
from fuzzgraph.kernel_models.flashinfer.plan import (
    DecodePlanner,
    MlaPlanner,
    PrefillPlanner,
    sizes_of,
)
from fuzzgraph.kernel_models.flashinfer.wrapper import PACK_BITS
from fuzzgraph.kernel_models.launch import launch
from fuzzgraph.kernel_models.trtllm_gen import trtllm_batch_decode_with_kv_cache
from fuzzgraph.targets.offline.kernel_arguments import strict

__all__ = ["compile_to_models", "imported_modules"]

_SOURCE = "FlashInfer 0.7.2, get_batch_decode_module, get_batch_prefill_module and csrc"
_NHD, _CAUSAL, _CUSTOM = 0, 1, 2
"""Codes of flashinfer/utils.py TensorLayout and MaskMode."""


def compile_to_models() -> None:
    """Let every imported module of the release that generates kernels generate models."""
    for module in imported_modules():
        for generator, model in _GENERATORS.items():
            if hasattr(module, generator):
                setattr(module, generator, model)


def imported_modules() -> list[Any]:
    """Those of the release."""
    return [module for name, module in sys.modules.items() if name.startswith("flashinfer.")]


class _Module:
    """A generated module before it is built, and the module itself."""

    planner: Callable[[bool], Any]

    def __init__(self) -> None:
        self._planners: Any = WeakIdKeyDictionary()

    def build_and_load(self) -> Any:
        return self

    def _plan(self, graph: bool, *args: Any) -> list[int]:
        """By the planner of this integer workspace, which repeats the first plan of a graph."""
        planner = self._planners.get(args[1])
        if planner is None:
            planner = self._planners[args[1]] = self.planner(graph)
        found: list[int] = planner.plan(*args)
        return found


class _Paged(_Module):
    """Decode or prefill over pages.

    Args:
        windowed, capped: whether the kernel masks a window and caps logits.
        independent: whether keys and values may have different strides.
    """

    def __init__(
        self, dtypes: tuple[torch.dtype, ...], windowed: bool, capped: bool, independent: bool
    ) -> None:
        super().__init__()
        self._q, self._kv, self._out, self._index = dtypes
        self._chosen = {"windowed": windowed, "capped": capped}
        self._independent = independent

    def _launch(
        self, kernel: Any, int_workspace: torch.Tensor, info: list[int], q: torch.Tensor,
        k: torch.Tensor, v: torch.Tensor, qo_indptr: torch.Tensor | None, indptr: torch.Tensor,
        indices: torch.Tensor, last: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None,
        layout: int, **scalars: Any,
    ) -> None:  # fmt: skip
        call = Call(kernel.name, _SOURCE)
        held = {"q": q, "k_cache": k, "v_cache": v, "o": out}
        for (name, tensor), dtype in zip(held.items(), (self._q, self._kv, self._kv, self._out),
                                         strict=True):  # fmt: skip
            call.needs(isinstance(tensor, torch.Tensor), f"{name} must be a tensor", repr(tensor))
            call.needs_dtype(name, tensor, dtype)
            call.needs_contiguous_last(name, tensor)
        for name, tensor in (("indptr", indptr), ("indices", indices), ("last_page_len", last)):
            call.needs_dtype(f"paged_kv_{name}", tensor, self._index)
        if not self._independent:
            rule = "k_cache and v_cache must have the same strides"
            call.needs(k.stride() == v.stride(), rule, f"{k.stride()} and {v.stride()}")
        if layout != _NHD:
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        call.needs_shape("o", out, *q.shape[:-1], v.shape[-1])
        launch(
            kernel, q=q, k_cache=k, v_cache=v, plan=int_workspace, rows=info[0],
            qo_indptr=qo_indptr, paged_kv_indptr=indptr, paged_kv_indices=indices,
            paged_kv_last_page_len=last, out=out, lse=lse, planned=sizes_of(info), **self._chosen,
            **scalars,
        )  # fmt: skip


class _Decode(_Paged):
    planner = strict(DecodePlanner)

    def plan(self, *args: Any) -> list[int]:
        return self._plan(args[8], *args)

    def run(
        self, _float: Any, int_workspace: torch.Tensor, info: list[int], q: torch.Tensor,
        k: torch.Tensor, v: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor,
        last: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None, layout: int,
        window_left: int, _pdl: bool, _alibi: Any, softcap: float, sm_scale: float, *_rope: float,
    ) -> None:  # fmt: skip
        self._launch(
            DECODE, int_workspace, info, q, k, v, None, indptr, indices, last, out, lse, layout,
            causal=False, window_left=window_left, tile=1, softcap=softcap, sm_scale=sm_scale,
            custom_mask=None, mask_indptr=None,
        )  # fmt: skip


class _Prefill(_Paged):
    planner = strict(PrefillPlanner)

    def __init__(self, backend: str, *args: Any) -> None:
        super().__init__(*args)
        self._backend = backend

    def plan(self, *args: Any) -> list[int]:
        return self._plan(args[11], *args)

    def ragged_run(self, *_: Any) -> None:
        raise NotImplementedError("no target runs the ragged kernel")

    def paged_run(
        self, _float: Any, int_workspace: torch.Tensor, info: list[int], q: torch.Tensor,
        k: torch.Tensor, v: torch.Tensor, qo_indptr: torch.Tensor, indptr: torch.Tensor,
        indices: torch.Tensor, last: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None,
        mask_mode: int, layout: int, window_left: int, _pdl: bool, *more: Any,
    ) -> None:  # fmt: skip
        if self._backend == "fa2":
            custom_mask, mask_indptr, *_ = more
            softcap, sm_scale = more[-5:-3]  # before two of rope and a length
        else:  # fa3: prefix, positions and lengths of items, scale of values
            custom_mask = mask_indptr = None
            softcap, sm_scale = more[4:6]
        if mask_mode != _CUSTOM:  # prefill.cuh: only the kernel with a mask reads it
            custom_mask = mask_indptr = None
        self._launch(
            PREFILL, int_workspace, info, q, k, v, qo_indptr, indptr, indices, last, out, lse,
            layout, causal=mask_mode == _CAUSAL, window_left=window_left,
            tile=info[1], softcap=softcap, sm_scale=sm_scale, custom_mask=custom_mask,
            mask_indptr=mask_indptr,
        )  # fmt: skip


class _Latent(_Module):
    planner = strict(MlaPlanner)

    def __init__(self, backend: str, dtype_q: torch.dtype, dtype_kv: torch.dtype, *_: Any) -> None:
        super().__init__()
        self._q, self._kv = dtype_q, dtype_kv

    def plan(self, *args: Any) -> list[int]:
        return self._plan(True, *args)

    def run(
        self, _float: Any, int_workspace: torch.Tensor, info: list[int], q_nope: torch.Tensor,
        q_pe: torch.Tensor, ckv: torch.Tensor, kpe: torch.Tensor, indices: torch.Tensor,
        out: torch.Tensor, lse: torch.Tensor | None, mask_mode: int, _heads: int, page_size: int,
        sm_scale: float, natural: bool, *_scales: Any,
    ) -> None:  # fmt: skip
        call = Call(MLA.name, _SOURCE)
        call.needs_dtype("kv_indices", indices, torch.int32)
        held = {"q_nope": q_nope, "q_pe": q_pe, "ckv_cache": ckv, "kpe_cache": kpe}
        for (name, tensor), dtype in zip(held.items(), (self._q, self._q, self._kv, self._kv),
                                         strict=True):  # fmt: skip
            call.needs_dtype(name, tensor, dtype)
            call.needs_contiguous_last(name, tensor)
        launch(
            MLA, q_nope=q_nope, q_pe=q_pe, ckv_cache=ckv, kpe_cache=kpe, kv_indices=indices,
            plan=int_workspace, rows=info[0], page_size=page_size, causal=mask_mode == _CAUSAL,
            sm_scale=sm_scale, natural=natural, out=out, lse=lse,
        )  # fmt: skip


class _TrtllmGen(_Module):
    """Kernels that follow a page table and lengths, without a plan (decode.py
    TrtllmGenDecodeModule)."""

    def get_library_path(self) -> str:
        """Up to 0.6.18; of nothing, which is not loaded."""
        return ""

    def get_library_paths(self) -> tuple[str, ...]:
        return ()

    def trtllm_paged_attention_decode(
        self, out: torch.Tensor, _fp4: Any, query: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        workspace: torch.Tensor, *more: Any,
    ) -> None:  # fmt: skip
        # Counters have a buffer of their own where three tensors follow.
        counters, *more_ = more if isinstance(more[2], torch.Tensor) else (None, *more)
        block_tables, seq_lens, max_q_len, max_kv_len, bmm1_scale, bmm2_scale = more_[:6]
        rows, window_left = more_[9:11]
        trtllm_batch_decode_with_kv_cache(
            query, (k, v), workspace, block_tables, seq_lens[:rows], max_kv_len, bmm1_scale,
            bmm2_scale, window_left, out=out, q_len_per_req=max_q_len,
            multi_ctas_kv_counter_buffer=counters,
        )  # fmt: skip


class _Quantization(_Module):
    """What packs masks (quantization/packbits.py)."""

    def segment_packbits(
        self, mask: torch.Tensor, starts: torch.Tensor, bytes_at: torch.Tensor, order: str,
        bits: torch.Tensor,
    ) -> None:  # fmt: skip
        Call(PACK_BITS.name, _SOURCE).needs(order == "little", "bits must be little first", order)
        launch(PACK_BITS, mask=mask, starts=starts, bytes_at=bytes_at, bits=bits)


def _decode(*args: Any) -> _Decode:
    """Of dtypes of q, kv, o and indices, two head dims, positions, window, cap."""
    return _Decode(args[:4], args[7], args[8], False)


def _prefill(backend: str, *args: Any) -> _Prefill:
    return _Prefill(backend, args[:4], args[7], args[8], False)


def _independent_prefill(backend: str, *args: Any) -> _Prefill:
    return _Prefill(backend, args[:4], args[7], args[8], True)


def _load_nothing(_path: str) -> None:
    """In place of what lets a library find more kernels."""


_GENERATORS: dict[str, Callable[..., Any]] = {
    "gen_batch_decode_module": _decode,
    "gen_batch_prefill_module": _prefill,
    "_gen_batch_prefill_primary_module": _prefill,
    "_gen_batch_prefill_independent_paged_module": _independent_prefill,
    "gen_batch_mla_module": _Latent,
    "gen_trtllm_gen_fmha_module": _TrtllmGen,
    "setup_cubin_loader": _load_nothing,
    "gen_quantization_module": _Quantization,
}
"""Name of a function of the release that generates a module -> what generates its model."""
