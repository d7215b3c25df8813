"""Traces every operation and kernel launch of an engine, without guarding its memory.

The repro exporter prints such traces as Python. `RecordedOp` is also what a captured graph keeps,
so one printer serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.kernel_models.launch import ModelKernel, current_route, routed
from fuzzgraph.memory.launches import Launch, LaunchHook
from fuzzgraph.memory.operator_facts import python_of, tensors_in
from fuzzgraph.memory.source_lines import innermost_source
from fuzzgraph.relays import relay


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOp:
    """One operation or kernel launch, as it was issued."""

    name: str
    """`aten.index_select.default`, or the kernel's name for a launch."""
    func: Any
    """Operator overload, or the launched kernel."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[torch.Tensor, ...]
    """Results, in order; those of an in-place operation are its own arguments."""
    source: str
    """Line of the engine that issued it: `file.py:123 in function`."""
    kind: str = "operation"
    """`operation`, `launch` of a Triton kernel, or `model`: the launch of a kernel's model."""
    grid: Any = None
    """Launch grid of a kernel."""
    replayed: bool = field(default=True)
    """Whether a replay runs it; views and `empty` do no work on a device."""


class _Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, callback: Callable[[RecordedOp], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._callback = callback

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would wrap the mode, which imports its compiler."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        python = python_of(func, _backend_of(args))
        if python is not None:
            with self:
                return func._op_dk(python, *args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        results = out if isinstance(out, (tuple, list)) else (out,)
        outputs = tuple(result for result in results if isinstance(result, torch.Tensor))
        source = innermost_source()
        self._callback(RecordedOp(str(func), func, args, dict(kwargs or {}), outputs, source))
        return out


def _backend_of(args: tuple[Any, ...]) -> str:
    """The dispatch key of the device that an operation works on."""
    devices = (tensor.device.type for tensor in tensors_in(args))
    found: str = torch._C._dispatch_key_for_device(next(devices, "cpu"))
    return found


def _nothing(op: RecordedOp) -> None:
    """What `tracing` does before a launch, unless told otherwise."""


@contextmanager
def tracing(
    callback: Callable[[RecordedOp], None], before: Callable[[RecordedOp], None] = _nothing
) -> Iterator[None]:
    """Report every dispatched operation and interpreted launch; allocates nothing in the arena.

    Args:
        callback: gets each one after it ran.
        before: gets each launch before it runs, too.
    """

    @relay
    def launched(launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        op = launched_op(executor, args, kwargs)
        # The interpreter copies arguments by torch operations, which are not the engine's.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            before(op)
            result = launch(executor, *args, **kwargs)
        callback(op)
        return result

    run_model = current_route()

    @relay
    def launched_model(kernel: ModelKernel, **arguments: Any) -> None:
        op = launched_op(kernel, (), arguments)
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            before(op)
            run_model(kernel, **arguments)
        callback(op)

    hook = LaunchHook()
    hook.install(launched)
    try:
        with _Trace(callback), routed(launched_model):
            yield
    finally:
        hook.remove()


def launched_op(executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedOp:
    """The record of the launch of an interpreted kernel, or of a kernel's model."""
    model = isinstance(executor, ModelKernel)
    return RecordedOp(
        name=executor.name if model else getattr(executor.fn, "__name__", str(executor.fn)),
        func=executor.fn,
        args=args,
        kwargs=dict(kwargs),
        outputs=(),
        source=innermost_source(),
        kind="model" if model else "launch",
        grid=executor.grid,
    )
