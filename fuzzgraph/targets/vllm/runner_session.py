"""The real V1 `GPUModelRunner` with its captured graphs, and one attention backend on it.

Whole: the persistent batch, its inputs, the dispatcher, the metadata builder, capture, padded
replay, idle batches, sampling. `prepare_replay` does nothing, because the runner prepares, replays
and reads in one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode, attention_outputs
from fuzzgraph.errors import EngineError
from fuzzgraph.kernel_models.launch import beside_the_step
from fuzzgraph.observation import Field, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.row_mixing import mixed_outputs
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs, RecordedCudaGraph
from fuzzgraph.targets.offline.demands import demand_instance
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.second_layer import split_layers
from fuzzgraph.targets.offline.session import GraphSession
from fuzzgraph.targets.vllm.answers import answers_given, answers_told
from fuzzgraph.targets.vllm.attention_model import OneLayer
from fuzzgraph.targets.vllm.backend_metadata import read_by_kernels
from fuzzgraph.targets.vllm.configuration import (
    NO_DRAFTS,
    NOT_COMPILED,
    max_model_len,
    vllm_config,
)
from fuzzgraph.targets.vllm.data_ranks import OtherRanks
from fuzzgraph.targets.vllm.fields import DUMMY_PREFILLING, page_list_fields, runner_fields
from fuzzgraph.targets.vllm.handed import watch_handover
from fuzzgraph.targets.vllm.kv_cache import open_kv_cache
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.served_requests import Scheduled, ServedRequests
from fuzzgraph.targets.vllm.sliding_window import (
    metadata_of_groups,
    runner_pools,
    with_groups,
)
from fuzzgraph.targets.vllm.stubs.platform import HOPPER, choose_backend, engine_runs
from fuzzgraph.targets.vllm.stubs.process import (
    BackendBuffers,
    Workspace,
    join_groups,
    run_dummy_batch,
)
from fuzzgraph.world import FIRST_PAGE, Batch

RUNNER = "vllm.v1.worker.gpu_model_runner"


class RunnerGraphs(CudaGraphs):
    """Tells the session of each graph, once it is captured."""

    def __init__(self, graphs: GraphEngine, captured: Callable[[RecordedCudaGraph], None]) -> None:
        super().__init__(graphs, "decode")
        self._captured = captured

    @contextlib.contextmanager
    def capture(self, graph: RecordedCudaGraph, *_: Any, **__: Any) -> Iterator[None]:
        with super().capture(graph):
            yield
        self._captured(graph)


class RunnerSession(GraphSession):
    """One runner with its model and captured graphs.

    Args:
        backend: dotted path of the attention backend's class.
        attention: of `--attention-config`.
        capability: of the device.
    """

    runner_module = RUNNER
    model_class: type[OneLayer] = OneLayer
    served_kind: type[ServedRequests] = ServedRequests
    async_scheduling = False
    """Whether the server plans a step before it has read what the last one sampled."""

    @property
    def overlaps(self) -> bool:
        """Without it the server waits for a step before it prepares the next one."""
        return self.async_scheduling

    cudagraph_mode: str | None = None
    """Of `--compilation-config`; full graphs of the case's mode by default."""
    compilation_mode = NOT_COMPILED
    drafting = NO_DRAFTS
    """In mode draft."""
    keys_of_a_part = 0
    """See `VllmTarget`."""
    additional_config: Mapping[str, str] = MappingProxyType({})
    """Of `--additional-config`: what engines ask about one kind of layer."""

    def __init__(
        self,
        config: EngineConfig,
        graphs: GraphEngine,
        backend: str,
        attention: Mapping[str, Any] = MappingProxyType({}),
        capability: tuple[int, int] = HOPPER,
    ) -> None:
        super().__init__()
        self._config = config
        self._ranks = OtherRanks(config, self.runner_module)
        self._cuda_graphs = self._make_graphs(graphs)
        self._read: dict[Hashable, dict[str, torch.Tensor]] = {}
        self._common: Any = None
        self._built: Any = None
        self._built_of: dict[int, Any] = {}
        self._dispatched: Any = None
        self._answer: Any = None
        self._scheduled: Scheduled | None = None
        self._hidden: torch.Tensor | None = None
        with self._server():
            self._attention = attention
            self.vllm_config = self._make_config(config)
            join_groups(lambda: self._make_config(config, alone=True))
            choose_backend(backend, capability)
            self._workspace = Workspace(graphs.device)
            self._buffers = BackendBuffers(backend)
            self.model_class.opening = config
            with self._configured(), self._buffers.inside():
                module = engine_module(self.runner_module)
                with self._ranks.opening():
                    self.runner = module.GPUModelRunner(self.vllm_config, graphs.device)
                self.runner.load_model()
                self.runner.get_model().take_scales()
                self._model_loaded()
                open_kv_cache(self.runner, self.vllm_config, self._blocks())
                self._buffers.make()
            self.model: OneLayer = self.runner.get_model()
            self.model.to_sample = self._to_sample
        self.fields = (*with_groups(self._runner_fields(), config), *page_list_fields())
        self.pools = self._runner_pools()
        self.served = self.served_kind()
        self._spy()
        self._watch_handover(graphs)

    def _make_config(self, config: EngineConfig, *, alone: bool = False) -> Any:
        return vllm_config(
            config,
            self._attention,
            self.async_scheduling,
            self.model_class.architecture,
            self.cudagraph_mode,
            self.compilation_mode,
            self.additional_config,
            alone,
            self.drafting,
        )

    def _model_loaded(self) -> None:
        """What an executor does once its worker has the model."""

    def _make_graphs(self, graphs: GraphEngine) -> RunnerGraphs:
        return RunnerGraphs(graphs, self._remember_captured)

    def _runner_fields(self) -> tuple[Field, ...]:
        return runner_fields(self.runner, self._config)

    def _watch_handover(self, graphs: GraphEngine) -> None:
        watch_handover(self, self.runner, graphs)

    def _runner_pools(self) -> Pools:
        return runner_pools(self.runner.kv_caches, self._config)

    def _blocks(self) -> int:
        """Blocks of the cache, reserved and trap ones included."""
        return FIRST_PAGE + self._config.kv_pool_pages

    def _in_blocks(self, batch: Batch) -> Batch:
        """The batch with the cache's blocks of each request as its pages."""
        return batch

    # Around the engine

    def _server(self) -> contextlib.AbstractContextManager[None]:
        """What the process of a server has, besides a device."""
        return engine_runs()

    @contextlib.contextmanager
    def _configured(self) -> Iterator[None]:
        with engine_module("vllm.config").set_current_vllm_config(self.vllm_config):
            yield

    @contextlib.contextmanager
    def _engine(self) -> Iterator[None]:
        """Sessions share the process; each brings its own workspace and graphs."""
        names = self._cuda_graphs.names()
        with self._server(), replaced_names([torch.cuda], names), self._buffers.inside():
            self._workspace.use()
            yield

    def _spy(self) -> None:
        """Take down what the dispatcher chose and what the backend's builder made of it."""
        dispatcher = self.runner.cudagraph_dispatcher
        dispatch = dispatcher.dispatch
        self._ranks.dispatch = dispatch

        def dispatched(*args: Any, **kwargs: Any) -> Any:
            self._ranks.asked(**kwargs)
            self._dispatched = dispatch(*args, **kwargs)
            return self._dispatched

        dispatcher.dispatch = dispatched
        self._spy_on_builder()

    def _spy_on_builder(self) -> None:
        builders = [group.get_metadata_builder(0) for (group,) in self.runner.attn_groups]
        self.builder, *others = builders
        for name in ("build", "build_for_cudagraph_capture"):
            setattr(self.builder, name, self._kept(getattr(self.builder, name)))
            for number, other in enumerate(others, start=1):
                setattr(other, name, self._kept_of(number, getattr(other, name)))

    def _kept_of(self, group: int, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            self._built_of[group] = build(*args, **kwargs)
            return self._built_of[group]

        return kept

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            named = kwargs.get("common_attn_metadata")
            common = args[-1] if named is None else named
            self._built = build(*args, **kwargs)
            self._common = common
            return self._built

        return kept

    def _to_sample(self) -> list[int]:
        """The tokens that the model predicts, in the engine's order of rows."""
        sampled = self._step_done.sampled
        return [token for name in self._rows_of_the_engine() for token in sampled[name]]

    @property
    def _step_done(self) -> Scheduled:
        """The last step, or the one that runs."""
        assert self._scheduled is not None, "no step has run"
        return self._scheduled

    def _rows_of_the_engine(self) -> list[str]:
        """The engine's id of each live row, in its order."""
        names: list[str] = self.runner.input_batch.req_ids
        return names

    # Capture

    def capture(self) -> None:
        self.capturing = True
        with self._engine(), self._configured(), self._ranks.beside(None):
            self.runner.capture_model()
        self.capturing = False
        if not self._read:
            sizes = list(self._config.capture_bs)
            raise EngineError(f"capture_model captured no graph, where a server has sizes {sizes}")

    def _remember_captured(self, graph: RecordedCudaGraph) -> None:
        self._remember_read(self.graph_key())

    def _remember_read(self, key: Hashable) -> None:
        """Keep what the graph captured just now reads."""
        self._read[key] = {**self._given(), **self._metadata()}
        self.remember(key)

    def _metadata(self) -> dict[str, torch.Tensor]:
        """What the backend's kernels read, whole, as its builder made it last."""
        return {**read_by_kernels(self._built), **metadata_of_groups(self._built_of)}

    def _given(self) -> dict[str, torch.Tensor]:
        """The model's inputs, whole."""
        runner = self.runner
        return {
            "input_ids": _on_device(runner.input_ids),
            "positions": _on_device(runner.positions),
        }

    def graph_key(self) -> Hashable:
        """The descriptor that the dispatcher chose last."""
        key: Hashable = self._dispatched[1]
        return key

    def static_buffers(self, key: Hashable) -> Mapping[str, torch.Tensor]:
        return {**self._given(), **self._metadata()}

    # Steps

    def prepare_replay(self, batch: Batch) -> None:
        """The runner does all in one call."""

    def replay(self, batch: Batch) -> None:
        with self._engine(), self._ranks.beside(batch):
            self._step(batch)

    def eager(self, batch: Batch) -> None:
        with self._engine(), self._without_graphs(), self._ranks.beside(batch):
            self._step(batch)

    def _without_graphs(self) -> contextlib.AbstractContextManager[None]:
        """What the dispatcher does where it knows no graph."""
        dispatcher = self.runner.cudagraph_dispatcher
        return replaced_names([dispatcher], {"keys_initialized": False})

    def _step(self, batch: Batch) -> None:
        self._common = self._built = self._hidden = self.model.shown = None
        self._scheduled = self.served.step(self._in_blocks(batch))
        self.runner.execute_model(self._scheduled.output)
        if batch.mode == "idle":
            run_dummy_batch(self.runner)
        else:
            self._hidden = self._hidden_states()[: batch.num_tokens].clone()
            self._answer = self.runner.sample_tokens(None)
        self.ran_eagerly = self._took_no_graph()

    def _tell(self, steps: Iterable[Scheduled]) -> None:
        """Have the runner know of requests, and leave their states and keys as they are."""
        pools = (*self.pools.states, *self.pools.kv_planes)
        kept = [(tensor, tensor.clone()) for tensor in pools]
        with self._without_graphs(), beside_the_step("requests that the runner has to know"):
            for scheduled in steps:
                self._scheduled = scheduled
                self.runner.execute_model(scheduled.output)
                self.runner.sample_tokens(None)
        for watch in self._watches:
            watch.begin()
        for tensor, values in kept:
            tensor.copy_(values)

    def _hidden_states(self) -> torch.Tensor:
        """What the model gave for the step that is not sampled yet."""
        hidden: torch.Tensor = self.runner.execute_model_state.hidden_states
        return hidden

    def _took_no_graph(self) -> bool:
        none = engine_module("vllm.config").CUDAGraphMode.NONE
        return bool(self._dispatched[0] == none)

    # What was seen

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if self.ran_eagerly:
            return batch.raw_bs, batch.num_tokens
        return self._dispatched[1].num_reqs, self._dispatched[1].num_tokens

    def declined(self, batch: Batch) -> str:
        drafts = self._config.draft_tokens
        if batch.mode == "target_verify" and (batch.new_lens != drafts).any():
            return f"cudagraph_dispatcher.py: decode graphs are for {drafts} tokens of each request"
        return ""

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        index = {name: row for row, name in enumerate(self._rows_of_the_engine())}
        seen.order = [index[name] for name in self._step_done.rows]
        seen.told = {"is_prefilling": self._prefilling(batch)}
        if self._verifies:
            seen.told |= answers_told(self._step_done)
        if seen.outputs:
            seen.shown_tokens = batch.num_tokens
        if batch.mode == "idle" and not self.ran_eagerly:
            seen.dummy_rows = self._dummy_rows()
        return seen

    def _prefilling(self, batch: Batch) -> list[int]:
        """Whether the engine takes each row for one that computes its prompt."""
        return self._step_done.in_prompt

    def _dummy_rows(self) -> int:
        """Rows of an idle rank's batch that count as live ones."""
        return 1

    def used_buffers(self, batch: Batch, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        """What the graph was captured with, as far as this step's rows and tokens go."""
        return self._cut({**self._read[self.graph_key()], **self._host_side(batch)}, rows, tokens)

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not self.ran_eagerly or self._common is None:
            return {}
        rows, tokens = self.padded_size(batch)
        read = {**self._given(), **self._metadata(), **self._host_side(batch)}
        return self._cut(read, rows, tokens)

    def _host_side(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What builders read on the host, of which older releases have none, and the answer."""
        flags = getattr(self._common, "is_prefilling", None)
        name = DUMMY_PREFILLING if batch.mode == "idle" else "is_prefilling"
        shown = {} if flags is None else {name: flags}
        if self._ranks.counts is not None and not self.ran_eagerly:
            shown["num_tokens_across_dp"] = self._ranks.counts
        return {**shown, **self._answers()} if batch.raw_bs else shown

    @property
    def _verifies(self) -> bool:
        return self._config.modes[0] == "target_verify"

    def _answers(self) -> dict[str, torch.Tensor]:
        """Of a verify, in the batch's order."""
        if not self._verifies:
            return {}
        return answers_given(self._answer_given(), [*self._step_done.rows])

    def _answer_given(self) -> Any:
        """`ModelRunnerOutput` of the last step."""
        return self._answer

    def _cut(
        self, read: Mapping[str, torch.Tensor], rows: int, tokens: int
    ) -> dict[str, torch.Tensor]:
        sizes = {"tokens": tokens, "requests": rows, "indptr": rows + 1, "page_table": rows}
        if (offsets := read.get("paged_kv_indptr")) is not None:
            sizes["indices"] = int(offsets[rows])
        shown = [field for field in self.fields if read.get(field.name) is not None]
        for name in (field.name for field in shown):
            demand_instance(read[name], torch.Tensor, name, "what kernels read")
        return {field.name: read[field.name][: sizes.get(field.axis)].clone() for field in shown}

    def plan(self) -> dict[str, object]:
        if self._common is None:
            return {}
        names = ("max_query_len", "max_seq_len", "num_reqs", "num_actual_tokens")
        plan = {name: getattr(self._common, name) for name in names}
        if self.keys_of_a_part:
            # A graph has the longest row of its capture, which `_dummy_run` makes as long as any.
            longest = plan["max_seq_len"] if self.ran_eagerly else max_model_len(self._config)
            plan["parts"] = longest // self.keys_of_a_part
        return plan

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        names = (*attention_outputs(self._config), *mixed_outputs(self._config))
        return () if mode == "idle" else names

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """All live tokens; those that the runner took logits of as it took them."""
        if self._hidden is None or self.model.shown is None:
            return {}
        return split_layers(self._with_logits_rows(self._hidden, self.model.shown), self._config)

    def _with_logits_rows(self, hidden: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        """In place of the tokens that a sampler needs, what the runner picked out for it."""
        scheduled, end = self._step_done, 0
        needed: list[int] = []
        for name in self._rows_of_the_engine():
            end += scheduled.output.num_scheduled_tokens[name]
            needed += range(end - len(scheduled.sampled[name]), end)
        if len(taken) != len(needed):  # then its shape tells
            return taken
        return hidden.index_copy(0, torch.tensor(needed, device=hidden.device), taken)

    @property
    def roots(self) -> Mapping[str, object]:
        return {"runner": self.runner, "model": self.model, "served": self.served}

    def close(self) -> None:
        self.vllm_config.compilation_config.static_forward_context.clear()
        self.runner.kv_caches.clear()


def _on_device(buffer: Any) -> torch.Tensor:
    """The device's part of a pair of host and device, or the tensor itself."""
    tensor: torch.Tensor = getattr(buffer, "gpu", buffer)
    return tensor
