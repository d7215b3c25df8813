"""`--attention-backend aiter`: AITER's attention.

Real: `AiterAttnBackend` with both preparations, its forwards, the writing of KV, and the Triton
kernel that verifies over a CSR. Modelled: AITER's kernels. A layer behind a sliding window makes it
take unified attention, so such models have targets of their own. Encoders, FP8 KV and draft
runners are not driven here.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models import aiter
from fuzzgraph.observation import Field
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    BackendTarget,
    Tensors,
    attributes,
)
from fuzzgraph.targets.sglang.release import demand_release, engine_module, release

_MODULE = f"{ATTENTION}.aiter_backend"
_UNIFIED = "SGLANG_USE_AITER_UNIFIED_ATTN"
# sglang aiter_backend.py: 16 natively, 32 by a persistent plan, 4 are repeated where it has _PADS.
_LATENT_HEADS = (16, 32, 4)
_NATIVE = 16
_PADS = "_mla_decode_fwd_with_head_pad"
_KERNELS = {
    "paged_attention_ragged": aiter.paged_attention_ragged,
    "unified_attention": aiter.unified_attention,
    "mla_decode_fwd": aiter.mla_decode_fwd,
    "mla_prefill_fwd": aiter.mla_prefill_fwd,
    "get_mla_metadata_info_v1": aiter.get_mla_metadata_info_v1,
    "get_mla_metadata_v1": aiter.get_mla_metadata_v1,
    "mha_batch_prefill_func": aiter.mha_batch_prefill_func,
    "flash_attn_varlen_func": aiter.flash_attn_varlen_func_aiter,
}

_WRITER = (
    "sglang attention/utils.py create_flashinfer_kv_indices_triton writes below kv_indptr[bs]; "
    "a padded row has the fill value's length and lies in the pool's padding row"
)
_TABLE = (
    "sglang aiter_backend.py: unified_attention walks rows [0, bs), each below its own length; a "
    "padded row lies in the pool's padding row"
)
_SUMS = "sglang aiter_backend.py: cumsum over all bs rows at every replay; entry 0 stays from init"
_MASK = "sglang aiter_backend.py: custom_mask and mask_indptr choose visibility, no memory"
_EITHER = "a verify lists its drafts in an eager run, and in a replay it does not"


def _own_fields(config: EngineConfig) -> tuple[Field, ...]:
    verify = config.modes == ("target_verify",)
    lens, why = ("", _EITHER) if verify else ("seq_lens", "")
    return (
        fields.offsets("kv_indptr", repeats=lens, unjudged=why, source=_SUMS),
        fields.slot_indices("kv_indices", rewritten=True, source=_WRITER),
        fields.page_table(rewritten=True, source=_TABLE),
        # int64 by design, so not judged as an indptr of the kernels, which are int32.
        fields.value("mask_indptr", repeats="mask_offsets", source=_MASK),
        fields.value("custom_mask", repeats="mask", source=_MASK),
    )


def _fill(config: EngineConfig) -> int:
    """sglang aiter_backend.py get_cuda_graph_seq_len_fill_value, from 0.5.10 on."""
    speculates = config.modes in (("target_verify",), ("draft_extend",))
    return config.draft_tokens if speculates and release() != "0.5.9" else 1


def _held(backend: Any, size: int | None) -> Any:
    """A graph's table has the rows of the largest one; it reads its own."""
    metadata = backend.forward_metadata
    if size is None or not _unified(metadata):
        return metadata
    second = getattr(metadata, "swa_page_table", None)
    rest = {"swa_page_table": second[:size]} if isinstance(second, torch.Tensor) else {}
    return replace(metadata, kv_indices=metadata.kv_indices[:size], **rest)


def _unified(metadata: Any) -> bool:
    """Whether it is for unified attention, whose indices are a table of pages."""
    return isinstance(metadata.kv_indices, torch.Tensor) and metadata.kv_indices.dim() == 2


# It writes to the window's pool by the map between slots, and reads no swa_out_cache_loc.
_ROWS = attributes(page_table="kv_indices", qo_indptr="qo_indptr", swa_page_table="swa_page_table")
_LISTS = attributes(
    kv_indptr="kv_indptr",
    kv_indices="kv_indices",
    qo_indptr="qo_indptr",
    kv_last_page_len="kv_last_page_len",
    mask_indptr="mask_indptr",
    custom_mask="custom_mask",
)


def _read(metadata: Any) -> Tensors:
    return (_ROWS if _unified(metadata) else _LISTS)(metadata)


def _refuses(config: EngineConfig) -> str | None:
    """Why no kernel has such heads, columns or pages."""
    if config.attention == "mla":
        if config.page_map == "page_table":
            return "page_map='page_table' with attention='mla': unified attention has no MLA"
        if config.num_q_heads not in _LATENT_HEADS:
            return f"num_q_heads={config.num_q_heads}: latent kernels have {_LATENT_HEADS}"
        return None
    if config.v_head_dim == config.head_dim:
        return None
    if config.page_map == "page_table":
        return "unified attention has one width for queries, keys, values and outputs"
    if config.modes in (("decode",), ("draft",)):
        return "paged_attention_ragged walks values by the columns and strides of keys"
    if config.modes == ("draft_extend",):
        return "forward_extend hands out as many columns for each head as a key has"
    return None


def _refuses_behind_a_window(config: EngineConfig) -> str | None:
    if not config.swa_window:
        return "the model has a layer behind a window: swa_window must be positive"
    return _refuses(config)


def _adapt(runner: Any) -> None:
    """The backend reads from the environment whether it uses unified attention."""
    config = runner.configuration.config
    native = config.attention != "mla" or config.num_q_heads >= _NATIVE
    if not native and not hasattr(engine_module(_MODULE).AiterAttnBackend, _PADS):
        raise KernelNotModelled(
            f"sglang {release()} hands latent kernels {config.num_q_heads} heads as they are, which"
            f" none is built for. Run cases with {_NATIVE} on it."
        )
    os.environ[_UNIFIED] = "1" if config.page_map == "page_table" else "0"


AITER = AttentionBackend(
    name="aiter",
    places=((_MODULE, "AiterAttnBackend"),),
    attentions=("mha", "mla"),
    page_sizes=(1, 2, 16, 32, 64),
    any_page_size=True,
    stood_in_for=("AITER's kernels, by models",),
    on_rocm=True,
    fields=("kv_indptr", "kv_indices", "page_table", "qo_indptr", "kv_last_page_len",
            "mask_indptr", "custom_mask"),
    own_fields=_own_fields,
    fill=_fill,
    held=_held,
    read=_read,
    adapt=_adapt,
    kernels=tuple((_MODULE, name, model) for name, model in _KERNELS.items()),
    refuses=_refuses,
    beside=("triton",),
    globals=("_use_mla_ps_kernel", "fast_mode", "intra_batch_mode"),
    rope="joined",
    more=(
        ("page_maps", ("csr", "page_table")),
        ("max_q_heads", max(_LATENT_HEADS)),
        ("latent_heads", _LATENT_HEADS),
    ),
)  # fmt: skip

AITER_WINDOW = replace(
    AITER,
    part=", a layer behind a window",
    attentions=("mha",),
    fields=("page_table", "qo_indptr", "swa_page_table"),
    windows=True,
    refuses=_refuses_behind_a_window,
    more=(("page_maps", ("page_table",)), ("swa_only", True), ("swa_page_sizes", (0,))),
)
"""With the engine's hybrid pool it takes unified attention, whatever its environment says."""

target = AITER.target


class WindowTarget(BackendTarget):
    """The target of models with a layer behind a window, in one mode."""

    def __init__(self, name: str, mode: Mode) -> None:
        super().__init__(name, AITER_WINDOW, mode)

    def load(self) -> None:
        super().load()
        if self.mode == "decode":
            demand_release((0, 5, 10), "has no windows in AITER's attention", self.name)
        else:  # up to 0.5.12 its lists of a verify had room for the requests alone
            demand_release((0, 5, 13), "has no room for a verify's tokens", self.name)
