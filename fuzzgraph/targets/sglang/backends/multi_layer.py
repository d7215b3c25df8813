"""Multi-layer EAGLE's draft-extend on one attention backend each: `sglang-multi-layer-draft-extend`
on FlashAttention 3, and targets such as `sglang-triton-multi-layer`.

Real: `MultiLayerEagleDraftExtendCudaGraphRunner` and the runner over all layers, their buffers, the
kernels that move tokens on from layer to layer, a backend with both preparations and a KV pool for
each layer, one `RadixAttention` layer in each, `LogitsProcessor`. Stood in for is what the
backend's own file says. Models as MiMo-V2's and Step-3.5's differ in the hidden states that layers
are given (`chain_hidden_states`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig, Mode, attention_outputs
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.draft_layers import CHAINED_HIDDEN, LAYER_HIDDEN, draft_layers, of_layers
from fuzzgraph.targets.offline.handed import BackendWatch
from fuzzgraph.targets.sglang.attention_model import as_logits, outputs_in
from fuzzgraph.targets.sglang.backends import fa3, triton, trtllm_mha
from fuzzgraph.targets.sglang.backends.attention_backend import open_backend
from fuzzgraph.targets.sglang.backends.draft_extend import DraftExtendSession, DraftExtendTarget
from fuzzgraph.targets.sglang.backends.recording import watched
from fuzzgraph.targets.sglang.draft_model import DraftModel
from fuzzgraph.targets.sglang.excuses.drafts import LAYERS_EXCUSES, OWN_INPUTS_EXCUSES
from fuzzgraph.targets.sglang.expert_exchange import DEEPEP
from fuzzgraph.targets.sglang.forward_batch.decode import engine_tensor
from fuzzgraph.targets.sglang.judged_pools import judged_pools
from fuzzgraph.targets.sglang.release import engine_module, is_before
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DraftRunnerDriver
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftTarget
from fuzzgraph.targets.sglang.runners.eagle_multi_layer import (
    MULTI_LAYER,
    LayerOutputs,
    MultiLayerRunnerDriver,
)
from fuzzgraph.targets.sglang.stubs.draft_worker import DraftLayer, demand_chained, layers_worker
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, draft_layer_runner
from fuzzgraph.world import Batch

_BACKENDS = {
    "fa3": fa3.FA3,
    "triton": triton.TRITON,
    "trtllm-mha": trtllm_mha.TRTLLM_MHA,
}
_INFO = "sglang.srt.model_executor.forward_batch_info"
_SHARED = (0, 5, 15)
"""The first release whose layers have the same inputs."""
_LATER = dict.fromkeys(("triton", "trtllm_mha"), _SHARED)
"""Before it these backends prepare rows of every layer for as many tokens as those of the first
(sglang triton_backend.py `num_tokens_per_bs`, trtllm_mha_backend.py `max_seq_len_q`)."""


_OF_ONE_RANK: Mapping[str, Any] = {
    "modes": ("draft_extend",),
    "max_dp_size": 1,
    # A later layer's keys at the end of a prefix follow from the tokens behind it.
    "shared_prefixes": False,
}


class LayersTarget(DraftExtendTarget):
    """The runner of several draft layers on one backend of the release that this process holds."""

    excuses = LAYERS_EXCUSES
    kind = MULTI_LAYER
    backends = MappingProxyType(_BACKENDS)
    later = MappingProxyType(_LATER)
    first = (0, 5, 9)

    def __init__(self, name: str, backend: str, exchange: str = "") -> None:
        super().__init__(name, backend)
        beside = ", DeepEP" if exchange else ""
        self.about = f"{self.backend.name}, multi-layer EAGLE's draft_extend graphs{beside}"
        self._session = _ExchangingSession if exchange else LayersSession
        if exchange:
            self.also_stood_in_for = (*self.also_stood_in_for, "DeepEP's memory")
        self.capabilities = self.capabilities.replace(
            **_OF_ONE_RANK, capture_beyond_pool=backend == "fa3", chained_layers=True
        )

    def refused(self, config: EngineConfig) -> str | None:
        if config.draft_tokens < 2:
            return f"draft_tokens={config.draft_tokens} leaves no layer"
        # Others have buffers of the pool's size (sglang triton_backend.py, qo_indptr).
        if self.backend is fa3.FA3:
            return DraftTarget.refused(self, config) or self.backend.refuses(config)
        return super().refused(config)

    def load(self) -> None:
        super().load()
        if is_before(_SHARED):
            self.excuses = OWN_INPUTS_EXCUSES

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> LayersSession:
        return self._session(config, graphs, self._kind, self.backend)


class LayersSession(DraftExtendSession):
    """The runner of several draft layers and the backends that attend."""

    runner: MultiLayerRunnerDriver
    exchange: Mapping[str, Any] = MappingProxyType({})
    """Arguments of a server whose experts exchange tokens."""
    least_accepted = 1  # as a server's rows have: up to 0.5.14 a layer's inputs follow from it
    _layers: tuple[DraftLayer, ...]
    _found: list[LayerOutputs]

    def __init__(self, config: EngineConfig, *given: Any) -> None:
        demand_chained(config)
        super().__init__(config, *given)
        planes = (judged_pools(layer.runner, self._config).groups for layer in self._layers[1:])
        shared = tuple(
            tuple(replace(group, req_to_token=None) for group in groups) for groups in planes
        )
        self.pools = replace(self.pools, draft_layers=shared)

    def _open_backend(self, runner: ModelRunner) -> Any:
        first = super()._open_backend(runner)
        further = (self._open_layer(runner, number) for number in self._further)
        assert self._model is not None
        self._layers = (DraftLayer(runner, self._model, first), *further)
        return first

    def _exchange_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        return self.exchange

    @property
    def _further(self) -> range:
        """Numbers of the layers behind the first."""
        return range(1, draft_layers(self._config))

    def _open_layer(self, first: ModelRunner, number: int) -> DraftLayer:
        assert self._model is not None
        device = self._model.embed.device
        runner = draft_layer_runner(first, self._config, device)
        model = DraftModel(self._config, device, self.attends_on.rope, number)
        runner.model = model
        backend = open_backend(self.attends_on, runner, watched)
        return DraftLayer(runner, model, backend)

    def _open_runner(self, graphs: GraphEngine) -> DraftRunnerDriver:
        self.worker = layers_worker(self._layers, self._config)
        runner = MultiLayerRunnerDriver(
            self.worker, self._config, graphs, self.remember, self._layers, self._copy_inputs
        )
        if runner.shared:  # otherwise later layers are handed more than without a graph
            for layer in self._layers[1:]:
                self.watch(layer.backend, graphs)
        return runner

    def asked(self, key: Hashable | None) -> Sequence[BackendWatch]:
        """While graphs are captured: those of the layers that the newest one holds."""
        watches = super().asked(key)
        if not self.capturing:
            return watches
        return [watches[layer] for layer in self.runner.newest if layer < len(watches)]

    def remember(self, key: Hashable) -> None:
        """Of a graph of later layers alone: what their backends were captured with."""
        if 0 in self.runner.newest:  # it is captured last
            super().remember(key)
            return
        for watch in self.asked(key):
            watch.captured(key)

    @property
    def roots(self) -> Mapping[str, object]:
        """Those of the first layer, and what each further one has of its own."""
        further = {
            f"layer_{number}": {
                "backend": layer.backend,
                "kv_pool": layer.runner.token_to_kv_pool,
                "model": layer.model,
            }
            for number, layer in enumerate(self._layers[1:], 1)
        }
        return {**super().roots, **further, "runners": self.runner.held}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        """Attention, hidden states and logits of all layers, and the tokens that they predict."""
        hidden, logits = CHAINED_HIDDEN if self._config.chain_hidden_states else LAYER_HIDDEN
        # In one graph layers share a buffer of logits, which nobody reads behind it (sglang
        # OneGraphMultiLayerEagleMultiStepDraftExtendCudaGraphRunner.replay).
        more = () if self.runner.one_graph else (logits,)
        attention = map(of_layers, attention_outputs(self._config))
        return (*attention, hidden, *more, "chained_tokens")

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        batch = self._batch
        if batch is None:
            return {}
        found: dict[str, list[torch.Tensor]] = {}
        has_one = torch.tensor(batch.new_lens > 0)
        hidden, logits = CHAINED_HIDDEN if self._config.chain_hidden_states else LAYER_HIDDEN
        for number, layer in enumerate(self._found):
            live = torch.tensor(self.runner.places(batch, number, eagerly=self.ran_eagerly))
            attended = outputs_in(as_logits(layer.attended[live]), self._config)
            outputs = {of_layers(name): attended[name] for name in attended}
            outputs[hidden] = layer.hidden[live]
            if not self.runner.one_graph:
                outputs[logits] = layer.logits[has_one]
            for name, value in outputs.items():
                found.setdefault(name, []).append(value)
        tokens = torch.cat([layer.tokens[has_one] for layer in self._found], 1)
        by_layer = {name: torch.stack(each, 1).flatten(0, 1) for name, each in found.items()}
        return {**by_layer, "chained_tokens": tokens}

    def _translate(self, batch: Batch) -> Any:
        given = super()._translate(batch)
        # sglang prepare_for_draft_extend: layers may hand on the hidden states of all tokens.
        given.capture_hidden_mode = engine_module(_INFO).CaptureHiddenMode.FULL
        return given

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """One graph prepares its metadata by itself, from inputs: it is handed no sum."""
        handed = super()._used(lens)
        if self.runner.one_graph:
            handed.pop("seq_lens_sum", None)
        return handed

    def _use(self) -> None:
        super()._use()
        self.backend.forget_handed()

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            accepted = np.maximum(batch.new_lens, self.least_accepted)
            counts = engine_tensor(accepted, self._model_runner.device).int()
            self.runner.prepare(self._last_batch, counts)

    def replay(self, batch: Batch) -> None:
        if not self.ran_eagerly:
            with self.engine_runs(batch):
                self._found = self.runner.replay_layers(batch)

    def _forward_eagerly(self) -> None:
        assert self._batch is not None
        self._found = self.runner.run_eagerly(self._batch, self._last_batch)


class _ExchangingSession(LayersSession):
    """The same on a server with DeepEP, whose experts here are one rank's. Logits are of all tokens
    there: what is gathered for other ranks is not pruned."""

    exchange = DEEPEP
