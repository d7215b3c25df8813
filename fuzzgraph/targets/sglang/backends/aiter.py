"""`--attention-backend aiter`: AITER's attention behind the release's decode runner.

Real are `AiterAttnBackend` with both preparations, its forwards, the engine's pools and one layer
of `RadixAttention`, and the Triton kernel that verifies over a CSR. Models stand in for AITER's
kernels. The backend is used as a server uses it, through the runner of the release; which of its
interfaces that runner calls is its own affair. Sliding windows, encoders, FP8 KV and draft runners
are not driven here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models import aiter
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.used import below_lengths
from fuzzgraph.targets.sglang.attention_model import ROW_MIXINGS, AttentionModel
from fuzzgraph.targets.sglang.decode_session import DecodeSession, refused_draft_tokens
from fuzzgraph.targets.sglang.fields import input_fields, input_names
from fuzzgraph.targets.sglang.release import engine_module, release
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.target import SglangTarget

_BACKEND = "sglang.srt.layers.attention.aiter_backend"
_UNIFIED = "SGLANG_USE_AITER_UNIFIED_ATTN"
# sglang aiter_backend.py: 16 natively, 4 are repeated where it has _PADS.
_LATENT_HEADS = (16, 4)
_PADS = "_mla_decode_fwd_with_head_pad"
_METADATA = ("kv_indptr", "kv_indices", "qo_indptr", "kv_last_page_len", "mask_indptr",
             "custom_mask")  # fmt: skip
_KERNELS = {
    "paged_attention_ragged": aiter.paged_attention_ragged,
    "unified_attention": aiter.unified_attention,
    "mla_decode_fwd": aiter.mla_decode_fwd,
    "mla_prefill_fwd": aiter.mla_prefill_fwd,
    "mha_batch_prefill_func": aiter.mha_batch_prefill_func,
    "flash_attn_varlen_func": aiter.flash_attn_varlen_func_aiter,
}
_PLAN = ("max_q_len", "max_kv_len", "max_extend_len", "num_kv_splits")

_WRITER = (
    "sglang attention/utils.py create_flashinfer_kv_indices_triton writes below kv_indptr[bs]; "
    "a padded row has the fill value's length and lies in the pool's padding row"
)
_TABLE = (
    "sglang aiter_backend.py: unified_attention walks rows [0, bs), each below its own length; a "
    "padded row lies in the pool's padding row"
)
_SUMS = "sglang aiter_backend.py: cumsum over all bs rows at every replay; entry 0 stays from init"
_ONES = "sglang aiter_backend.py init_cuda_graph_state: ones, indices count tokens"
_MASK = "sglang aiter_backend.py: custom_mask and mask_indptr choose visibility, no memory"
_EITHER = "a verify lists its drafts in an eager run, and in a replay it does not"


class AiterTarget(SglangTarget):
    """The AITER backend of the sglang release that this process holds.

    A server with speculation captures verify graphs for its target model, one without captures
    decode graphs, none both: hence one target for each.
    """

    any_page_size = True
    also_stood_in_for = ("AITER's kernels, by models",)

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        self.name = name
        self.about = f"AITER, {mode} graphs"
        self.outputs_judged = {mode: ""}
        self.capabilities = Capabilities(
            modes=(mode,),
            page_sizes=(1, 2, 16, 32, 64),
            page_maps=("csr", "page_table"),
            attentions=("mha", "mla"),
            max_batch=8,
            max_context_len=64,
            max_q_heads=max(_LATENT_HEADS),
            latent_heads=_LATENT_HEADS,
            min_rope_dim=2,  # what is rotated is a pair
            max_spec_steps=3,
            max_draft_tokens=4,
            capture_beyond_pool=True,
            row_mixings=ROW_MIXINGS,
        )

    def refused(self, config: EngineConfig) -> str | None:
        if config.attention == "mla" and config.page_map == "page_table":
            return "page_map='page_table' with attention='mla': unified attention has no MLA"
        return _refused_widths(config) or refused_draft_tokens(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> AiterSession:
        return AiterSession(config, graphs)

    def modules(self) -> tuple[str, ...]:
        return _BACKEND, "sglang.srt.layers.radix_attention"


def _refused_widths(config: EngineConfig) -> str | None:
    """Why the kernel of a config has no such heads or columns; None where it has them."""
    if config.attention == "mla":
        if config.num_q_heads not in _LATENT_HEADS:
            return f"num_q_heads={config.num_q_heads}: latent kernels have {_LATENT_HEADS}"
        if config.v_head_dim >= config.head_dim:
            return f"v_head_dim={config.v_head_dim} leaves a latent row without a rotary part"
        return None
    ragged = config.page_map == "csr" and config.modes == ("decode",)
    if ragged and config.v_head_dim != config.head_dim:
        return "paged_attention_ragged walks values by the columns and strides of keys"
    return None


@contextlib.contextmanager
def _attention_kind(config: EngineConfig) -> Iterator[None]:
    """The backend reads from the environment whether it uses unified attention."""
    before = os.environ.get(_UNIFIED)
    os.environ[_UNIFIED] = "1" if config.page_map == "page_table" else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_UNIFIED]
        else:
            os.environ[_UNIFIED] = before


def _fields(config: EngineConfig) -> tuple[Field, ...]:
    """Declared metadata of one session; the fill value is that of the mode it captures."""
    verify = "target_verify" in config.modes
    return (
        *input_fields(config, config.draft_tokens if verify else 1),
        fields.offsets(
            "kv_indptr",
            repeats="" if verify else "seq_lens",
            unjudged=_EITHER if verify else "",
            source=_SUMS,
        ),
        fields.slot_indices("kv_indices", rewritten=True, source=_WRITER),
        fields.page_table(rewritten=True, source=_TABLE),
        fields.offsets("qo_indptr", repeats="new_lens", source=_SUMS),
        fields.lengths("kv_last_page_len", fill=1, repeats="one_each", source=_ONES),
        # int64 by design, so not judged as an indptr of the kernels, which are int32.
        fields.value("mask_indptr", repeats="mask_offsets", source=_MASK),
        fields.value("custom_mask", repeats="mask", source=_MASK),
    )


class AiterSession(DecodeSession):
    """One backend and one decode runner with its captured graphs."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        self.fields = _fields(config)
        self.inputs = input_names(config)
        model = AttentionModel(config, graphs.device, rope="joined")
        super().__init__(config, graphs, backend="aiter", model=model)

    def _open_backend(self, runner: ModelRunner) -> Any:
        module = engine_module(_BACKEND)
        native = self._config.attention != "mla" or self._config.num_q_heads == _LATENT_HEADS[0]
        if not native and not hasattr(module.AiterAttnBackend, _PADS):
            raise KernelNotModelled(
                f"sglang {release()} hands latent kernels {self._config.num_q_heads} heads as they"
                f" are, which none is built for. Run cases with {_LATENT_HEADS[0]} on it."
            )
        if runner.device == "cpu":
            for name, kernel in _KERNELS.items():
                setattr(module, name, kernel)
        with _attention_kind(self._config):
            return module.AiterAttnBackend(runner)

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        """Tensors of the backend's current metadata, page tables by their own name."""
        seen = vars(self.backend.forward_metadata)
        found = {name: seen[name] for name in _METADATA if isinstance(seen.get(name), torch.Tensor)}
        if found.get("kv_indices") is not None and found["kv_indices"].dim() == 2:
            # Unified attention reads these of what a preparation may leave there.
            read = {"page_table": found.pop("kv_indices"), "qo_indptr": found.get("qo_indptr")}
            return {name: tensor for name, tensor in read.items() if tensor is not None}
        return found

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a kernel reads of the metadata: below the last offset, below each row's length."""
        found = super()._used(lens)
        if "kv_indices" in found:
            found["kv_indices"] = found["kv_indices"][: found["kv_indptr"][-1]]
        if "page_table" in found:
            table_lens = lens + (self._config.draft_tokens if self._verifies else 0)
            found["page_table"] = below_lengths(
                found["page_table"], table_lens, self._config.page_size
            )
        if "mask_indptr" in found:
            found["custom_mask"] = found["custom_mask"][: found["mask_indptr"][-1]]
        return found

    def plan(self) -> dict[str, object]:
        metadata = self.backend.forward_metadata
        return {name: getattr(metadata, name, None) for name in _PLAN}

    def types(self) -> dict[str, str]:
        return {"forward_metadata": type(self.backend.forward_metadata).__name__}
