"""While a runner of the engine opens and captures: what stands in for the device around it.

Padding, sizes and order stay the engine's. Replaced, in the modules that look them up, are the
stream, the object that captures (since 0.5.14 runners ask for one) and, only where a case captures
more rows than the request pool has and there is one rank, the filter on the capture sizes. A server
gets such sizes by rounding the pool up to the attention-TP size (sglang get_batch_sizes_to_capture,
PR 20978), which the engine does itself where a case has several ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import CapturedGraph, GraphEngine
from fuzzgraph.targets.offline.cuda_graph import RecordedCudaGraph
from fuzzgraph.targets.offline.demands import demand_key
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module

_BACKEND = "sglang.srt.model_executor.runner_backend.base_cuda_graph_backend"
_INPUTS = "sglang.srt.model_executor.input_buffers"
_MODES = "sglang.srt.model_executor.runner_utils.capture_mode"
_LABELS = ("variant_label", "attention_variant")
"""Of the engine's key of a graph: whether it has LoRA, and which keys its indexers score."""
_WARM_UPS = 2
"""As often as the engine's own full-graph backend runs a forward before it captures."""


def deferred_capture(base: Any) -> type:
    """A runner of the engine whose constructor does not capture: the session decides when."""

    class DeferredCapture(base):  # type: ignore[misc]
        may_capture = False

        def capture(self) -> None:
            if self.may_capture:
                super().capture()

    # What it lacks, the engine's constructor did not set (`execution.blame`).
    DeferredCapture.__module__ = base.__module__
    return DeferredCapture


def recorded(base: Any, graphs: GraphEngine, on_capture: Callable[[int], None], kind: str) -> type:
    """A runner up to 0.5.13 whose graphs are captured by `graphs`.

    Args:
        base: the engine's class.
        graphs, on_capture, kind: as for `backend_class`.
    """

    class Recorded(deferred_capture(base)):  # type: ignore[misc]
        def capture_one_batch_size(self, size: int, *args: Any, **kwargs: Any) -> Any:
            self.capturing = size
            return super().capture_one_batch_size(size, *args, **kwargs)

        def _create_device_graph(self) -> RecordedCudaGraph:
            return RecordedCudaGraph()

        _create_graph = _create_device_graph  # of the draft runners

        def _capture_graph(
            self, graph: RecordedCudaGraph, pool: Any, stream: Any, run_once_fn: Callable[[], Any]
        ) -> Any:
            with torch.no_grad():
                captured = graphs.capture(run_once_fn, key=f"{kind}/{self.capturing}")
            graph.captured = captured
            on_capture(self.capturing)
            return captured.outputs

        def _capture_init(self, run_once_fn: Callable[[], Any]) -> None:
            """The engine's own warm-up, without waiting for a device."""
            with replaced_names([torch.cuda], {"synchronize": lambda: None}):
                super()._capture_init(run_once_fn)

    Recorded.__module__ = base.__module__
    return Recorded


def forget_input_buffers() -> None:
    """Input buffers are shared by all runners of a process; sessions stand for processes."""
    getattr(engine_module(_INPUTS), "_forward_input_buffer_pool", {}).clear()


def graph_key_of(shape_key: Any) -> Hashable:
    """What a session calls the graph that the engine has under `shape_key`: its size, and where a
    size has several graphs a tuple of the size and what tells them apart."""
    # sglang runner/shape_key.py; what a release's key lacks, its graphs do not differ in.
    labels = [getattr(shape_key, name, None) for name in _LABELS]
    return (
        (shape_key.size, *labels) if any(label is not None for label in labels) else shape_key.size
    )


def size_of(key: Hashable) -> int:
    """Rows, or tokens, of the graph that has this key.

    >>> size_of(4), size_of((4, None, "candidate_all"))
    (4, 4)
    """
    size = key[0] if isinstance(key, tuple) else key
    assert isinstance(size, int)
    return size


def backend_class(graphs: GraphEngine, on_capture: Callable[[Any], None], kind: str) -> type:
    """A `BaseCudaGraphBackend` of this release that captures by `graphs`.

    Args:
        graphs: captures and replays.
        on_capture: called with the key of each graph (`graph_key_of`) as soon as it is captured.
        kind: names the graphs.
    """
    base: Any = engine_module(_BACKEND).BaseCudaGraphBackend

    class RecordedBackend(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.captured: dict[Any, CapturedGraph[Any]] = {}

        @contextlib.contextmanager
        def capture_session(self, stream: Any) -> Iterator[None]:
            yield

        def capture_one(
            self,
            shape_key: Any,
            forward_fn: Callable[[], Any],
            *_: Any,
            post_warmup_hook: Callable[[], None] | None = None,
            **__: Any,
        ) -> None:
            for _once in range(_WARM_UPS):
                forward_fn()
                if post_warmup_hook is not None:
                    post_warmup_hook()
            with _says_that_it_captures(True):
                captured = graphs.capture(forward_fn, key=f"{kind}/{_name_of(shape_key)}")
            self.captured[shape_key] = captured
            on_capture(graph_key_of(shape_key))

        def can_run(self, forward_batch: Any, shape_key: Any) -> bool:
            return shape_key in self.captured

        @contextlib.contextmanager
        def replay_session(self) -> Iterator[None]:
            yield

        def replay(self, shape_key: Any, static_forward_batch: Any, **_: Any) -> Any:
            captured = demand_key(self.captured, shape_key, "graph", "a replay")
            captured.replay()
            return captured.outputs

        def cleanup(self) -> None:
            self.captured.clear()

    return RecordedBackend


def _name_of(shape_key: Any) -> str:
    key = graph_key_of(shape_key)
    parts = key if isinstance(key, tuple) else (key,)
    return "/".join(str(part) for part in parts if part is not None)


@contextlib.contextmanager
def on_device(
    modules: Sequence[Any], config: EngineConfig, backend: Callable[[], Any]
) -> Iterator[None]:
    """Our backend, no stream, and the case's capture sizes.

    Args:
        modules: of the engine, in which names are replaced.
        config: of the case.
        backend: called by each runner that asks for one.
    """
    if not hasattr(torch.cpu, "is_current_stream_capturing"):
        torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]
    replaced: dict[str, Any] = {
        "resolve_decode_backend": lambda *_, **__: backend(),
        "graph_capture": _no_stream,
        "get_or_create_global_graph_capture_stream": lambda *_: None,
    }
    alone = config.attn_tp_size == 1 and not config.two_batch_overlap
    if alone and config.capture_bs[-1] > config.req_pool_size:
        replaced["get_batch_sizes_to_capture"] = lambda *_, **__: (list(config.capture_bs), [])
    with replaced_names(modules, replaced), _says_that_it_captures(False):
        yield


@contextlib.contextmanager
def _says_that_it_captures(answer: bool) -> Iterator[None]:
    """What the engine hears of its stream; on a GPU that says so itself."""
    if torch.cuda.is_available():
        yield
        return
    with replaced_names([torch.cuda], {"is_current_stream_capturing": lambda: answer}):
        yield


@contextlib.contextmanager
def _no_stream(*_: Any, **__: Any) -> Iterator[Any]:
    yield Stub(stream=None)


def capture_mode(runner_module: str) -> contextlib.AbstractContextManager[Any]:
    """The engine's own sign that it captures, which lies beside its decode runner at first."""
    module = engine_module(_MODES if has_module(_MODES) else runner_module)
    mode: contextlib.AbstractContextManager[Any] = module.model_capture_mode()
    return mode
