"""The real V1 `GPUModelRunner` with its captured graphs, and one attention backend on it.

Whole: the persistent batch, its inputs, the dispatcher, the metadata builder, capture, padded
replay, idle batches, sampling. `prepare_replay` does nothing, because the runner prepares, replays
and reads in one call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.row_mixing import mixed_outputs, split_mixed
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs, RecordedCudaGraph
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.session import GraphSession
from fuzzgraph.targets.vllm.attention_model import OneLayer
from fuzzgraph.targets.vllm.configuration import vllm_config
from fuzzgraph.targets.vllm.fields import DUMMY_PREFILLING, runner_fields
from fuzzgraph.targets.vllm.kv_cache import kv_planes, open_kv_cache
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.served_requests import ServedRequests
from fuzzgraph.targets.vllm.stubs.platform import choose_backend, engine_runs
from fuzzgraph.targets.vllm.stubs.process import Workspace, join_groups
from fuzzgraph.world import Batch

RUNNER = "vllm.v1.worker.gpu_model_runner"
_METADATA = ("slot_mapping", "seq_lens", "block_table", "query_start_loc")
"""Attributes of a backend's metadata, under the names of the fields."""


class _Graphs(CudaGraphs):
    """Tells the session of each graph, once it is captured."""

    def __init__(self, graphs: GraphEngine, captured: Callable[[], None]) -> None:
        super().__init__(graphs, "decode")
        self._captured = captured

    @contextlib.contextmanager
    def capture(self, graph: RecordedCudaGraph, *_: Any, **__: Any) -> Iterator[None]:
        with super().capture(graph):
            yield
        self._captured()


class RunnerSession(GraphSession):
    """One runner with its model and captured graphs.

    Args:
        backend: dotted path of the attention backend's class.
    """

    def __init__(self, config: EngineConfig, graphs: GraphEngine, backend: str) -> None:
        super().__init__()
        self._config = config
        self._cuda_graphs = _Graphs(graphs, self._remember_captured)
        self._read: dict[Hashable, dict[str, torch.Tensor]] = {}
        self._common: Any = None
        self._built: Any = None
        self._dispatched: Any = None
        self._rows: dict[str, int] = {}
        self._next: list[int] = []
        with engine_runs():
            self.vllm_config = vllm_config(config)
            join_groups(self.vllm_config)
            choose_backend(backend)
            self._workspace = Workspace(graphs.device)
            OneLayer.opening = config
            with self._configured():
                module = engine_module(RUNNER)
                self.runner = module.GPUModelRunner(self.vllm_config, graphs.device)
                self.runner.load_model()
                open_kv_cache(self.runner, self.vllm_config, config)
            self.model: OneLayer = self.runner.get_model()
            self.model.to_sample = self._to_sample
        self.fields = runner_fields()
        self.pools = Pools(kv_planes=kv_planes(self.runner.kv_caches[0], config))
        self.served = ServedRequests(self._sampled_by)
        self._spy()

    # Around the engine

    @contextlib.contextmanager
    def _configured(self) -> Iterator[None]:
        with engine_module("vllm.config").set_current_vllm_config(self.vllm_config):
            yield

    @contextlib.contextmanager
    def _engine(self) -> Iterator[None]:
        """Sessions share the process; each brings its own workspace and graphs."""
        with engine_runs(), replaced_names([torch.cuda], self._cuda_graphs.names()):
            self._workspace.use()
            yield

    def _spy(self) -> None:
        """Take down what the dispatcher chose and what the backend's builder made of it."""
        dispatcher = self.runner.cudagraph_dispatcher
        dispatch = dispatcher.dispatch

        def dispatched(*args: Any, **kwargs: Any) -> Any:
            self._dispatched = dispatch(*args, **kwargs)
            return self._dispatched

        dispatcher.dispatch = dispatched
        (group,) = self.runner.attn_groups[0]
        self.builder = group.get_metadata_builder(0)
        for name in ("build", "build_for_cudagraph_capture"):
            setattr(self.builder, name, self._kept(getattr(self.builder, name)))

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            named = kwargs.get("common_attn_metadata")
            common = args[-1] if named is None else named
            self._built = build(*args, **kwargs)
            self._common = common
            return self._built

        return kept

    def _sampled_by(self, name: str) -> int:
        return len(self.runner.requests[name].output_token_ids)

    def _to_sample(self) -> list[int]:
        """The token that each request goes on with, in the engine's order of rows."""
        return [self._next[self._rows[name]] for name in self.runner.input_batch.req_ids]

    # Capture

    def capture(self) -> None:
        self.capturing = True
        with self._engine(), self._configured():
            self.runner.capture_model()
        self.capturing = False

    def _remember_captured(self) -> None:
        key = self.graph_key()
        self._read[key] = {**self._given(), **self._metadata()}
        self.remember(key)

    def _metadata(self) -> dict[str, torch.Tensor]:
        """What the backend's kernels read, whole, as its builder made it last."""
        return {name: getattr(self._built, name) for name in _METADATA}

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
        with self._engine():
            self._step(batch)

    def eager(self, batch: Batch) -> None:
        """What the dispatcher does where it knows no graph."""
        dispatcher = self.runner.cudagraph_dispatcher
        with self._engine(), replaced_names([dispatcher], {"keys_initialized": False}):
            self._step(batch)

    def _step(self, batch: Batch) -> None:
        self._common = self._built = self.model.shown = None
        scheduled, self._rows = self.served.step(batch)
        self._next = batch.next_tokens.tolist()
        self.runner.execute_model(scheduled)
        if batch.mode == "idle":
            self._dummy_batch()
        else:
            self.runner.sample_tokens(None)
        none = engine_module("vllm.config").CUDAGraphMode.NONE
        self.ran_eagerly = self._dispatched[0] == none

    def _dummy_batch(self) -> None:
        """As `gpu_worker.py execute_dummy_batch` has it, on a rank that has nothing to run."""
        tokens = getattr(self.runner, "uniform_decode_query_len", 1)
        self.runner._dummy_run(tokens, uniform_decode=True)

    # What was seen

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if self.ran_eagerly:
            return batch.raw_bs, batch.num_tokens
        return self._dispatched[1].num_reqs, self._dispatched[1].num_tokens

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        index = self.runner.input_batch.req_id_to_index
        seen.order = [index[name] for name in self._rows]
        if seen.outputs:
            seen.shown_tokens = batch.num_tokens
        if batch.mode == "idle" and not self.ran_eagerly:
            seen.dummy_rows = getattr(self.runner, "uniform_decode_query_len", 1)
        return seen

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
        """What builders read on the host; older releases have none."""
        flags = getattr(self._common, "is_prefilling", None)
        name = DUMMY_PREFILLING if batch.mode == "idle" else "is_prefilling"
        return {} if flags is None else {name: flags}

    def _cut(
        self, read: Mapping[str, torch.Tensor], rows: int, tokens: int
    ) -> dict[str, torch.Tensor]:
        sizes = {"tokens": tokens, "requests": rows, "indptr": rows + 1, "page_table": rows}
        return {
            field.name: read[field.name][: sizes[field.axis]].clone()
            for field in self.fields
            if read.get(field.name) is not None
        }

    def plan(self) -> dict[str, object]:
        if self._common is None:
            return {}
        names = ("max_query_len", "max_seq_len", "num_reqs", "num_actual_tokens")
        return {name: getattr(self._common, name) for name in names}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return () if mode == "idle" else ("attention", *mixed_outputs(self._config))

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """The rows that the runner took logits of."""
        if self.model.shown is None:
            return {}
        return split_mixed(self.model.shown, self._config)

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
