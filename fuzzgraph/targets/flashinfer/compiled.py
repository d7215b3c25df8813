"""In place of the modules that FlashInfer compiles: planners and kernels as models of them.

The release's own code chooses what a module is built of: dtypes, dims, flags, and what its
functions take. In place of its compiler a model is made of that, and calls of the module's `plan`,
`run` and `paged_run` are bound to names by position, as in C++. What a kernel reads is held against
what the module was built for and what was planned; what it does not read is let through.
Plans of one workspace are held to its first one, because a graph keeps what it was captured with.

Source: FlashInfer 0.6.3 to 0.7.4, jit/attention/modules.py; csrc of 0.6.3 to 0.6.18:
batch_decode.cu, batch_prefill.cu, batch_prefill_sm90.cu, batch_mla_run.cu,
trtllm_fmha_kernel_launcher.cu.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.flashinfer.kernels import DECODE, PREFILL, PREFILL_SM90
from fuzzgraph.kernel_models.flashinfer.mla import MLA
from fuzzgraph.kernel_models.flashinfer.plan import planned_by
from fuzzgraph.kernel_models.flashinfer.planners import (
    DecodePlanner,
    MlaPlanner,
    Planner,
    PrefillPlanner,
    PrefillSm90Planner,
)
from fuzzgraph.kernel_models.flashinfer.typed_call import Parameter, named, parameters
from fuzzgraph.kernel_models.flashinfer.wrapper import PACK_BITS
from fuzzgraph.kernel_models.launch import launch
from fuzzgraph.kernel_models.trtllm_gen import trtllm_batch_decode_with_kv_cache
from fuzzgraph.relays import relay
from fuzzgraph.targets.flashinfer.built import SOURCE, Built, added
from fuzzgraph.targets.offline.binding import binding_of
from fuzzgraph.targets.offline.kernel_arguments import strict

__all__ = ["compile_to_models", "imported_modules"]

_HND = 1
"""Code of flashinfer/utils.py TensorLayout."""
_CAUSAL, _CUSTOM, _ITEMS = 1, 2, 3
"""Codes of flashinfer/utils.py MaskMode."""
_trtllm_decode = strict(trtllm_batch_decode_with_kv_cache)
_SCRATCH = "float_workspace_buffer int_workspace_buffer plan_info_vec:ints "
_PAGED = "paged_kv_indptr paged_kv_indices paged_kv_last_page_len o maybe_lse:tensor? "


def compile_to_models() -> None:
    """Let every imported module of the release that generates kernels generate models."""
    for module in imported_modules():
        for generator, model in _GENERATORS.items():
            if hasattr(module, generator):
                setattr(module, generator, _asked_as_known(generator, model))


def _asked_as_known(generator: str, model: Callable[..., Any]) -> Callable[..., Any]:
    """The model of a generator, for which arguments that it does not know are left to a release
    that it was not written for."""
    binding = binding_of(model)

    @functools.wraps(model, updated=())
    @relay
    def asked(*args: Any, **kwargs: Any) -> Any:
        try:
            binding.named(args, kwargs)
        except TypeError as error:
            raise KernelNotModelled(f"{generator}: {error}") from error
        return model(*args, **kwargs)

    return asked


def imported_modules() -> list[Any]:
    """Those of the release."""
    return [module for name, module in sys.modules.items() if name.startswith("flashinfer.")]


class _Module:
    """A generated module before it is built, and the module itself."""

    planner: ClassVar[type[Planner]]

    def __init__(self) -> None:
        self._planners: Any = WeakIdKeyDictionary()

    def build_and_load(self) -> Any:
        return self

    def plan(self, *args: Any) -> list[int]:
        """By the planner of this integer workspace, which repeats the first plan of a graph."""
        call = Call(self.planner.name, SOURCE)
        given = named(call, self.planner.known, args, self.planner.fewest)
        staged = given["page_locked_int_workspace_buffer"]
        rule = "page_locked_int_workspace_buffer must be a tensor"
        call.needs(staged is not None, rule, None)
        self._check_plan(call, given)
        workspace = given["int_workspace_buffer"]
        planner = self._planners.get(workspace)
        if planner is None:
            planner = self._planners[workspace] = self.planner(self._follows(given))
        found: list[int] = planner.plan(*args)
        return found

    def _follows(self, given: Mapping[str, Any]) -> bool:
        """Whether a graph follows this plan."""
        return bool(given["enable_cuda_graph"])

    def _check_plan(self, call: Call, given: Mapping[str, Any]) -> None:
        """Refuse a plan for other dims than the module's."""


class _Paged(_Module):
    """Decode or prefill over pages, of what a module is built for."""

    known: ClassVar[tuple[Parameter, ...]]

    def __init__(self, built: Built) -> None:
        super().__init__()
        self._built = built

    def _named(self, args: Sequence[Any]) -> dict[str, Any]:
        given = named(self._built.call, (*self.known, *self._built.added), args)
        self._built.needs_paged(given)
        return given

    def _launch(self, kernel: Any, given: Mapping[str, Any], **more: Any) -> None:
        planned = planned_by(self._built.call, self.planner.of, given["plan_info_vec"])
        k, v = given["paged_k_cache"], given["paged_v_cache"]
        if given["layout"] == _HND:
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        launch(
            kernel, q=given["q"], k_cache=k, v_cache=v, plan=given["int_workspace_buffer"],
            rows=planned.rows, planned=planned, tile=planned.tile, out=given["o"],
            lse=given["maybe_lse"], window_left=given["window_left"],
            windowed=self._built.windowed, capped=self._built.capped,
            softcap=given["logits_soft_cap"], sm_scale=given["sm_scale"],
            paged_kv_indices=given["paged_kv_indices"], **more,
        )  # fmt: skip


_ON_DEVICE = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")


class _Decode(_Paged):
    """csrc/batch_decode.cu: its plan takes dims from the module, and no others."""

    planner = DecodePlanner
    known = parameters(
        _SCRATCH + "q paged_k_cache paged_v_cache " + _PAGED + "layout:int window_left:int"
        " enable_pdl:bool"
    )

    def run(self, *args: Any) -> None:
        given = self._named(args)
        self._built.needs_indices(given, *_ON_DEVICE)
        self._launch(
            DECODE, given, qo_indptr=None, causal=False, custom_mask=None, mask_indptr=None,
            **{name: given[name] for name in _ON_DEVICE[::2]},
        )  # fmt: skip


_RUN_PAGED = parameters(
    _SCRATCH + "q paged_k_cache paged_v_cache qo_indptr " + _PAGED + "mask_mode_code:int layout:int"
    " window_left:int enable_pdl:bool"
)


class _Prefill(_Paged):
    """csrc/batch_prefill.cu: offsets and last pages are read on the device."""

    planner: ClassVar[type[Planner]] = PrefillPlanner
    known = _RUN_PAGED

    def ragged_run(self, *_: Any) -> None:
        raise KernelNotModelled("no target runs the ragged kernel")

    def _check_plan(self, call: Call, given: Mapping[str, Any]) -> None:
        """Tiles and partial results are laid out by the dims of the plan."""
        for name in ("head_dim_qk", "head_dim_vo"):
            built = getattr(self._built, name)
            rule = f"{name} of a plan must be that of its module, {built}"
            call.needs(given[name] == built, rule, given[name])

    def _mask_mode(self, given: Mapping[str, Any]) -> int:
        mode: int = given["mask_mode_code"]
        rule = "mask_mode_code must be 0, 1, 2 or 3"
        self._built.call.needs(0 <= mode <= _ITEMS, rule, mode)
        if mode == _ITEMS:
            self._built.call.leaves_out({"mask_mode_code": mode}, {})
        return mode

    def paged_run(self, *args: Any) -> None:
        given = self._named(args)
        self._built.needs_indices(given, "qo_indptr", *_ON_DEVICE)
        mode = self._mask_mode(given)
        custom_mask = mask_indptr = None
        if mode == _CUSTOM:  # prefill.cuh: only the kernel with a mask reads it
            custom_mask = self._built.read(given, "maybe_custom_mask")
            mask_indptr = self._built.read(given, "maybe_mask_indptr")
        self._launch(
            PREFILL, given, qo_indptr=given["qo_indptr"], causal=mode == _CAUSAL,
            custom_mask=custom_mask, mask_indptr=mask_indptr,
            **{name: given[name] for name in _ON_DEVICE[::2]},
        )  # fmt: skip


class _PrefillSm90(_Prefill):
    """csrc/batch_prefill_sm90.cu: offsets and lengths are those of the plan."""

    planner = PrefillSm90Planner

    def paged_run(self, *args: Any) -> None:
        given = self._named(args)
        self._built.needs_indices(given, "paged_kv_indices")
        mode = self._mask_mode(given)
        rule = "mask_mode_code must be 0 or 1, as FlashAttention 3 follows no mask"
        self._built.call.needs(mode != _CUSTOM, rule, mode)
        self._built.call.leaves_out({"maybe_scale_v": given["maybe_scale_v"]}, {})
        self._launch(
            PREFILL_SM90, given, causal=mode == _CAUSAL, value_scale=given["scale_v_scalar"]
        )


class _Latent(_Module):
    """csrc/batch_mla_plan.cu and batch_mla_run.cu; dims are those of the module."""

    planner = MlaPlanner
    known = parameters(
        _SCRATCH + "q_nope q_pe ckv_cache kpe_cache kv_indices o maybe_lse:tensor?"
        " mask_mode_code:int num_heads:int page_size:int sm_scale:float return_lse_base_on_e:bool"
        " ckv_scale:float kpe_scale:float maybe_ckv_scale_arr:tensor?"
    )
    fewest = len(known) - 3
    """Of arguments; up to 0.6.7 without scales of the cache."""

    def __init__(
        self, backend: str, dtype_q: torch.dtype, dtype_kv: torch.dtype, dtype_o: torch.dtype,
        dtype_idx: torch.dtype, head_dim_ckv: int, head_dim_kpe: int, use_profiler: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        call = Call(MLA.name, SOURCE)
        call.needs(backend in ("fa2", "fa3"), "a module's backend must be fa2 or fa3", backend)
        call.leaves_out({"use_profiler": use_profiler}, {"use_profiler": False})
        self._built = Built(call, dtype_q, dtype_kv, dtype_o, dtype_idx, head_dim_ckv, head_dim_kpe)

    def _follows(self, given: Mapping[str, Any]) -> bool:
        return True

    def _check_plan(self, call: Call, given: Mapping[str, Any]) -> None:
        rule = f"head_dim_o of a plan must be that of its module, {self._built.head_dim_qk}"
        call.needs(given["head_dim_o"] == self._built.head_dim_qk, rule, given["head_dim_o"])

    def run(self, *args: Any) -> None:
        built, call = self._built, self._built.call
        given = named(call, self.known, args, self.fewest)
        planned = planned_by(call, "mla", given["plan_info_vec"])
        built.needs_indices(given, "kv_indices")
        q, ckv = given["q_nope"], given["ckv_cache"]
        call.needs_shape("q_nope", q, None, None, built.head_dim_qk)
        call.needs_shape("q_pe", given["q_pe"], *q.shape[:2], built.head_dim_vo)
        call.needs_shape("ckv_cache", ckv, None, None, built.head_dim_qk)
        call.needs_shape("kpe_cache", given["kpe_cache"], *ckv.shape[:2], built.head_dim_vo)
        call.needs_shape("o", given["o"], *q.shape)
        call.needs_dtype("o", given["o"], built.out)
        for name, dtype in (("q_nope", built.q), ("q_pe", built.q), ("ckv_cache", built.kv),
                            ("kpe_cache", built.kv)):  # fmt: skip
            call.needs_dtype(name, given[name], dtype)
            call.needs_contiguous_last(name, given[name])
        built.needs_lse(given["maybe_lse"], q)
        heads = given["num_heads"]
        call.needs(heads == q.shape[1], f"num_heads must be the {q.shape[1]} of q_nope", heads)
        call.needs(given["page_size"] > 0, "page_size must be above 0", given["page_size"])
        mode = given["mask_mode_code"]
        call.needs(0 <= mode <= _ITEMS, "mask_mode_code must be 0, 1, 2 or 3", mode)
        call.leaves_out({"mask_mode_code": mode if mode > _CAUSAL else None}, {})
        scales = ("ckv_scale", "kpe_scale", "maybe_ckv_scale_arr")
        call.leaves_out({name: given.get(name) for name in scales}, dict.fromkeys(scales[:2], 1.0))
        launch(
            MLA, q_nope=q, q_pe=given["q_pe"], ckv_cache=ckv, kpe_cache=given["kpe_cache"],
            kv_indices=given["kv_indices"], plan=given["int_workspace_buffer"], rows=planned.rows,
            planned=planned, page_size=given["page_size"], causal=mode == _CAUSAL,
            sm_scale=given["sm_scale"], natural=given["return_lse_base_on_e"], out=given["o"],
            lse=given["maybe_lse"],
        )  # fmt: skip


class _TrtllmGen(_Module):
    """Kernels that follow a page table and lengths, without a plan (decode.py
    TrtllmGenDecodeModule)."""

    _BEFORE = parameters(
        "out out_scale_factor:tensor? query key_cache value_cache workspace_buffer"
    )
    _COUNTERS = parameters("multi_ctas_kv_counter_buffer")
    _BEHIND = parameters(
        "block_tables seq_lens max_q_len:int max_kv_len:int bmm1_scale:any bmm2_scale:any"
        " o_sf_scale:float o_sf_vec_size:int o_sf_start_index:int batch_size:int window_left:int"
        " sparse_mla_top_k:int sm_count:int enable_pdl:bool workspace_size:int"
        " attention_sinks:tensor? cum_seq_lens_q:tensor?"
    )
    _call = Call("trtllm_paged_attention_decode", SOURCE)

    def get_library_path(self) -> str:
        """Up to 0.6.18; of nothing, which is not loaded."""
        return ""

    def get_library_paths(self) -> tuple[str, ...]:
        return ()

    def trtllm_paged_attention_decode(self, *args: Any) -> None:
        # Counters have a buffer of their own where a third tensor stands before the numbers.
        apart = len(args) > 8 and not isinstance(args[8], int)
        known = (*self._BEFORE, *(self._COUNTERS if apart else ()), *self._BEHIND)
        # What follows differs between releases, and says nothing that the models follow.
        given = named(self._call, known, args[: len(known)])
        workspace, size = given["workspace_buffer"], given["workspace_size"]
        room = workspace.numel() * workspace.element_size()
        rule = f"workspace_size must not be above the {room} bytes of workspace_buffer"
        self._call.needs(0 < size <= room, rule, size)
        rows, each = given["batch_size"], given["max_q_len"]
        tokens = given["query"].shape[0] if given["query"].dim() else 0
        uniform = given["cum_seq_lens_q"] is None
        rule = f"query must hold batch_size * max_q_len tokens, {rows} * {each}"
        self._call.needs(not uniform or (each > 0 and tokens == rows * each), rule, tokens)
        _trtllm_decode(
            given["query"], (given["key_cache"], given["value_cache"]), workspace,
            given["block_tables"], given["seq_lens"], given["max_kv_len"], given["bmm1_scale"],
            given["bmm2_scale"], given["window_left"], out=given["out"],
            sinks=given["attention_sinks"], q_len_per_req=each if uniform else None,
            max_q_len=each, cum_seq_lens_q=given["cum_seq_lens_q"],
            multi_ctas_kv_counter_buffer=given.get("multi_ctas_kv_counter_buffer"),
        )  # fmt: skip


class _Quantization(_Module):
    """What packs masks (quantization/packbits.py)."""

    def segment_packbits(
        self, mask: torch.Tensor, starts: torch.Tensor, bytes_at: torch.Tensor, order: str,
        bits: torch.Tensor,
    ) -> None:  # fmt: skip
        Call(PACK_BITS.name, SOURCE).needs(order == "little", "bits must be little first", order)
        launch(PACK_BITS, mask=mask, starts=starts, bytes_at=bytes_at, bits=bits)


def _prefill(
    backend: str, _uri: str, dtype_q: Any, dtype_kv: Any, dtype_o: Any, idtype: Any,
    head_dim_qk: int, head_dim_vo: int, tensors: Sequence[str], types: Sequence[str],
    numbers: Sequence[str], kinds: Sequence[str], _variant: str, _declared: str,
    pos_encoding_mode: int = 0, use_sliding_window: bool = False, use_logits_soft_cap: bool = False,
    use_fp16_qk_reduction: bool = False, fp8_enabled: bool = False,
    paged_kv_stride_mode: str = "equal", module_surface: str = "full",
    use_token_head_sf: bool = False, v_sf_swizzled: bool = False,
) -> _Prefill:  # fmt: skip
    """As `gen_customize_batch_prefill_module`; older releases have one set of strides, and scales
    for each token and head are there from 0.7.4 on."""
    call = Call(PREFILL.name, SOURCE)
    given = {"fp8_enabled": fp8_enabled, "use_token_head_sf": use_token_head_sf,
             "v_sf_swizzled": v_sf_swizzled}  # fmt: skip
    call.leaves_out(given, dict.fromkeys(given, False))
    more, of = added(tensors, types, numbers, kinds)
    built = Built(
        call, dtype_q, dtype_kv, dtype_o, idtype, head_dim_qk, head_dim_vo, more, of,
        use_sliding_window, use_logits_soft_cap,
        backend == "fa2" and paged_kv_stride_mode != "equal",
    )  # fmt: skip
    built.needs_no_positions(pos_encoding_mode)
    call.needs(backend in ("fa2", "fa3"), "a module's backend must be fa2 or fa3", backend)
    return (_PrefillSm90 if backend == "fa3" else _Prefill)(built)


def _decode(
    _uri: str, dtype_q: Any, dtype_kv: Any, dtype_o: Any, idtype: Any, head_dim_qk: int,
    head_dim_vo: int, tensors: Sequence[str], types: Sequence[str], numbers: Sequence[str],
    kinds: Sequence[str], _variant: str, _declared: str, pos_encoding_mode: int = 0,
    use_sliding_window: bool = False, use_logits_soft_cap: bool = False,
) -> _Decode:  # fmt: skip
    """As `gen_customize_batch_decode_module`."""
    more, of = added(tensors, types, numbers, kinds)
    built = Built(
        Call(DECODE.name, SOURCE), dtype_q, dtype_kv, dtype_o, idtype, head_dim_qk, head_dim_vo,
        more, of, use_sliding_window, use_logits_soft_cap,
    )  # fmt: skip
    built.needs_no_positions(pos_encoding_mode)
    return _Decode(built)


def _load_nothing(_path: str) -> None:
    """In place of what lets a library find more kernels."""


_GENERATORS: dict[str, Callable[..., Any]] = {
    "gen_customize_batch_decode_module": _decode,
    "gen_customize_batch_prefill_module": _prefill,
    "gen_batch_mla_module": _Latent,
    "gen_trtllm_gen_fmha_module": _TrtllmGen,
    "setup_cubin_loader": _load_nothing,
    "gen_quantization_module": _Quantization,
}
"""Name of a function of the release that generates a module -> what generates its model."""
