"""`--linear-attn-backend triton`: gated delta nets beside Triton attention, as in Qwen3-Next.

The engine's own `HybridLinearAttnBackend` holds both backends; it is made by the engine's own
`attn_backend_wrapper` from a model that the engine's own configuration describes. States lie in the
engine's `MambaPool`, and kernels of decode are its own. Stood in for are the projections of the
layer and its norm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import NotInRelease
from fuzzgraph.observation import Field, Observation, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.recurrent_layers.delta_rule import POSITIONS
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu, tensors_claim_cuda
from fuzzgraph.targets.sglang.attention_model import AttentionModel
from fuzzgraph.targets.sglang.backends.triton import (
    OF_ONE_RANK,
    TritonSession,
    TritonTarget,
    triton_backend,
)
from fuzzgraph.targets.sglang.decode_session import DATA_RANKS
from fuzzgraph.targets.sglang.delta_net_model import LAYER, DeltaNetModel
from fuzzgraph.targets.sglang.excuses.decode import HYBRID_VERIFY_EXCUSES
from fuzzgraph.targets.sglang.forward_batch.committed_states import (
    COMMITS_SINCE,
    commit_states,
    stayed_paths,
)
from fuzzgraph.targets.sglang.forward_batch.decode import engine_tensor
from fuzzgraph.targets.sglang.forward_batch.taken_states import take_slots
from fuzzgraph.targets.sglang.hybrid_model import HybridModel, recurrent_names, split_recurrent
from fuzzgraph.targets.sglang.release import (
    SGLANG,
    demand_release,
    engine_module,
    has_module,
    is_before,
    release,
)
from fuzzgraph.targets.sglang.stubs.hybrid_pools import GDN_BACKEND, QWEN, refused_period
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.world import Batch

_HYBRID = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_STATES = "sglang hybrid_linear_attn_backend.py _replay_metadata: padded rows have pad_slot_id"
_CURSORS, _FORCED = "replayssm_write_pos", "replayssm_force_flush"
_RINGS = "sglang hybrid_linear_attn_backend.py _replay_metadata: cursors before the step"
_ENDS = "sglang hybrid_linear_attn_backend.py _replay_metadata: padded rows have no tokens"


_FLA = ("sglang.kernels.ops.attention.fla.utils", "sglang.srt.layers.attention.fla.utils")
_SCATTERS = (
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton",
    "sglang.srt.layers.attention.mamba.mamba_state_scatter_triton",
)
_ASSERTS_GPU = (
    "fused_mamba_state_scatter_with_mask",
    "fused_conv_window_scatter_with_mask",
    "scatter_mamba_states_after_mtp_verify",
)


def hybrid_backend(runner: ModelRunner, model: HybridModel) -> Any:
    """The release's own backend of both kinds of layers on `runner`; opens the recurrent one."""
    full = triton_backend(runner)
    with cuda_on_cpu():
        hybrid = engine_module(_REGISTRY).attn_backend_wrapper(runner, full)
    recurrent = hybrid.linear_attn_backend
    if hasattr(recurrent, "_fused_state_indices_ok"):  # on a GPU, with this pool
        recurrent._fused_state_indices_ok = True
    model.open_layer()
    model.use_slots(runner.req_to_token_pool.req_index_to_mamba_index_mapping)
    return hybrid


def demand_tracking(config: EngineConfig, since: tuple[int, int, int]) -> None:
    """Refuse a config whose states a release before `since` would keep for its prefix cache.

    Raises:
        NotInRelease: it keeps none of such layers.
    """
    if config.state_track_interval and is_before(since):
        raise NotInRelease(
            f"sglang {release()} keeps no states of such layers for its prefix cache: "
            "state_track_interval must be 0"
        )


RINGS_SINCE = {"decode": (0, 5, 15), "target_verify": (0, 5, 17)}
"""The first release whose steps keep what they bring to states in rings. Verifies of 0.5.16 do it
by another protocol (`--enable-gdn-replayssm-spec`), which is not driven."""


def demand_rings(config: EngineConfig) -> None:
    """Refuse a config with rings of states on a release without them.

    Raises:
        NotInRelease: it writes each state.
    """
    if config.state_ring_len and is_before(RINGS_SINCE[config.modes[0]]):
        raise NotInRelease(
            f"sglang {release()} has no rings beside states: state_ring_len must be 0"
        )


def _demand_trees(config: EngineConfig) -> None:
    """Refuse drafts in a tree on a release whose worker for overlapped scheduling takes none.

    Raises:
        NotInRelease: it takes chains alone (sglang 0.5.12 eagle_worker_v2.py).
    """
    if config.spec_topk > 1 and is_before((0, 5, 13)):
        raise NotInRelease(
            f"sglang {release()} commits states behind trees in another worker: spec_topk must be 1"
        )


_BESIDE_PROMPTS = ("prefilling_ranks", "even_ranks")
"""Capabilities of decodes beside data-parallel ranks that compute prompts."""


def demand_even_ranks(config: EngineConfig) -> None:
    """Refuse a config whose ranks exchange tokens of equal lengths on a release without pplx.

    Raises:
        NotInRelease: none of its exchanges asks for that.
    """
    if config.even_ranks and is_before((0, 5, 17)):
        raise NotInRelease(f"sglang {release()} has no pplx: even_ranks must be false")


class DeltaNetSession(TritonSession):
    """One hybrid backend and one decode runner with its captured graphs."""

    model_class: type[AttentionModel] = DeltaNetModel
    output = "gated_delta"
    """What the recurrent layer's output is called."""
    tracking_since = (0, 5, 9)
    """The first release whose servers keep states of such layers for their prefix cache."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        first = COMMITS_SINCE if "target_verify" in config.modes else self.tracking_since
        demand_tracking(config, max(first, self.tracking_since))
        demand_rings(config)
        _demand_trees(config)
        demand_even_ranks(config)
        super().__init__(config, graphs)

    def _more_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        padded = PaddingRule("skip", -1)
        width = config.draft_tokens if config.modes == ("target_verify",) else 1
        ends = common.offsets(
            "query_start_loc", repeats="new_lens", padding=PaddingRule("fill", 0), source=_ENDS
        )
        return (
            Field(
                "state_indices", "requests", "state", padded, source=_STATES,
                dummy=common.FREE,
            ),
            replace(ends, dummy=PaddingRule("fill", width)),
            *self._ring_fields(config),
        )  # fmt: skip

    def _ring_fields(self, config: EngineConfig) -> tuple[Field, ...]:
        """Padded rows have no state, and what is said of its ring is read by nobody."""
        told = {}
        if config.state_ring_len and config.modes == ("decode",):
            told[_CURSORS] = "ring_depths"
        if config.state_flush_interval:
            told[_FORCED] = "rings_forced"
        return tuple(
            Field(name, "requests", "nothing", common.FREE, source=_RINGS, repeats=repeats)
            for name, repeats in told.items()
        )

    def observe(self, batch: Batch) -> Observation:
        """Rows that other ranks ask for without a graph are run like live ones."""
        seen = super().observe(batch)
        if self.ran_eagerly and self._padded_eagerly:
            seen.dummy_rows = seen.padded_bs - batch.raw_bs
        if self._runs_as_prompts:  # whose logits are those of each request's last token
            seen.shown_tokens = self._last_batch.batch_size
        return seen

    def _open_backend(self, runner: ModelRunner) -> Any:
        assert isinstance(runner.model, HybridModel)
        return hybrid_backend(runner, runner.model)

    @property
    def _triton(self) -> Any:
        return self.backend.full_attn_backend

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        return {**self._attention_tensors(), **self._recurrent_tensors(size)}

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        own = self._recurrent_tensors(self._size)
        # Attention runs what the engine has made prompts of one token by another metadata.
        shown = {} if self._runs_as_prompts else super()._used(lens)
        return {**shown, **{name: each.clone() for name, each in own.items()}}

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """None of an idle rank, whose tokens are nobody's (sglang logits_processor.py)."""
        nobodys = self._runs_as_prompts and not self._batch.raw_bs
        return {} if nobodys else super().shown_outputs()

    def plan(self) -> dict[str, object]:
        return {} if self._runs_as_prompts else super().plan()

    @property
    def _runs_as_prompts(self) -> bool:
        """Whether the engine has relabelled the last batch, because other ranks compute prompts."""
        given = self._last_batch
        return self.ran_eagerly and given.forward_mode.is_extend() and not self._verifies

    def _recurrent_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        recurrent = self.backend.linear_attn_backend
        if size is None:
            metadata = recurrent.forward_metadata
            states, ends = metadata.mamba_cache_indices, metadata.query_start_loc
        else:
            states = recurrent.state_indices_list[size - 1]
            ends = recurrent.query_start_loc_list[size - 1]
        return {"state_indices": states, "query_start_loc": ends, **self._shown_rings(size)}

    def _shown_rings(self, size: int | None) -> dict[str, torch.Tensor]:
        recurrent, shown = self.backend.linear_attn_backend, {}
        for field in self._ring_fields(self._config):
            if size is None:
                shown[field.name] = getattr(recurrent.forward_metadata, field.name)
            else:
                shown[field.name] = getattr(recurrent, f"{field.name}_list")[size - 1]
        # An engine that takes a decode for a prompt makes none.
        return {name: tensor for name, tensor in shown.items() if tensor is not None}

    def replay(self, batch: Batch) -> None:
        super().replay(batch)
        if not self.ran_eagerly:
            self._commit(batch)

    def _forward_eagerly(self) -> None:
        super()._forward_eagerly()
        self._commit(self._batch)

    def prepare_replay(self, batch: Batch) -> None:
        self._begin(batch)
        super().prepare_replay(batch)

    def eager(self, batch: Batch) -> None:
        self._begin(batch)
        super().eager(batch)

    def _begin(self, batch: Batch) -> None:
        self._batch = batch
        if self._config.state_ring_len:
            with self.engine_runs(batch):
                take_slots(batch, self._model_runner.req_to_token_pool)

    def _commit(self, batch: Batch) -> None:
        """What a worker does with the states of a verify that stayed, once it has sampled."""
        if not self._verifies or not batch.raw_bs:
            return
        with self.engine_runs(batch):
            if is_before(COMMITS_SINCE):
                paths = stayed_paths(batch, self._model_runner)
                last = engine_tensor([path[-1] for path in paths], self._model_runner.device)
                self.backend.update_mamba_state_after_mtp_verify(last, None, None, None)
            else:
                commit_states(batch, self._model_runner)

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        own = () if mode == "idle" else recurrent_names(self.output, self._config)
        return (*super().promised_outputs(mode), *own)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        return split_recurrent(outputs, self._config, self.output)


STOOD_IN = "projections and norm of the recurrent layer"


class RecurrentTarget(SglangTarget):
    """What targets of models with a recurrent layer do alike, whatever their graphs are over."""

    layer = "gated delta net"
    """What the recurrent layer is called."""
    recurrent_modules: tuple[str, ...] = (QWEN, LAYER)
    """Of the release, where the recurrent layer and its description lie."""
    positions = POSITIONS
    """That the recurrent layer tells apart, if its heads are narrow."""
    head_dims: tuple[int, ...] = (0, 128)
    """Of the recurrent layer, 0 for narrow heads."""
    periodic = True
    """Whether a description says no more of layers than every how many of them sees all keys."""

    def refused(self, config: EngineConfig) -> str | None:
        if not config.recurrent_state:
            return "the model has a recurrent layer: recurrent_state must be true"
        positions = max(self.positions, config.linear_head_dim)
        if config.max_context_len > positions:
            longest = f"max_context_len={config.max_context_len}"
            return f"{longest} is more than the {positions} positions of a row"
        if self.periodic and (period := refused_period(config)):
            return period
        return super().refused(config)

    def unserved(self, config: EngineConfig) -> str | None:
        interval, drafts = config.state_track_interval, config.draft_tokens
        if interval and "target_verify" in config.modes and interval < drafts:
            return f"server_args.py refuses mamba_track_interval={interval} below {drafts} drafts"
        return super().unserved(config)

    def load(self) -> None:
        super().load()
        with cuda_on_cpu():
            modules = (*self.recurrent_modules, _HYBRID, GDN_BACKEND, _REGISTRY)
            SGLANG.load(*filter(has_module, modules))
        if not torch.cuda.is_available():
            _run_without_a_gpu()


class DeltaNetTarget(RecurrentTarget, TritonTarget):
    """A model with gated delta nets on the sglang release that this process holds."""

    session: type[DeltaNetSession] = DeltaNetSession
    also_stood_in_for: tuple[str, ...] = ("the number of cores", STOOD_IN)
    since: Mapping[Mode, tuple[tuple[int, int, int], str]] = MappingProxyType({})
    """Mode -> the first release that can be driven, and what the ones before do."""

    rings: Mapping[str, bool] = MappingProxyType({"state_rings": True, "state_flushes": True})
    """Capabilities where states have rings; verifies have one of them."""
    branches = 2
    """Most children of a draft in the trees that it verifies."""
    ranks: Mapping[str, Any] = MappingProxyType({"max_tp_size": 4, **DATA_RANKS})
    """Capabilities beside other ranks; each has as many recurrent heads as one rank alone."""

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        super().__init__(name, mode)
        self.about = f"{self.layer} beside Triton attention, {mode} graphs"
        if mode == "target_verify":
            self.excuses = HYBRID_VERIFY_EXCUSES
        most = self.branches if mode == "target_verify" else 1
        self.capabilities = self.capabilities.replace(
            modes=(mode, "idle") if self.ranks else (mode,),
            max_context_len=POSITIONS,
            **{**OF_ONE_RANK, **self.ranks, "max_spec_topk": most},
            recurrent_state=True,
            recurrent_only=True,
            linear_head_dims=self.head_dims,
            max_wide_batch=0,  # chunks of lanes take half a minute for each step of such a batch
            recurrent_verify=mode == "target_verify",
            state_tracking=True,
            **{name: mode == "decode" or name == "state_rings" for name in self.rings},
            few_states=mode == "decode",
            **dict.fromkeys(_BESIDE_PROMPTS, bool(self.ranks) and mode == "decode"),
            # A server's decode follows a prompt.
            min_seq_len=2,
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DeltaNetSession:
        return self.session(config, graphs)

    def modules(self) -> tuple[str, ...]:
        for mode in self.capabilities.modes:
            if mode in self.since:
                demand_release(*self.since[mode], self.name)
        return super().modules()


def _run_without_a_gpu() -> None:
    """Host code of kernels that asks for a GPU by its name, and runs without one."""
    module = engine_module(next(filter(has_module, _FLA)))
    module.custom_device_ctx = lambda index: contextlib.nullcontext()
    hybrid = engine_module(_HYBRID)
    holders = (hybrid, *map(engine_module, filter(has_module, _SCATTERS)))
    for holder in holders:
        for name in _ASSERTS_GPU:
            if hasattr(holder, name):
                setattr(holder, name, tensors_claim_cuda(getattr(holder, name)))
