"""`--attention-backend triton`: Triton attention with its kernels, outputs judged.

The release's own decode runner and backend, the engine's pools, one layer of its `RadixAttention`:
on a CPU the kernels run in Triton's interpreter. Stood in for is the number of cores of a device,
by which the backend splits long rows. A second layer with a sliding window has a KV pool of its own
and metadata of its own. `sglang-triton-mla` has latent attention, for rows of widths that the
kernel takes as it does DeepSeek's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch

from fuzzgraph import fp8_weights
from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.attention_model import ROW_MIXINGS, AttentionModel
from fuzzgraph.targets.sglang.backends.attention_backend import (
    LOGIT_CAPS,
    AttentionBackend,
    attributes,
)
from fuzzgraph.targets.sglang.decode_session import (
    DATA_RANKS,
    WIDE_BATCH,
    DecodeSession,
    refused_capture_sizes,
    refused_draft_tokens,
)
from fuzzgraph.targets.sglang.fields import input_fields, input_names, window_fields
from fuzzgraph.targets.sglang.lean_decode import LeanDecodes
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.split_backends import is_split, own_backend, refused_beside
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import cuda_server, rocm_launches
from fuzzgraph.targets.sglang.stubs.workspaces import keep_workspaces_small
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.targets.sglang.unified_pool import refused_virtual_pages
from fuzzgraph.world import Batch

TRITON_BACKEND = "sglang.srt.layers.attention.triton_backend"
_SPECULATIVE_ARGUMENTS = "sglang.srt.arg_groups.speculative_hook"
"""From 0.5.13 on it names the backends that take branches of drafts on pages, Triton among them."""
_ROPE = 1
"""Least rotary columns of a latent row; with one, rows of any width round up as their values do."""
CORES = 4  # few, because every split of a row is one more program to interpret
_SUMS = "sglang triton_backend.py: cumsum over all bs rows at every replay; entry 0 stays from init"
_WRITER = (
    "sglang create_flashinfer_kv_indices_triton writes below kv_indptr[bs]; a padded row has the "
    "fill value's length and lies in the pool's padding row"
)
_LISTED = ("window_kv_indptr", "window_kv_indices", "swa_out_cache_loc")
_WIDTHS = "sglang triton_backend.py: multiples of the number of draft tokens"
_MASK = "sglang triton_backend.py: custom_mask and mask_indptr choose visibility, no memory"
HEURISTIC = "a heuristic of the engine's: any number of splits is right"
SPLITS = "sglang get_num_kv_splits_triton: between 1 and max_kv_splits for every row"


_SMALL = (
    ("dtypes", ("float32", "float16")),  # the interpreter's tl.dot takes bfloat16 for integers
    ("max_batch", 4),
    ("max_context_len", LONGEST_CONTEXT),
    ("max_q_heads", 4),
    ("max_head_dim", 16),
)
"""What the interpreter runs in time."""


_TAKEN_WIDTHS = ((576, 512), (288, 256))
"""Columns of a latent row and of its value that the decode kernel knows by their number."""
_MODELS_WIDTHS = ((128, 128), (192, 128), (96, 96))
"""Columns of a key and of a value that models have: a power of two; those of DeepSeek's prompts,
which the extend kernel knows by their number; and no power of two."""


def _refused_widths(config: EngineConfig) -> str | None:
    """Why the decode kernel cannot take a latent row of these widths.

    It takes a block of keys for its values (sglang 0.5.23 decode_attention.py, HAS_MLA): as wide
    as they are for DeepSeek's rows of 576 and 288 columns, for others rounded up to a power of 2.
    """
    row, value = config.head_dim, config.v_head_dim
    if (row, value) in _TAKEN_WIDTHS:
        return None
    if value >= row:
        return f"v_head_dim={value} leaves a latent row without a rotary part"
    if (row - 1).bit_length() != (value - 1).bit_length():
        return f"v_head_dim={value} and head_dim={row} round up to different powers of 2"
    return None


OF_ONE_RANK: Mapping[str, Any] = MappingProxyType({
    "max_tp_size": 1, "max_dp_size": 1, "idle_alone": True, "max_spec_topk": 1,
    "capture_beyond_pool": False, "swa_window": False, "virtual_pages": False,
    "row_mixings": ("none",), "later_stages": False, "two_batch_overlap": False,
    "backends_beside": ("none",), "platforms": ("cuda",), "logit_caps": (0,),
    "rare_head_dims": ((0, 0),), "kv_dtypes": ("auto",),
})  # fmt: skip
"""Capabilities of a target with another layer beside attention, which no other rank shares."""


class TritonTarget(SglangTarget):
    """The Triton backend of the sglang release that this process holds."""

    any_page_size = True
    also_stood_in_for: tuple[str, ...] = ("the number of cores",)

    def __init__(
        self,
        name: str,
        mode: Literal["decode", "target_verify"],
        attention: Literal["mha", "mla"] = "mha",
    ) -> None:
        self.name = name
        latent = " over latent rows" if attention == "mla" else ""
        self.about = f"Triton attention{latent}, {mode} graphs"
        self.outputs_judged = {mode: ""}
        grouped = mode == "decode"
        self.fp8_weights = fp8_weights.TRITON_DECODES if grouped else fp8_weights.TRITON
        self.capabilities = Capabilities(
            modes=(mode, "idle"),
            page_sizes=(1, 4, 16),
            **dict(_SMALL),
            max_wide_batch=WIDE_BATCH,
            max_tp_size=4,
            **DATA_RANKS,
            max_spec_topk=2,
            max_spec_steps=3,
            max_draft_tokens=4,
            # Where ranks share the rows, which the engine rounds the pool up for.
            capture_beyond_pool=True,
            row_mixings=ROW_MIXINGS,
            attentions=(attention,),
            rare_head_dims=_MODELS_WIDTHS if attention == "mha" else _TAKEN_WIDTHS,
            min_rope_dim=_ROPE,
            swa_window=attention == "mha",
            virtual_pages=attention == "mha",
            layer_types=attention == "mha",
            prefix_by_group=False,
            later_stages=mode == "decode",
            two_batch_overlap=True,
            backends_beside=("none", "fa3", "flashinfer"),
            platforms=("cuda", "rocm"),
            logit_caps=LOGIT_CAPS if attention == "mha" else (0,),
            kv_dtypes=("auto", "float8_e4m3fn") if attention == "mha" else ("auto",),
        )

    def refused(self, config: EngineConfig) -> str | None:
        latent = _refused_widths(config) if config.attention == "mla" else None
        if config.platform == "rocm" and is_split(config):
            return f"platform='rocm' has no {config.backend_beside} beside Triton attention"
        return (
            latent
            or refused_draft_tokens(config)
            or refused_capture_sizes(config)
            or refused_virtual_pages(config, self.capabilities)
            or refused_beside(config)
        )

    def unserved(self, config: EngineConfig) -> str | None:
        if config.spec_topk == 1 or config.page_size == 1 or has_module(_SPECULATIVE_ARGUMENTS):
            return None
        branches, pages = f"spec_topk={config.spec_topk}", f"page_size={config.page_size}"
        return f"up to 0.5.12 server_args.py refuses {branches} with {pages} on Triton attention"

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> TritonSession:
        return TritonSession(config, graphs)

    def modules(self) -> tuple[str, ...]:
        return TRITON_BACKEND, "sglang.srt.layers.radix_attention"

    def load(self) -> None:
        keep_workspaces_small()  # of a backend beside it
        super().load()


TRITON = AttentionBackend(
    name="triton",
    places=((TRITON_BACKEND, "TritonAttnBackend"),),
    attentions=("mha",),
    page_sizes=(1, 4, 16),
    any_page_size=True,
    fields=(),
    read=attributes(),
    stubs=((TRITON_BACKEND, "get_device_core_count", lambda *_: CORES),),
    stood_in_for=("the number of cores",),
    windows=True,
    unified=True,
    more=_SMALL,
)
"""As runners of drafts have it; decodes and verifies read its buffers by themselves."""


def triton_backend(runner: ModelRunner) -> Any:
    """The release's own backend on `runner`."""
    module = engine_module(TRITON_BACKEND)
    if runner.device == "cpu":
        module.get_device_core_count = lambda *_: CORES
    return module.TritonAttnBackend(runner)


def _window_fields(config: EngineConfig) -> tuple[Field, ...]:
    """What the window layer's kernels read; a verify's own keys are handed over beside them."""
    if not config.swa_window:
        return ()
    lens = "windowed_past" if config.modes == ("target_verify",) else "windowed_lens"
    splits = fields.value("window_num_kv_splits", unjudged=HEURISTIC, source=SPLITS)
    return (*(each for each in window_fields(lens) if each.name in _LISTED), splits)


class TritonSession(DecodeSession):
    """One backend, one layer and one decode runner with its captured graphs."""

    model_class: type[AttentionModel] = AttentionModel

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        lens = "cached_lens" if config.modes == ("target_verify",) else "seq_lens"
        self._lean = LeanDecodes()
        self.inputs = input_names(config)
        self.fields = (
            *input_fields(config, 1),
            fields.offsets("kv_indptr", repeats=lens, source=_SUMS),
            fields.slot_indices("kv_indices", rewritten=True, source=_WRITER),
            fields.value("num_kv_splits", unjudged=HEURISTIC, source=SPLITS),
            # int64 by design, so not judged as an indptr of the kernels, which are int32.
            fields.value("qo_indptr", repeats="query_offsets", source=_WIDTHS),
            fields.value("mask_indptr", repeats="mask_offsets", source=_MASK),
            fields.value("custom_mask", repeats="mask", source=_MASK),
            *_window_fields(config),
            *self._more_fields(config),
        )
        model = self.model_class(config, graphs.device, rope="joined")
        arguments = self._server_arguments(config)
        super().__init__(config, graphs, backend="triton", model=model, arguments=arguments)

    def _server_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        """Beyond those that follow from the config in every target."""
        return {}

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        """What kernels of other layers read."""
        return ()

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        """As on a GPU where another backend is beside it, which may name the device, and as on one
        of AMD's where the config says so."""
        if self._config.platform == "rocm":
            return self._on_rocm()
        return cuda_server() if is_split(self._config) else super().engine_runs(batch)

    @contextlib.contextmanager
    def _on_rocm(self) -> Iterator[None]:
        with rocm_launches(CORES), self._lean.noted():
            yield

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        self._lean.remember(key)

    def eager(self, batch: Batch) -> None:
        self._lean.forget()
        super().eager(batch)

    def _open_backend(self, runner: ModelRunner) -> Any:
        return triton_backend(runner)

    @property
    def _triton(self) -> Any:
        """The backend of attention."""
        return self._own_backend

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        return self._attention_tensors()

    def _attention_tensors(self) -> dict[str, torch.Tensor]:
        """The backend's static tensors, the same for graphs of all sizes."""
        backend = self._triton
        found = {"kv_indptr": backend.kv_indptr, "kv_indices": backend.cuda_graph_kv_indices}
        if self._config.swa_window:
            found |= {
                "window_kv_indptr": backend.window_kv_indptr,
                "window_kv_indices": backend.cuda_graph_window_kv_indices,
            }
            if hasattr(backend, "cuda_graph_swa_out_cache_loc"):  # in the runner before 0.5.13
                found["swa_out_cache_loc"] = backend.cuda_graph_swa_out_cache_loc
        if not self._verifies:
            if self._config.swa_window:
                found["window_num_kv_splits"] = backend.cuda_graph_window_num_kv_splits
            return {**found, "num_kv_splits": backend.cuda_graph_num_kv_splits}
        found |= {"qo_indptr": backend.qo_indptr, "mask_indptr": backend.mask_indptr}
        if hasattr(backend, "cuda_graph_custom_mask"):  # since 0.5.17 the runner has the mask
            found["custom_mask"] = backend.cuda_graph_custom_mask
        return found

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the kernels read: below the last offset."""
        rows = len(lens)
        found = self._attention_tensors()
        if self.ran_eagerly:
            metadata = self._triton.forward_metadata
            found = {name: getattr(metadata, name) for name in found}
        used = {
            name: tensor[: rows + 1] if name.endswith("_indptr") else tensor[:rows]
            for name, tensor in found.items()
            if tensor is not None
        }
        used["kv_indices"] = found["kv_indices"][: used["kv_indptr"][-1]]
        if "swa_out_cache_loc" in used:
            used["swa_out_cache_loc"] = found["swa_out_cache_loc"][: self._padded_tokens(rows)]
        if "window_kv_indptr" in used:
            listed = used["window_kv_indptr"][-1]
            used["window_kv_indices"] = found["window_kv_indices"][:listed]
        if "custom_mask" in used:
            used["custom_mask"] = found["custom_mask"][: used["mask_indptr"][-1]]
        return {name: tensor.clone() for name, tensor in used.items()}

    def plan(self) -> dict[str, object]:
        """Splits decide the order of summation, and so does the kernel."""
        if self._verifies:
            return {}
        if self._config.two_batch_overlap:
            children = (own_backend(self._config, each) for each in self.backend.children)
            halves = zip(children, self._rows_of_halves(), strict=True)
            splits = torch.cat([self._splits(backend)[:rows] for backend, rows in halves])
        else:
            splits = self._splits(self._triton)
        live = self._last_batch.batch_size
        eagerly = self.ran_eagerly
        lean = self._lean.without_graph if eagerly else self._lean.of_graph(self._size)
        return {"num_kv_splits": tuple(splits[:live].tolist()), "lean": lean}

    def _splits(self, backend: Any) -> torch.Tensor:
        """Of each row, as the kernels of the last run read them."""
        metadata = backend.forward_metadata
        splits: torch.Tensor = (
            metadata.num_kv_splits if self.ran_eagerly else backend.cuda_graph_num_kv_splits
        )
        return splits
