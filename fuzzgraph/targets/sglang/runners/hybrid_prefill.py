"""Prefill graphs of models with a recurrent layer: gated delta nets, KDA, Mamba2 and lightning
attention; targets `sglang-*-prefill`, and `sglang-*-piecewise-prefill` of older releases.

The release's own runner, `HybridLinearAttnBackend` and pools, one recurrent layer and one
`RadixAttention` layer, each of which breaks a graph: at both breaks kernels run anew, those that
convolve, recur in chunks and leave states among them. Recurrent are `RadixLinearAttention`, for
lightning attention `RadixAttention`, and Nemotron-H's own layer around `MambaMixer2`. From 0.5.22
on a graph holds the kernels of KDA, which read tables that are made anew before each replay; in
every release it holds Falcon-H1's mixer as it was captured. Outputs of both layers, states, buffers
and metadata are judged.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.recurrent_layers.delta_recurrence import LONGEST_ROW
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.sglang.attention_model import PrefillModel
from fuzzgraph.targets.sglang.backends.gdn import (
    STOOD_IN,
    RecurrentTarget,
    demand_tracking,
    hybrid_backend,
)
from fuzzgraph.targets.sglang.backends.lightning import BESIDE_TRITON
from fuzzgraph.targets.sglang.backends.mamba2 import (
    STATE_COLUMNS,
    TRACKING_SINCE,
    any_device,
    give_mixer_kernels,
)
from fuzzgraph.targets.sglang.channel_decay_model import ChannelDecayModel
from fuzzgraph.targets.sglang.decayed_attention_model import DecayedAttentionModel
from fuzzgraph.targets.sglang.delta_net_model import LAYER, DeltaNetModel
from fuzzgraph.targets.sglang.excuses.prefill import HYBRID_PREFILL_EXCUSES
from fuzzgraph.targets.sglang.fields import TRACKED_PROMPTS, tracked_fields
from fuzzgraph.targets.sglang.forward_batch.prefill import (
    STATE_CHUNK,
    TRACKED_LENS,
    state_chunk,
    told_track_lens,
)
from fuzzgraph.targets.sglang.hybrid_model import HybridModel, recurrent_names, split_recurrent
from fuzzgraph.targets.sglang.mamba2_model import MIXER, Mamba2Model
from fuzzgraph.targets.sglang.nemotron_model import NEMOTRON, NemotronModel
from fuzzgraph.targets.sglang.release import demand_release, is_before
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import BREAKABLE, PrefillKind
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.targets.sglang.stubs.hybrid_pools import (
    BAILING,
    FALCON,
    FALCON_CHUNK,
    KDA_BACKEND,
    KIMI,
    LIGHTNING_BACKEND,
    MAMBA_CHUNK,
    NEMOTRON_DESCRIPTION,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import cuda_server
from fuzzgraph.world import Batch

_STATES = "sglang hybrid_linear_attn_backend.py _forward_metadata: the slot of each request's row"
_ENDS = "sglang hybrid_linear_attn_backend.py _forward_metadata: extend_start_loc and the last end"


class DeltaNetPrefillModel(PrefillModel):
    """A gated delta net and attention, where prefill runners look for a body."""

    kind = DeltaNetModel


class ChannelDecayPrefillModel(PrefillModel):
    """The same with KDA as Kimi Linear has it."""

    kind = ChannelDecayModel


class _FlatGates(ChannelDecayModel):
    flat_gates = True


class FlatGatesPrefillModel(PrefillModel):
    """The same with KDA as GLM-5.3 has it."""

    kind = _FlatGates


class DeltaNetPrefillSession(PrefillSession):
    """An opened runner on Triton attention and the engine's recurrent backend."""

    model: type[PrefillModel] = DeltaNetPrefillModel
    output = "gated_delta"
    """What the recurrent layer's output is called."""
    tracking_since = (0, 5, 9)
    """The first release whose servers keep states of such layers for their prefix cache."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: PrefillKind) -> None:
        demand_tracking(config, self.tracking_since)
        super().__init__(config, graphs, kind)

    @staticmethod
    def declared(config: EngineConfig) -> tuple[Field, ...]:
        return (
            *PrefillSession.declared(config),
            *tracked_fields(config),
            Field("state_indices", "requests", "state", common.FREE, source=_STATES),
            common.offsets(
                "query_start_loc", repeats="new_lens", padding=common.FREE, source=_ENDS
            ),
        )

    def _open_backend(self, runner: ModelRunner) -> Any:
        assert isinstance(self._attention, HybridModel)
        return hybrid_backend(runner, self._attention)

    @property
    def _triton(self) -> Any:
        return self.backend.full_attn_backend

    def _attention_metadata(self) -> dict[str, torch.Tensor]:
        return {
            **super()._attention_metadata(),
            **self._recurrent_metadata(),
            **self._tracked_metadata(),
        }

    def _tracked_metadata(self) -> dict[str, torch.Tensor]:
        """What the model is told of states to keep; up to 0.5.13 batches of breakable graphs lack
        it, and what lies in the slots says what became of that."""
        if not self._config.state_track_interval:
            return {}
        told = {name: getattr(self._given(), name) for name in TRACKED_PROMPTS}
        return {name: each.clone() for name, each in told.items() if each is not None}

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        if self._config.state_track_interval:
            described = self._model_runner.model_config.hf_text_config
            seen.told = {TRACKED_LENS: told_track_lens(batch, state_chunk(described)).tolist()}
        return seen

    def _recurrent_metadata(self) -> dict[str, torch.Tensor]:
        """What kernels of the recurrent layer read of each request."""
        metadata = self.backend.linear_attn_backend.forward_metadata
        return {
            "state_indices": metadata.mamba_cache_indices.clone(),
            "query_start_loc": metadata.query_start_loc.clone(),
        }

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        own = () if mode == "idle" else recurrent_names(self.output, self._config)
        return (*super().promised_outputs(mode), *own)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        return split_recurrent(outputs, self._config, self.output)


class ChannelDecayPrefillSession(DeltaNetPrefillSession):
    """The same with KDA as Kimi Linear has it."""

    model: type[PrefillModel] = ChannelDecayPrefillModel
    output = "channel_delta"

    def engine_runs(self) -> contextlib.AbstractContextManager[None]:
        return cuda_server()  # its tables come by memory that is pinned

    def _recurrent_metadata(self) -> dict[str, torch.Tensor]:
        tables = getattr(self.backend.linear_attn_backend, "prefill_graph_metadata", None)
        if tables is None:
            return super()._recurrent_metadata()
        rows = self._last_batch.batch_size  # beyond them tables say that there is nothing
        return {
            "state_indices": tables.cache_indices[:rows].clone(),
            "query_start_loc": tables.cu_seqlens[: rows + 1].clone(),
        }


class FlatGatesPrefillSession(ChannelDecayPrefillSession):
    """The same with KDA as GLM-5.3 has it."""

    model: type[PrefillModel] = FlatGatesPrefillModel


class Mamba2PrefillModel(PrefillModel):
    """The same with Mamba2 as Nemotron-H has it."""

    kind = NemotronModel


class Mamba2PrefillSession(DeltaNetPrefillSession):
    """The same with Mamba2 as Nemotron-H has it."""

    model: type[PrefillModel] = Mamba2PrefillModel
    output = "selective_scan"  # sums over a chunk come in another order than the reference's
    tracking_since = TRACKING_SINCE

    def engine_runs(self) -> contextlib.AbstractContextManager[None]:
        return any_device()


class FalconPrefillModel(PrefillModel):
    """The same with Mamba2 as Falcon-H1 has it, in one layer with attention."""

    kind = Mamba2Model


class FalconPrefillSession(Mamba2PrefillSession):
    """The same with Mamba2 as Falcon-H1 has it."""

    model: type[PrefillModel] = FalconPrefillModel


class DecayedAttentionPrefillModel(PrefillModel):
    """The same with lightning attention."""

    kind = DecayedAttentionModel


class LightningPrefillSession(DeltaNetPrefillSession):
    """The same with lightning attention."""

    model: type[PrefillModel] = DecayedAttentionPrefillModel
    output = "linear"


class DeltaNetPrefillTarget(RecurrentTarget, PrefillTarget):
    """Prefill graphs with gated delta nets on the release that this process holds."""

    session: type[DeltaNetPrefillSession] = DeltaNetPrefillSession
    excuses = HYBRID_PREFILL_EXCUSES
    positions = LONGEST_ROW
    dtypes: tuple[str, ...] = ("float16",)  # chunks of the delta rule take no float32
    state_chunk = STATE_CHUNK
    """Tokens of a chunk of its kernels."""
    stood_in = STOOD_IN
    attends_alone = False
    several = True
    """Whether models have layers that only recur, and several of them."""
    data_ranks = True
    """Whether it is driven beside data-parallel ranks, where its graphs are."""

    def __init__(self, name: str, kind: str = BREAKABLE.name) -> None:
        super().__init__(name, kind)
        (graphs,) = self.capabilities.prefill_runners
        self.about = f"{graphs} prefill graphs, {self.layer} beside Triton attention"
        self.also_stood_in_for = (*self.also_stood_in_for, self.stood_in)
        self.capabilities = self.capabilities.replace(
            dtypes=self.dtypes,
            max_context_len=self.positions,
            images=False,
            row_mixings=("none",),
            recurrent_state=True,
            recurrent_only=True,
            linear_head_dims=self.head_dims,
            layer_types=self.several,
            state_tracking=True,
            prefix_branches=True,
            state_chunk=self.state_chunk,
        )
        if not self.data_ranks:
            self.capabilities = self.capabilities.replace(
                modes=("prefill",), max_tp_size=1, max_dp_size=1, idle_alone=True
            )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DeltaNetPrefillSession:
        return self.session(config, graphs, self._kind)


class ChannelDecayPrefillTarget(DeltaNetPrefillTarget):
    """Prefill graphs with KDA on the sglang release that this process holds."""

    layer = "KDA"
    session = ChannelDecayPrefillSession
    periodic = False
    recurrent_modules = (KIMI, LAYER, KDA_BACKEND)

    def __init__(self, name: str, kind: str = BREAKABLE.name) -> None:
        super().__init__(name, kind)
        self.capabilities = self.capabilities.replace(safe_gates=True)

    def modules(self) -> tuple[str, ...]:
        demand_release(
            (0, 5, 17), "computes chunks of KDA by kernels that are not judged, not", self.name
        )
        return super().modules()


class FlatGatesPrefillTarget(ChannelDecayPrefillTarget):
    """The same with KDA as GLM-5.3 has it, for which servers capture prefills by default."""

    layer = "KDA of GLM-5.3"
    session = FlatGatesPrefillSession

    def modules(self) -> tuple[str, ...]:
        demand_release((0, 5, 22), "captures no kernels of KDA", self.name)
        return super().modules()


_ANY_DTYPE: tuple[str, ...] = ("float32", "float16")


class Mamba2PrefillTarget(DeltaNetPrefillTarget):
    """Prefill graphs with Mamba2 on the sglang release that this process holds."""

    layer = "Mamba2"
    session = Mamba2PrefillSession
    periodic = False
    recurrent_modules: tuple[str, ...] = (NEMOTRON_DESCRIPTION, MIXER, NEMOTRON)
    head_dims = STATE_COLUMNS
    dtypes = _ANY_DTYPE
    state_chunk = MAMBA_CHUNK
    stood_in = "norms around the recurrent layer"
    data_ranks = False  # the mixer takes its width from a flag of the engine's groups

    def unserved(self, config: EngineConfig) -> str | None:
        if config.layer_types[:1] == ("linear_attention",) and is_before((0, 5, 18)):
            return "up to 0.5.17 triton_backend.py asks the KV pool for values of layer 0"
        return super().unserved(config)

    def modules(self) -> tuple[str, ...]:
        demand_release((0, 5, 10), "breaks no prefills at Mamba2", self.name)
        return super().modules()

    def load(self) -> None:
        super().load()
        give_mixer_kernels()


class FalconPrefillTarget(Mamba2PrefillTarget):
    """The same with Mamba2 as Falcon-H1 has it, whose graphs hold the mixer as it was captured."""

    layer = "Falcon-H1"
    session = FalconPrefillSession
    several = False
    recurrent_modules = (FALCON, MIXER)
    state_chunk = FALCON_CHUNK


class LightningPrefillTarget(DeltaNetPrefillTarget):
    """Prefill graphs with lightning attention on the sglang release that this process holds."""

    layer = "lightning layers"
    session = LightningPrefillSession
    recurrent_modules = (BAILING, LIGHTNING_BACKEND)
    head_dims = (0,)
    dtypes = _ANY_DTYPE

    def __init__(self, name: str, kind: str = BREAKABLE.name) -> None:
        super().__init__(name, kind)
        # Its description has the heads of one rank.
        self.capabilities = self.capabilities.replace(max_tp_size=1)

    def modules(self) -> tuple[str, ...]:
        demand_release(*BESIDE_TRITON, self.name)
        return super().modules()
