"""The engine's runner of multi-layer EAGLE's draft-extend, which replays a graph for each layer.

Up to 0.5.14 a layer's graph writes the inputs of the next one, which begin one token earlier; since
0.5.15 all layers share theirs, and the worker moves the tokens on between two replays, which is
done here as it does it. From 0.5.16 on one graph holds all layers where backends allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.demands import demand_rows
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import in_forward_context
from fuzzgraph.targets.sglang.forward_batch.draft import live_places, select_index
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.base import execute
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DraftRunnerDriver, RunnerKind
from fuzzgraph.targets.sglang.stubs.draft_worker import DraftLayer
from fuzzgraph.world import Batch, IntArray

MULTI_LAYER = RunnerKind(
    "multi_layer",
    "sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner",
    "MultiLayerEagleDraftExtendCudaGraphRunner",
    mode="draft_extend",
    max_topk=1,  # one step, so one layer, fewer than draft tokens
)
_KERNELS = "sglang.srt.speculative.multi_layer_eagle_utils"
_ALL_STEPS = "MultiLayerEagleMultiStepDraftExtendCudaGraphRunner"
_ONE_GRAPH = f"OneGraph{_ALL_STEPS}"
_WORKER = "the draft worker"


@dataclass(frozen=True, slots=True)
class LayerOutputs:
    """Copies of what one layer gave: what its model computed, and what the engine hands on."""

    attended: torch.Tensor
    """[places, ...] of all rows."""
    hidden: torch.Tensor
    """[places, ...]"""
    logits: torch.Tensor
    """[rows, ...] of the last accepted token of each row."""
    tokens: torch.Tensor
    """[rows, 1] that the layer predicts."""


class MultiLayerRunnerDriver(DraftRunnerDriver):
    """The release's runner over all layers; what is shown are the inputs of the first.

    Args:
        layers: of the draft model.
        on_inputs: called when inputs are filled and nothing has run yet.
    """

    _all_steps: Any
    one_graph: bool
    """Whether a graph holds all layers, and moves the tokens on between them."""
    shared: bool
    """Whether layers have the same inputs."""

    def __init__(
        self,
        worker: Any,
        config: EngineConfig,
        graphs: GraphEngine,
        on_capture: Callable[[int], None],
        layers: Sequence[DraftLayer],
        on_inputs: Callable[[], None],
    ) -> None:
        self._layers, self._on_inputs = layers, on_inputs
        self._told = on_capture
        self._computed: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.newest: tuple[int, ...] = ()
        """Layers that the graph captured last holds; the last layer is captured first."""
        self._chains = worker.chain_mtp_hidden_states
        super().__init__(MULTI_LAYER, worker, config, graphs, self._remember)

    def _remember(self, size: int) -> None:
        """Keep the tensors of the layers that a graph holds, captured just now."""
        for layer in self.newest:
            model = self._layers[layer].model
            self._computed[size, layer] = model.attended, model.hidden
        self._told(size)

    def _open(self, runner: type, worker: Any) -> Any:
        self._module = engine_module(MULTI_LAYER.module)
        self.one_graph = self._takes_one_graph()
        kind = getattr(self._module, _ONE_GRAPH if self.one_graph else _ALL_STEPS)
        with replaced_names((self._module,), {MULTI_LAYER.runner: runner}):
            self._all_steps = (_deferred(kind) if self.one_graph else kind)(worker)
        self.shared = hasattr(self._all_steps, "prepare")
        return self._all_steps if self.shared else self._all_steps.get_runner(0)

    def _takes_one_graph(self) -> bool:
        """The worker's own rule (sglang multi_layer_eagle_worker_v2.py, _capture_cuda_graphs)."""
        return hasattr(self._module, _ONE_GRAPH) and all(
            layer.backend.draft_extend_metadata_captured_in_graph()
            or getattr(layer.backend, "supports_draft_extend_metadata_staging", False)
            for layer in self._layers
        )

    def _capturing(self) -> Iterator[Any]:
        """Each runner that captures, the last layer's first."""
        if self.one_graph:
            self.newest = tuple(range(len(self._layers)))
            yield self._all_steps
            return
        for runner in reversed(self._all_steps.runners):
            self.newest = (runner.step,)
            yield runner

    @property
    def held(self) -> list[Any]:
        """Buffers of later layers, up to 0.5.14; in 0.5.9 they are the runner's own."""
        later = () if self.shared else self._all_steps.runners[1:]
        return [getattr(one, "buffers", one) for one in later]

    @property
    def prunes(self) -> bool:
        """Whether logits are of the last accepted tokens only."""
        return bool(getattr(self._all_steps, "prune_draft_extend_logits", False))

    def places(self, batch: Batch, layer: int, *, eagerly: bool) -> IntArray:
        """[num_tokens] where each token lies among those of a layer."""
        before = 0 if self.shared or eagerly else layer
        width = self.width + before
        first: IntArray = before + live_places(batch, width)
        return first

    def replay_layers(self, batch: Batch) -> list[LayerOutputs]:
        """Replay the prepared batch; copied layer by layer, as the next graph has the same pool."""
        given, accepted = self._given
        if not self.shared:
            self._all_steps.reset_buffers(given, Stub(accept_lens=accepted))
            return [self._replay_own(given, batch, layer) for layer in range(len(self._layers))]
        steps, buffers = self._all_steps, self._all_steps.buffers
        steps.prepare(given)
        self._on_inputs()
        found = []
        for layer in range(len(self._layers)):
            handed, _, chosen = steps.replay(layer)
            logits = handed.next_token_logits
            found.append(self._copied(batch, layer, steps.bs, logits, chosen))
            if layer < len(self._layers) - 1 and not self.one_graph:
                _rotate()(
                    buffers.input_ids[: steps.raw_num_tokens],
                    buffers.extend_start_loc[: steps.raw_bs],
                    buffers.extend_seq_lens[: steps.raw_bs],
                    chosen,
                    buffers.select_index[: steps.raw_bs],
                )
        return found

    def _replay_own(self, given: Any, batch: Batch, layer: int) -> LayerOutputs:
        """Up to 0.5.14: a layer whose inputs the one before has written."""
        runner = self._all_steps.runners[layer]
        handed = execute(runner, given, init_state=layer == 0)
        logits = handed.next_token_logits
        return self._copied(batch, layer, runner.bs, logits, handed.topk_index)

    def _copied(
        self, batch: Batch, layer: int, size: int, logits: torch.Tensor, chosen: torch.Tensor
    ) -> LayerOutputs:
        attended, hidden = self._computed[size, layer]
        before = 0 if self.shared else layer
        last = select_index(batch, self.width + before) + before
        return _outputs(batch, attended, hidden, logits, None if self.prunes else last, chosen)

    def run_eagerly(self, batch: Batch, given: Any) -> list[LayerOutputs]:
        """Without a graph, as the worker does it from 0.5.16 on: each layer on its own backend and
        pool (sglang _draft_extend_for_decode).

        Up to 0.5.12 later layers run on the metadata of the first one, whose pool they write; the
        worker warns that such a run may be wrong, and it is not driven.
        """
        last = select_index(batch, self.width)
        where = last.to(given.input_ids.device)
        if self.prunes:
            given.spec_info.select_index = where
        found = []
        for layer in self._layers:
            given.req_to_token_pool = layer.runner.req_to_token_pool
            given.token_to_kv_pool = layer.runner.token_to_kv_pool
            given.attn_backend = layer.backend
            window_slots = getattr(given, "out_cache_loc_swa", None)
            if window_slots is not None:  # as each model runner does up to 0.5.12
                layer.runner.token_to_kv_pool.set_swa_loc(window_slots)
            with in_forward_context(layer.backend, given):
                layer.backend.init_forward_metadata(given)
                handed = layer.model.forward(given.input_ids, given.positions, given)
            picked = None if self.prunes else last
            logits = handed.next_token_logits
            probabilities = torch.softmax(logits if self.prunes else logits[where], dim=-1)
            chosen = self._module.fast_topk(probabilities, 1, dim=-1)[1]
            model = layer.model
            found.append(_outputs(batch, model.attended, model.hidden, logits, picked, chosen))
            if self._chains:
                given.spec_info.hidden_states = handed.hidden_states
            _rotate()(given.input_ids, given.extend_start_loc, given.extend_seq_lens, chosen, where)
        return found


def _outputs(
    batch: Batch,
    attended: torch.Tensor,
    hidden: torch.Tensor,
    logits: torch.Tensor,
    last: torch.Tensor | None,
    chosen: torch.Tensor,
) -> LayerOutputs:
    """Copies of a layer's tensors.

    Args:
        last: [raw_bs] where logits of each row are; None where rows have one each.
    """
    there = batch.raw_bs if last is None else int(last.max()) + 1
    logits = demand_rows(logits[:there], there, "next_token_logits", _WORKER)
    picked = logits if last is None else logits[last.to(logits.device)]
    tokens = demand_rows(chosen[: batch.raw_bs], batch.raw_bs, "topk_index", _WORKER)
    return LayerOutputs(attended.clone(), hidden.clone(), picked.clone(), tokens.clone())


def _deferred(kind: Any) -> type:
    """The runner of one graph for all layers; the session decides when it captures."""

    class Deferred(kind):  # type: ignore[misc]
        may_capture = False

        def _capture_one_graph(self, bs: int, runners: Any) -> None:
            if self.may_capture:
                super()._capture_one_graph(bs, runners)

        def capture(self) -> None:
            """As `_init_and_capture` does behind its buffers."""
            for bs in reversed(self.runners[0].capture_bs):
                self._capture_one_graph(bs, self.runners)

    Deferred.__module__ = kind.__module__
    return Deferred


def _rotate() -> Any:
    """The engine's kernel that moves each row's tokens on by one."""
    kernels = engine_module(_KERNELS)
    return getattr(kernels, "rotate_input_ids", None) or kernels.rotate_input_ids_triton
