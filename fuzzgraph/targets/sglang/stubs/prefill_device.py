"""While a prefill runner of the engine captures or replays: what stands in for the device.

Replaced by name, where the engine looks them up, are the stream, the class of a device's graph, and
for piecewise graphs torch's compiler. Views that let a graph's pool take memory back become the
tensors themselves: the graph engine keeps what a graph has touched.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fuzzgraph.targets.offline.cuda_graph import POOL, CudaGraphs, RecordedCudaGraph
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.piecewise_compiler import SplitForward, splitting

_COMPILE = "sglang.srt.compilation.compile"
_POOLS = (
    "sglang.srt.model_executor.cuda_graph_runner",
    "sglang.srt.model_executor.piecewise_cuda_graph_runner",
    "sglang.srt.model_executor.runner_utils.pool",
)
"""Where releases keep the handle of the pool that graphs share."""
_WEAK_VIEWS = (
    "sglang.srt.compilation.weak_ref_tensor",
    "sglang.srt.model_executor.runner_backend_utils.weak_ref_tensor",
)


class PrefillDevice:
    """What one runner finds around it.

    Args:
        module: of the runner.
        sizes: token counts that get graphs.
        segments: records the pieces of its graphs.
        on_capture: called by a split body with each count as soon as it is captured.
        splits: whether torch's compiler splits the body, and not the engine by itself.
    """

    def __init__(
        self,
        module: Any,
        *,
        sizes: Sequence[int],
        segments: CudaGraphs,
        on_capture: Callable[[int], None],
        splits: bool,
    ) -> None:
        self._module = module
        self._sizes = sizes
        self._segments = segments
        self._on_capture = on_capture
        self.splits = splits

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Around the engine's constructor."""
        _without_weak_views()
        _give_handles()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.replaying())
            stack.enter_context(replaced_names([self._module], self._names()))
            graph = {"CUDAGraph": self._segments.graph_class(), "graph": self._whole}
            stack.enter_context(replaced_names([torch.cuda, torch.cpu], graph))
            if self.splits:
                compiling = {"torch": _Torch(self._compile)}
                stack.enter_context(replaced_names([engine_module(_COMPILE)], compiling))
                stack.enter_context(splitting())
            yield

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Around a replay; where there is a device, its stream is the current one."""
        if torch.cuda.is_available():
            yield
            return
        with replaced_names([torch.cuda], {"current_stream": lambda *_: None}):
            yield

    def _names(self) -> dict[str, Any]:
        return {
            "graph_capture": self._no_stream,
            "get_or_create_global_graph_capture_stream": lambda *_: None,
            "set_torch_compile_config": lambda: None,
        }

    @contextlib.contextmanager
    def _no_stream(self, *_: Any, **__: Any) -> Iterator[Any]:
        """A name for the stream where the engine asks whether it captures on one."""
        yield Stub(stream=POOL if self.splits else None)

    def _whole(
        self, cuda_graph: RecordedCudaGraph, *args: Any, **more: Any
    ) -> contextlib.AbstractContextManager[None]:
        """In place of `torch.cuda.graph`, by which a full graph captures all at once."""
        return self._segments.capture(cuda_graph, *args, **more)

    def _compile(self, body: Callable[..., Any], **_: Any) -> SplitForward:
        return SplitForward(body, self._sizes, self._segments, self._on_capture)


class _Torch:
    """torch, as the engine's module sees it that installs a compiled body."""

    def __init__(self, compile_body: Callable[..., Any]) -> None:
        self.compile = compile_body
        # What is asked of the compiler's inside, for a body that it never sees.
        self._dynamo = Stub(
            convert_frame=Stub(register_bytecode_hook=lambda _: None),
            eval_frame=Stub(remove_from_cache=lambda _: None),
            maybe_mark_dynamic=lambda *_: None,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _without_weak_views() -> None:
    """The engine's own need a GPU at import."""
    if torch.cuda.is_available():
        return
    for name in _WEAK_VIEWS:
        if name not in sys.modules and has_module(name):
            module = types.ModuleType(name)
            module.__dict__["weak_ref_tensors"] = lambda tensors: tensors
            sys.modules[name] = module


def _give_handles() -> None:
    """Of the shared pool, which the graph engine has."""
    # The engine asks the module of the session's device.
    for name, value in (("graph_pool_handle", lambda: POOL), ("graph", None)):
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, value)
    for module in filter(has_module, _POOLS):
        engine_module(module).set_global_graph_memory_pool(POOL)
