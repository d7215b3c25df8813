"""The real V2 `GPUModelRunner` (`vllm.v1.worker.gpu`) with its captured graphs.

Whole: request states, staged writes, block tables and slots by the runner's own Triton kernels,
the graph manager, the metadata builder, capture, padded replay, idle batches, sampling, the output
that is read a step later. What is as in V1 lies in `runner_session`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_graph import RecordedCudaGraph
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.answers import SAMPLED, answers_given
from fuzzgraph.targets.vllm.handed import watch_builders
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.served_requests import ServedAnew, ServedRequests
from fuzzgraph.targets.vllm.v2_fields import LENS_ON_HOST, v2_runner_fields
from fuzzgraph.world import Batch

V2_RUNNER = "vllm.v1.worker.gpu.model_runner"
_GRAPH_MANAGER = "vllm.v1.worker.gpu.cudagraph_utils"
_PREPARES = "prepare_inputs_to_capture"
INPUT_BATCH = "vllm.v1.worker.gpu.input_batch"
_FIRST_TOKEN = (
    "a row that computes the first token of a prompt is a prefill (model_runner.py,"
    " gather_batch_req_state)"
)
_EARLIER_HIDDEN = 4  # of the tuple that holds the state before 0.18
_EARLIER_DISPATCH = "get_cudagraph_runtime_mode"
_CHOICE = "VLLM_USE_V2_MODEL_RUNNER"


def knows_prompts() -> bool:
    """Whether the release tells rows that compute prompts from decodes of as many tokens."""
    return "decode_graph_eligible" in engine_module(INPUT_BATCH).InputBatch.__annotations__


@dataclass(frozen=True)
class Dispatched:
    """What the graph manager chose for a batch."""

    rows: int
    tokens: int
    graph: Hashable | None
    """Key of the graph, which is its own; None where the batch runs eagerly."""


class V2RunnerSession(RunnerSession):
    """One V2 runner with its model and captured graphs; a graph is its own key."""

    runner_module = V2_RUNNER
    served_kind: type[ServedRequests] = ServedAnew
    async_scheduling = True

    def __init__(self, config: EngineConfig, graphs: GraphEngine, *backend: Any) -> None:
        self._graph: Hashable | None = None
        self._batch: Any = None
        super().__init__(config, graphs, *backend)

    def _runner_fields(self) -> tuple[Field, ...]:
        return v2_runner_fields(self._config)

    @contextlib.contextmanager
    def _server(self) -> Iterator[None]:
        """The engine asks for its runner by a variable, wherever the two differ."""
        before = os.environ.pop(_CHOICE, None)
        with super()._server():
            os.environ[_CHOICE] = "1"
            try:
                yield
            finally:
                del os.environ[_CHOICE]
                if before is not None:
                    os.environ[_CHOICE] = before

    # What is handed over

    def _watch_handover(self, graphs: GraphEngine) -> None:
        """What the builders get and give, and what the model gets, which full graphs hold."""
        self._to_model = self.watch(self.runner.model, graphs, whole=True)
        self._watches_begin = [self._to_model, *watch_builders(self, self.runner, graphs)]

    def capture(self) -> None:
        module = engine_module(_GRAPH_MANAGER)
        with replaced_names([module], {_PREPARES: self._prepared(getattr(module, _PREPARES))}):
            super().capture()

    def _prepared(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        """Each graph after a warm-up of its own."""

        def prepared(*args: Any, **kwargs: Any) -> Any:
            for watch in self._watches_begin:
                watch.begin()
            return prepare(*args, **kwargs)

        return prepared

    # What was chosen, and for which batch

    def _spy(self) -> None:
        """Take down what the graph manager chose, for which batch, and what was built of it."""
        manager = self.runner.cudagraph_manager
        name = "dispatch" if hasattr(manager, "dispatch") else _EARLIER_DISPATCH
        setattr(manager, name, self._noted(getattr(manager, name)))
        state = self.runner.model_state
        state.prepare_attn = self._given_batch(state.prepare_attn)
        self._spy_on_builder()

    def _noted(self, dispatch: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            chosen = dispatch(*args, **kwargs)
            self._dispatched = self._read_dispatched(chosen)
            self._graph = self._dispatched.graph or self._graph
            return chosen

        return noted

    def _read_dispatched(self, chosen: Any) -> Dispatched:
        """A descriptor, or the mode and the size of releases before 0.18."""
        graphs = self.runner.cudagraph_manager.graphs
        if isinstance(chosen, tuple):
            size = chosen[1] or 0
            return Dispatched(size, size, graphs.get(chosen[1]))
        return Dispatched(chosen.num_reqs, chosen.num_tokens, graphs.get(chosen))

    def _given_batch(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def given(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            self._batch = input_batch
            return prepare(input_batch, *args, **kwargs)

        return given

    def _remember_captured(self, graph: RecordedCudaGraph) -> None:
        self._graph = graph
        self._remember_read(graph)

    def graph_key(self) -> Hashable:
        return self._graph

    def _took_no_graph(self) -> bool:
        return self._dispatched.graph is None

    def _without_graphs(self) -> contextlib.AbstractContextManager[None]:
        """What the manager does before it has captured any."""
        manager = self.runner.cudagraph_manager
        nothing: dict[Any, Any] = {}
        return replaced_names([manager], {"_graphs_captured": False, "graphs": nothing})

    def declined(self, batch: Batch) -> str:
        if knows_prompts() and (batch.cached_lens == 0).any():
            return _FIRST_TOKEN
        return super().declined(batch)

    def _dummy_rows(self) -> int:
        """All of them: `InputBatch.make_dummy` knows no padding."""
        return int(self._dispatched.rows)

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if self.ran_eagerly:
            return batch.raw_bs, batch.num_tokens
        return self._dispatched.rows, self._dispatched.tokens

    # What it was given and what came of it

    def _given(self) -> dict[str, torch.Tensor]:
        buffers = self.runner.input_buffers
        return {"input_ids": buffers.input_ids, "positions": buffers.positions}

    def static_buffers(self, key: Hashable) -> Mapping[str, torch.Tensor]:
        """Where nothing was built for a replay, the graph reads what it was captured with."""
        return self._read[key] if self._built is None else super().static_buffers(key)

    def _rows_of_the_engine(self) -> list[str]:
        names: list[str] = self._batch.req_ids
        return names

    def _hidden_states(self) -> torch.Tensor:
        state = self.runner.execute_model_state
        hidden: torch.Tensor = (
            state.hidden_states if hasattr(state, "hidden_states") else state[_EARLIER_HIDDEN]
        )
        return hidden

    def _host_side(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What builders read on the host, and what each request is answered with."""
        shown: dict[str, torch.Tensor] = {}
        lens = getattr(self._common, LENS_ON_HOST, None)
        if lens is not None:
            shown[LENS_ON_HOST] = lens
        if batch.raw_bs:
            shown |= self._answers() or {SAMPLED: self._sampled()}
            shown |= self._flags()
        return shown

    def _flags(self) -> dict[str, torch.Tensor]:
        """Of each request, in the batch's order; releases before 0.33 hand none over."""
        flags = getattr(self._common, "is_prefilling", None)
        if flags is None:
            return {}
        rows = self._rows_of_the_engine()
        return {"is_prefilling": flags[[rows.index(name) for name in self._step_done.rows]]}

    def _answer_given(self) -> Any:
        return self._answer.get_output()

    def _sampled(self) -> torch.Tensor:
        """The tokens that the server hands out, in the batch's order."""
        return answers_given(self._answer_given(), [*self._step_done.rows])[SAMPLED]

    # What outlives the step: a server reads it when the next step is on its way

    def keeps_outputs(self, mode: Mode) -> bool:
        return mode != "idle"

    def results(self) -> dict[str, torch.Tensor]:
        names = ("sampled_token_ids", "num_sampled_tokens_np")
        return {name: torch.from_numpy(getattr(self._answer, name)) for name in names}
