"""Stands in for torch's compiler in piecewise prefill graphs.

The engine has the transformer body compiled with a backend of its own, which cuts it at attention
and captures each piece (sglang compilation/backend.py, cuda_piecewise_backend.py). Compiling takes
seconds for each config, and the compiler steps aside where torch's dispatch is watched. So the body
runs as it is: cut at the operators that the engine registered for that, captured and replayed when
`CUDAPiecewiseBackend.__call__` would. Who calls it, when, with which buffers, is up to the engine.

What the compiler would add stays untested: fused kernels, guards, recompilation.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fuzzgraph.ports import CapturedGraph
from fuzzgraph.relays import relay
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module

_OPERATORS = (
    "sglang.srt.layers.radix_attention",
    "sglang.srt.layers.radix_linear_attention",
    "sglang.srt.models.nemotron_h",
)
"""Modules with operators that split a body; a model's is asked once a target has loaded it."""
_SPLIT = "sglang.srt.compilation.compilation_config"
_BACKEND = "sglang.srt.compilation.cuda_piecewise_backend"
_WARMING = ("is_in_torch_compile_warmup", "is_in_pcg_torch_compile")
"""How the backend asks whether the compiler only warms up; by release."""


@dataclass(slots=True)
class _Pieces:
    """The captured body of one token count."""

    ran: bool = False
    """Whether it ran once before it is captured, as the backend wants it."""
    captured: bool = False
    steps: list[Callable[[], object]] = field(default_factory=list)
    output: Any = None


class SplitForward:
    """The body as compiled: pieces captured for each captured token count.

    Args:
        body: the forward to split, a bound method.
        sizes: token counts that get graphs.
        segments: records the pieces.
        on_capture: called with each count as soon as its pieces are captured.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        sizes: Sequence[int],
        segments: CudaGraphs,
        on_capture: Callable[[int], None],
    ) -> None:
        self._body = body
        self._pieces = {size: _Pieces() for size in sizes}
        self._segments = segments
        self._on_capture = on_capture

    def __call__(self, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """One forward over as many tokens as `input_ids` has, or embeddings in their place."""
        size = len(kwargs["input_embeds"] if input_ids is None else input_ids)
        pieces = self._pieces.get(size)
        if pieces is None or _warming():
            return self._body(input_ids, *args, **kwargs)
        if pieces.captured:
            for step in pieces.steps:
                step()
            return pieces.output
        if not pieces.ran:
            pieces.ran = True
            return self._body(input_ids, *args, **kwargs)
        assert engine_module(_BACKEND).get_pcg_capture_stream() is not None, (
            "captures at start only"
        )
        self._segments.begin_forward(size)
        with _Cutting(self._segments, pieces.steps) as cutting:
            pieces.output = self._body(input_ids, *args, **kwargs)
            cutting.finish()
        pieces.captured = True
        self._on_capture(size)
        return pieces.output


def _warming() -> bool:
    backend = engine_module(_BACKEND)
    return any(getattr(backend, name)() for name in _WARMING if hasattr(backend, name))


class _Cutting:
    """While a body is captured: its operators that split it end one piece and begin the next."""

    current: _Cutting | None = None

    def __init__(self, segments: CudaGraphs, steps: list[Callable[[], object]]) -> None:
        self._segments = segments
        self._steps = steps
        self._piece = contextlib.ExitStack()

    def __enter__(self) -> _Cutting:
        _Cutting.current = self
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        _Cutting.current = None
        self._piece.close()

    @relay
    def cut(self, operator: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Between two pieces the operator runs, now and at every replay."""
        self._piece.close()
        run = partial(operator, *args, **kwargs)
        out = run()
        assert out is None, "an operator that splits writes into what it is given"
        self._steps.append(run)
        self._begin()
        return out

    def finish(self) -> None:
        """The last piece ends."""
        self._piece.close()

    def _begin(self) -> None:
        captured: CapturedGraph[None] = self._piece.enter_context(self._segments.record())
        self._steps.append(captured.replay)


def _cutting(operator: Callable[..., Any]) -> Callable[..., Any]:
    @relay
    def call(*args: Any, **kwargs: Any) -> Any:
        if _Cutting.current is None:
            return operator(*args, **kwargs)
        return _Cutting.current.cut(operator, args, kwargs)

    return call


@contextlib.contextmanager
def splitting() -> Iterator[None]:
    """Meanwhile the engine's splitting operators are known to who captures."""
    names = [name.partition(".")[2] for name in engine_module(_SPLIT).SPLIT_OPS]
    with contextlib.ExitStack() as stack:
        for module in map(engine_module, filter(sys.modules.__contains__, _OPERATORS)):
            known = [name for name in names if hasattr(module, name)]
            splits = {name: _cutting(getattr(module, name)) for name in known}
            stack.enter_context(replaced_names([module], splits))
        yield
