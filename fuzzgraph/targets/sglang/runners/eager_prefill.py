"""Target `sglang-short-conv-prefill`: prompts of short convolutions, as in LFM2, without a graph.

No release captures prefills of such models: their layers show an attribute `conv`, which the engine
does not count as a layer that attends (layer_setup.py `compute_attention_and_moe_layers`, before
0.5.16 model_runner.py), and with fewer of these than layers a server goes without
(cuda_graph_setup.py `has_standard_gqa_for_all_local_layers`). Its prompts run on the backends of
its graphs of decodes. Outputs of both layers, what is kept of a request, and metadata are judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.sglang.attention_model import PrefillModel
from fuzzgraph.targets.sglang.backends.mamba2 import any_device
from fuzzgraph.targets.sglang.backends.short_conv import FOR_VALUES, SHORT_CONV_BACKEND
from fuzzgraph.targets.sglang.gated_convolution_model import LFM2_MODEL, GatedConvolutionModel
from fuzzgraph.targets.sglang.release import demand_release
from fuzzgraph.targets.sglang.runners.hybrid_prefill import (
    DeltaNetPrefillSession,
    DeltaNetPrefillTarget,
)
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import PrefillKind
from fuzzgraph.targets.sglang.stubs.hybrid_pools import LFM2

_NO_GRAPHS = "sglang cuda_graph_setup.py: a model with layers that do not attend has no such graphs"
_SLOTS = "sglang short_conv_backend.py init_forward_metadata: once for all layers"


class _NoGraphs:
    """What a server has in the place of a runner where it captures no prefills.

    Args:
        sizes: counts of tokens that the config would capture.
    """

    one_request = False
    most_padding = 0
    prepared = None

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.requests: Mapping[str, torch.Tensor] = {}

    def capture(self) -> None:
        """There is nothing to capture."""

    def find(self, name: str) -> None:
        """No static input."""

    def can_run(self, forward_batch: Any) -> bool:
        """No batch takes a graph."""
        return False


class ShortConvPrefillModel(PrefillModel):
    """A short convolution between two gates and attention, where runners look for a body."""

    kind = GatedConvolutionModel


class ShortConvPrefillSession(DeltaNetPrefillSession):
    """A model runner that captured no prefills, on Triton attention and the engine's backend of
    short convolutions."""

    model = ShortConvPrefillModel
    output = "gated_conv"
    ran_eagerly = True

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: PrefillKind) -> None:
        super().__init__(config, graphs, kind)
        self.runner = _NoGraphs(config.capture_tokens)  # type: ignore[assignment]

    @staticmethod
    def declared(config: EngineConfig) -> tuple[Field, ...]:
        slots = Field(
            "cache_indices", "requests", "state", common.FREE, source=_SLOTS, repeats="state_slots"
        )
        # What layers that compute on the host are told; no kernel of LFM2 reads it.
        on_host = replace(slots, name="slots_on_host", selects="nothing")
        return (*DeltaNetPrefillSession.declared(config), slots, on_host)

    @contextlib.contextmanager
    def engine_runs(self) -> Iterator[None]:  # type: ignore[override]
        with any_device():
            yield

    def _static(self) -> dict[str, torch.Tensor]:
        return {}

    def _rule_against(self, batch: Any) -> str:
        return _NO_GRAPHS

    def _recurrent_metadata(self) -> dict[str, torch.Tensor]:
        recurrent = self.backend.short_conv_backend
        return {
            **super()._recurrent_metadata(),
            "cache_indices": recurrent._cache_indices.clone(),
            "slots_on_host": torch.tensor(recurrent._slot_ids_cpu),
        }


class ShortConvPrefillTarget(DeltaNetPrefillTarget):
    """Prompts of short convolutions on the sglang release that this process holds."""

    layer = "short convolution"
    session = ShortConvPrefillSession
    periodic = False
    recurrent_modules = (LFM2, LFM2_MODEL, SHORT_CONV_BACKEND)
    head_dims = (0,)
    dtypes = ("float32", "float16")
    stood_in = "the compiled convolution, by the one in Triton"
    data_ranks = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.about = "short convolution beside Triton attention, prompts without a graph"
        self.also_stood_in_for = (self.stood_in,)
        self.capabilities = self.capabilities.replace(state_tracking=False, prefix_branches=False)

    def modules(self) -> tuple[str, ...]:
        demand_release(*FOR_VALUES, self.name)
        return super().modules()
