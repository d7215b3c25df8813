"""One attention backend of the engine on its decode runner: targets such as `sglang-fa3`.

The release's own decode runner and backend run: constructors, sizes, both preparations, the Triton
kernels that build metadata. Stood in for is compiled code that they call; each backend's file says
what, in an `AttentionBackend`. What the graph of the replayed size reads is judged, at the
addresses and in the shapes that it had when it was captured. Where models take the kernels' places,
one layer of the engine's attention runs inside the graph too, and its outputs are judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig, Mode
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.fp8_weights import Fp8Weights
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu, tensors_claim_cuda
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.offline.used import below_lengths, below_lengths_packed
from fuzzgraph.targets.sglang.attention_model import ROW_MIXINGS, AttentionModel, Rope
from fuzzgraph.targets.sglang.decode_session import (
    DATA_RANKS,
    WIDE_BATCH,
    DecodeSession,
    refused_capture_sizes,
    refused_draft_tokens,
)
from fuzzgraph.targets.sglang.draft_model import DraftModel
from fuzzgraph.targets.sglang.fields import (
    encoder_fields,
    input_fields,
    input_names,
    window_fields,
)
from fuzzgraph.targets.sglang.release import engine_module, has_module, release
from fuzzgraph.targets.sglang.split_backends import decodes_on, refused_beside
from fuzzgraph.targets.sglang.stubs.flashinfer import install_flashinfer
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward
from fuzzgraph.targets.sglang.stubs.platform import (
    blackwell_server,
    cuda_server,
    in_environment,
)
from fuzzgraph.targets.sglang.stubs.workspaces import forget_workspaces, keep_workspaces_small
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.targets.sglang.unified_pool import refused_virtual_pages
from fuzzgraph.world import Batch

_TABLE = (
    "sglang metadata builders of the backend: pages of each row below its own length; a padded row "
    "lies in the pool's padding row"
)
_ONES = "sglang flashinfer_backend.py: indices count tokens, so a last page holds one"
_PLAN = "FlashInfer plan: kernels that read the device's offsets share work out by the host's"
_LENS = "sglang: a padded row has the backend's fill value, and the tokens it computes beyond that"
_CHUNK = "sglang local_attention.py: of each row the tokens of its last chunk; padded rows have 1"
_SUMS = "sglang metadata builders of the backend: prefix sums over all rows of the graph"


_ROPE = 2
"""Least rotary columns of a latent row: what is rotated is a pair."""

_TABLES = {"page_table", "swa_page_table"}
"""Of a verify in two parts they hold no drafts, which a field on pages would ask for. The layer
behind a window then attends in one part, by a list of its own for each token."""

LOGIT_CAPS = (0, 1)
"""None, or one that every logit is near: a wide one leaves more of float32's rounding than outputs
may differ by, since kernels compute `tanh` as a difference."""

Tensors = dict[str, torch.Tensor]

FP8_KV: tuple[tuple[str, Any], ...] = (
    ("dtypes", ("float32", "bfloat16")),
    ("kv_dtypes", ("auto", "float8_e4m3fn")),
    ("fp8_kv_beside", "bfloat16"),
)
"""Of backends whose kernels take queries in FP8 where the KV is, and give bfloat16
(`--kv-cache-dtype fp8_e4m3`)."""

ATTENTION = "sglang.srt.layers.attention"


def current(backend: Any, size: int | None) -> Any:
    """Every preparation leaves its metadata in the same place."""
    return backend.forward_metadata


def _itself(backend: type) -> type:
    return backend


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """One backend of the engine, as `BackendSession` drives it."""

    name: str
    """As `--attention-backend` spells it."""
    part: str = field(default="", kw_only=True)
    """Which part of it, where several targets share it."""
    places: tuple[tuple[str, str], ...]
    """(module, class) under its names, the release's own first found."""
    attentions: tuple[Literal["mha", "mla"], ...]
    page_sizes: tuple[int, ...]
    fields: tuple[str, ...]
    """What it hands its kernels beyond the runner's inputs: names of `metadata_fields`."""
    read: Callable[[Any], Tensors]
    """Metadata -> what kernels read of it, whole, by field."""
    own_fields: Callable[[EngineConfig], tuple[Field, ...]] = lambda config: ()
    """Fields that only it has, or has by another rule than other backends."""
    fill: Callable[[EngineConfig], int] = lambda config: 1
    """Length of padded rows, which it asks of the runner."""
    made_with: tuple[tuple[str, Any], ...] = ()
    """Arguments of its constructor beside the runner, as the engine's registry gives them."""
    any_page_size: bool = False
    """Whether it also runs pages of sizes that are not generated."""
    held: Callable[[Any, int | None], Any] = current
    """(backend, size of the graph or None without one) -> its metadata."""
    planned: Callable[[Any], Tensors] = lambda metadata: {}
    """Metadata -> what a plan was made of on the host."""
    max_context_len: int = LONGEST_CONTEXT
    max_topk: int = 1
    """Branches of the drafts that it verifies."""
    masks_branches: bool = False
    """Whether it verifies several by one call with a mask. Others attend in two parts, one over the
    past and one over each token's own drafts, and their metadata is that of the first."""
    adapt: Callable[[Any], None] = lambda runner: None
    """Gives the model runner's stub what only this backend reads of it."""
    stubs: tuple[tuple[str, str, Any], ...] = ()
    """(module, name, what stands in for it on a machine without a GPU)."""
    asserts_gpu: tuple[str, ...] = ()
    """Functions in its module that assert tensors of a GPU and run without one."""
    kernels: tuple[tuple[str, str, Any], ...] = ()
    """(module, name, the model of the compiled kernel). With these its forward runs too, one layer
    of it, and outputs are judged."""
    unmodelled: tuple[tuple[Mode, str], ...] = ()
    """(mode, the kernel that it calls there and that has no model): runs without outputs."""
    windows: bool = False
    """Whether it decodes with a second layer behind a sliding window, on a KV pool of its own."""
    unified: bool = False
    """Whether servers let it decode with such a layer on one pool whose pages have virtual numbers
    (sglang kv_cache_hook.py handle_page_major_kv_layout)."""
    caps: bool = False
    """Whether it caps the logits of a model's own heads."""
    chunks: bool = False
    """Whether it has layers that attend in chunks, on the pool of all layers."""
    whole_rows: bool = False
    """Whether values are whole latent rows, their rotary part among them."""
    refuses: Callable[[EngineConfig], str | None] = lambda config: None
    """Why its kernels cannot run a config, beyond what the runner refuses; None if they can."""
    rope: Rope = "apart"
    """How a model hands it latent attention."""
    model: type[AttentionModel] = AttentionModel
    """The model of one layer that runs on it."""
    draft_model: type[DraftModel] = DraftModel
    """The same of a draft worker."""
    more: tuple[tuple[str, Any], ...] = ()
    """What else it has of the dimensions: a field of `Capabilities`, its value."""
    fp8_weights: Fp8Weights | None = None
    """How its kernels round softmax's weights to FP8, where keys and values are FP8."""
    widens_fp8: bool = False
    """Whether its kernels bring these to the model's dtype instead, before they multiply."""
    on_device: tuple[tuple[str, Any], ...] = ()
    """What it has of them on a GPU, where its kernels are compiled, beyond other targets."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """Server arguments, under each of their names, beyond those that follow from a config."""
    globals: tuple[str, ...] = ()
    """Names that its constructor changes in its module: each session has its own."""
    stood_in_for: tuple[str, ...] = ()
    """What does not run of it on a machine without a GPU, for readers, a clause each."""
    chosen: Callable[[EngineConfig], dict[str, Any]] = lambda config: {}
    """Config -> server arguments that follow from it."""
    environment: Callable[[EngineConfig], dict[str, str]] = lambda config: {}
    """Config -> what the engine finds in its environment while it runs."""
    beside: tuple[str, ...] = ()
    """Backends that servers have for prefills where this one decodes, or the other way round."""
    on_rocm: bool = False
    """Whether servers with ROCm have it, which have packages that none with CUDA has."""

    def place(self) -> tuple[str, str]:
        """Module and class of the backend in this release.

        Raises:
            AdapterUnavailable: it has no such backend.
        """
        for module, backend in self.places:
            if has_module(module):
                return module, backend
        raise AdapterUnavailable(
            f"sglang {release()} has no {self.places[-1][1]}, which the targets of backend "
            f"{self.name!r} drive. Name a release that has it: fuzzgraph targets lists them."
        )

    def server(self, config: EngineConfig) -> contextlib.AbstractContextManager[None]:
        """What the engine finds around it on one of its servers."""
        server = cuda_on_cpu() if self.on_rocm else cuda_server()
        if config.compute_capability == 10:
            server = blackwell_server(engine_module(self.place()[0]))
        found = self.environment(config)
        return in_environment(found, server) if found else server

    def opened(
        self, runner: ModelRunner, made: Callable[[type], type] = _itself, **arguments: Any
    ) -> Any:
        """`open_backend`, on the scratch memory that the session has already."""
        place, backend = self.place()
        module = engine_module(place)
        install_flashinfer()
        if runner.device == "cpu":
            for holder, name, stub in (*self.stubs, *self.kernels):
                # Packages of compiled kernels are none of the release's own.
                if has_module(holder) or not holder.startswith("sglang."):
                    put_model(engine_module(holder), name, stub)
            for name in self.asserts_gpu:
                if hasattr(module, name):
                    setattr(module, name, tensors_claim_cuda(getattr(module, name)))
        self.adapt(runner)
        return made(getattr(module, backend))(runner, **dict(self.made_with), **arguments)

    def refused(self, config: EngineConfig) -> str | None:
        """Why no layer runs on it with the widths of a config, or its kernels cannot run that."""
        return (None if self.whole_rows else refused_latent_row(config)) or self.refuses(config)

    def missing(self, mode: Mode) -> str:
        """The kernel without a model that keeps its outputs from being judged; "" if none does."""
        return dict(self.unmodelled).get(mode, "" if self.kernels else "no kernel")

    def target(self, name: str, mode: Mode) -> BackendTarget:
        """The target of the backend in one mode."""
        return BackendTarget(name, self, mode)


def attributes(**fields: str) -> Callable[[Any], Tensors]:
    """Field -> attribute of the metadata; what a mode does not have is left out."""

    def read(metadata: Any) -> Tensors:
        found = {field: getattr(metadata, name, None) for field, name in fields.items()}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    return read


def latent_table(backend: Any, size: int | None) -> Any:
    """For a graph the whole buffer: kernels find rows by its stride, whatever a view's width."""
    if size is None:
        return backend.forward_metadata
    return Stub(block_kv_indices=backend.cuda_graph_kv_indices[:size])


def not_compiled(*_: Any, **__: Any) -> None:
    """In place of compiling a kernel for later."""


def refused_latent_row(config: EngineConfig) -> str | None:
    """Why no pool of the engine has latent rows of these widths; None if one has."""
    if config.attention == "mla" and config.v_head_dim >= config.head_dim:
        return f"v_head_dim={config.v_head_dim} leaves a latent row without a rotary part"
    return None


class BackendTarget(SglangTarget):
    """One backend of the sglang release that this process holds, in one mode."""

    def __init__(self, name: str, backend: AttentionBackend, mode: Mode) -> None:
        self.name = name
        self.backend = backend
        self.any_page_size = backend.any_page_size
        missing = backend.missing(mode)
        self.about = (
            f"{backend.name}{backend.part}{_without_outputs(backend, missing)}, {mode} graphs"
        )
        self.outputs_judged = {} if missing else {mode: ""}
        self.also_stood_in_for = backend.stood_in_for
        self.fp8_weights, self.widens_fp8 = backend.fp8_weights, backend.widens_fp8
        has: dict[str, Any] = dict(
            modes=(mode, "idle"),
            page_sizes=backend.page_sizes,
            attentions=backend.attentions,
            max_batch=8,
            max_wide_batch=WIDE_BATCH,
            max_context_len=backend.max_context_len,
            max_spec_steps=3,
            max_draft_tokens=4,
            max_spec_topk=backend.max_topk if mode == "target_verify" else 1,
            max_tp_size=4,
            **DATA_RANKS,
            min_rope_dim=_ROPE,
            # Where ranks share the rows, which the engine rounds the pool up for.
            capture_beyond_pool=True,
            row_mixings=("none",) if missing else ROW_MIXINGS,
            prefix_by_group=False,
        )
        has |= dict(backend.more)
        has["swa_window"] = backend.windows
        has["virtual_pages"] = backend.windows and backend.unified
        names_layers = backend.windows and mode in ("decode", "target_verify")
        has["layer_types"] = names_layers and not missing
        has["attention_chunks"] = backend.chunks
        has["logit_caps"] = LOGIT_CAPS if backend.caps else (0,)
        has["two_batch_overlap"] = not (missing or backend.chunks or has.get("encoder_only"))
        has["backends_beside"] = ("none", *backend.beside)
        has["later_stages"] = mode == "decode" and not (missing or has.get("encoder_only"))
        self.capabilities = Capabilities(**has)

    @property
    def device_capabilities(self) -> Capabilities:
        return super().device_capabilities.replace(**dict(self.backend.on_device))

    def refused(self, config: EngineConfig) -> str | None:
        return (
            refused_draft_tokens(config)
            or refused_capture_sizes(config)
            or refused_virtual_pages(config, self.capabilities)
            or refused_beside(config)
            or self.backend.refused(config)
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BackendSession:
        return BackendSession(config, graphs, self.backend)

    def modules(self) -> tuple[str, ...]:
        layers = ("sglang.srt.layers.radix_attention",) if self.backend.kernels else ()
        return (self.backend.place()[0], *layers)

    def load(self) -> None:
        keep_workspaces_small()
        super().load()


def _without_outputs(backend: AttentionBackend, missing: str) -> str:
    """What a target says of itself whose outputs cannot be judged."""
    if not missing:
        return ""
    return f"'s metadata ({missing} has no model)" if backend.kernels else "'s metadata"


def _in_two_parts(config: EngineConfig, kind: AttentionBackend) -> bool:
    """Whether a verify attends to the past and to its drafts by two calls."""
    several = config.modes == ("target_verify",) and config.spec_topk > 1
    return several and not kind.masks_branches


def metadata_fields(config: EngineConfig, kind: AttentionBackend) -> dict[str, Field]:
    """What backends hand their kernels; each backend names those of them that it has."""
    # What each row computes beyond its past.
    tokens = config.draft_tokens if config.modes == ("target_verify",) else 1
    past, seen = 1 if tokens == 1 else 1 + tokens, "seq_lens"
    if _in_two_parts(config, kind):
        past, seen = 1, "cached_lens"
    declared: tuple[Field, ...] = (
        fields.lengths("cache_seqlens", fill=past, repeats=seen, source=_LENS),
        fields.page_table(source=_TABLE),
        fields.offsets("cu_seqlens_q", repeats="new_lens", source=_SUMS),
        fields.offsets("cu_seqlens_k", repeats=seen, source=_SUMS),
        fields.offsets("kv_indptr", repeats="seq_lens", source=_SUMS),
        fields.slot_indices("kv_indices", source=_TABLE),
        fields.slot_indices("token_indices", source=_TABLE),
        fields.lengths("kv_last_page_len", fill=1, repeats="one_each", source=_ONES),
        fields.offsets("qo_indptr", repeats="new_lens", source=_SUMS),
        fields.offsets("planned_kv_indptr", repeats="seq_lens", source=_PLAN),
        fields.offsets("planned_qo_indptr", repeats="new_lens", source=_PLAN),
        *(window_fields("windowed_lens") if config.swa_window else ()),
        *(encoder_fields() if config.max_encoder_len else ()),
        *(_chunk_fields() if config.attention_chunk_size else ()),
        *kind.own_fields(config),
    )
    left_out = _TABLES if _in_two_parts(config, kind) else set()
    return {field.name: field for field in declared if field.name not in left_out}


def _chunk_fields() -> tuple[Field, ...]:
    """What kernels of a layer that attends in chunks read: of a decode each row's own chunk."""
    return (
        fields.offsets("chunk_cu_seqlens_q", repeats="new_lens", source=_SUMS),
        fields.lengths("chunk_seqused_k", fill=1, repeats="chunk_lens", source=_CHUNK),
    )


def open_backend(
    kind: AttentionBackend,
    runner: ModelRunner,
    made: Callable[[type], type] = _itself,
    **arguments: Any,
) -> Any:
    """The release's own backend on `runner`, with what stands in for compiled code.

    Args:
        made: its class -> the class to open.
        arguments: of its constructor, beside the runner.
    """
    forget_workspaces(engine_module(kind.place()[0]))
    own = _OwnGlobals(kind)
    with own.opened():
        backend = kind.opened(runner, made, **arguments)
    runner.configuration.bring(own.put)
    return backend


class _OwnGlobals:
    """What the constructor of a backend changes in its module, for one session.

    Args:
        kind: names them.
    """

    def __init__(self, kind: AttentionBackend) -> None:
        self._module = engine_module(kind.place()[0])
        self._names = kind.globals
        self._own: Mapping[str, Any] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Around the constructor, which finds them as the import of the module left them."""
        self._own = _imported.setdefault(self._module, self._now())
        self.put()
        yield
        self._own = self._now()

    def put(self) -> None:
        """Have the engine find those of this session."""
        vars(self._module).update(self._own)

    def _now(self) -> dict[str, Any]:
        return {name: getattr(self._module, name, None) for name in self._names}


class BackendSession(DecodeSession):
    """One backend and one decode runner with its captured graphs."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: AttentionBackend) -> None:
        self._kind = kind
        self._read: dict[Hashable, dict[str, torch.Tensor]] = {}
        self.inputs = input_names(config)
        declared = metadata_fields(config, kind)
        shown = (declared[name] for name in kind.fields if name in declared)
        self.fields = (*input_fields(config, decodes_on(config, kind).fill(config)), *shown)
        model: Any = Stub(forward=no_forward, shared_experts_config=None, modules=tuple)
        if not kind.missing(config.modes[0]):
            model = kind.model(config, graphs.device, kind.rope)
        arguments = {**dict(kind.arguments), **kind.chosen(config)}
        super().__init__(config, graphs, backend=kind.name, model=model, arguments=arguments)

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        return self._kind.server(self._config)

    def _open_backend(self, runner: ModelRunner) -> Any:
        return open_backend(self._kind, runner)

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        assert isinstance(key, int)
        self._read[key] = self._shown_metadata(key)

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        found = self._kind.read(self._kind.held(self._own_backend, size))
        if not _in_two_parts(self._config, self._kind):
            return found
        return {name: tensor for name, tensor in found.items() if name not in _TABLES}

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What a kernel reads: below the last offset, below each row's own length."""
        size = self._size
        held = self._metadata_tensors(None) if size is None else self._read[size]
        used = {name: tensor.clone() for name, tensor in held.items()}
        used |= self._kind.planned(self._kind.held(self._own_backend, size))
        lens = lens + (self._config.draft_tokens if self._verifies else 0)
        return as_read(used, lens, self._config.page_size)


def as_read(used: Tensors, lens: torch.Tensor, page_size: int) -> Tensors:
    """What kernels read of metadata: below the last offset, below each row's own length.

    Args:
        used: by field, whole; changed.
        lens: [rows] keys of each, where metadata does not say.
    """
    for part in ("", "window_", "encoder_"):
        if f"{part}kv_indices" in used:
            listed = used[f"{part}kv_indptr"][-1]
            used[f"{part}kv_indices"] = used[f"{part}kv_indices"][:listed]
    if "mask_indptr" in used:
        used["custom_mask"] = used["custom_mask"][: used["mask_indptr"][-1]]
    lens = used.get("cache_seqlens", lens)
    for name in _TABLES:
        if name in used:
            each = _rows_each(used[name], lens)
            used[name] = below_lengths(used[name], lens, page_size, each)
    if "encoder_page_table" in used:
        table, listed = used["encoder_page_table"], used["encoder_cache_seqlens"]
        used["encoder_page_table"] = below_lengths(table, listed, page_size)
    if "token_table" in used:
        table = used.pop("token_table")
        used |= below_lengths_packed(table, lens, _rows_each(table, lens))
    return used


_imported: dict[Any, dict[str, Any]] = {}
"""Module of a backend -> its globals before any constructor changed them."""


def _rows_each(table: torch.Tensor, lens: torch.Tensor) -> int:
    """Rows of each request: in a verify some backends give each token a row of its own."""
    return max(1, len(table) // len(lens))
