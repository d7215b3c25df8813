"""What a device graph asks of a device, and `torch.cuda` as the device that answers.

`emulated` has another one, without a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from fuzzgraph.errors import AdapterUnavailable, EngineError
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.memory.listener import Listener

# Bound here: while an engine captures, torch.cuda holds stand-ins of these names that end here.
_CUDAGraph, _capture_of = torch.cuda.CUDAGraph, torch.cuda.graph

_ERROR_MODE = "thread_local"
"""Only this thread's calls can spoil a capture, as vLLM and sglang capture: threads of theirs, or
a communicator's watchdog, may allocate meanwhile."""

_HELD_CYCLES = 200_000_000
"""About 100 ms: longer than a host takes to prepare two steps, and to note the engine's attributes
between them."""


class Graph(Protocol):
    """One graph of the device's own."""

    def replay(self) -> None:
        """Start the captured work again."""
        ...

    def reset(self) -> None:
        """Release what it holds; it cannot be replayed again."""
        ...


class Driver(Protocol):
    """One device, with a stream that captures and a memory pool for all graphs of a session."""

    name: str

    def graph(self) -> Graph:
        """A graph in which nothing is captured yet."""
        ...

    def capturing(self, graph: Any, *, prepares: bool) -> AbstractContextManager[Listener | None]:
        """Inside, the device takes down in `graph` what it is given, and runs none of it.

        Args:
            graph: one that `graph()` made.
            prepares: see `GraphEngine.segment`.

        Returns:
            What the guard has to tell of kernels' launches; None where the device sees them.

        Raises:
            RuntimeError: inside, the device refused something. The current stream stays as it was
                inside then.
        """
        ...

    def current_stream(self) -> Any:
        """The stream that work is given to now."""
        ...

    def set_stream(self, stream: Any) -> None:
        """Give work to this stream from now on."""
        ...

    def on_capturing_stream(self) -> AbstractContextManager[None]:
        """Inside, work is given to the stream that captures; it waits for work that was given
        before, and what follows waits for it."""
        ...

    def held(self) -> AbstractContextManager[None]:
        """Inside, the device begins late with what it is given to its current stream, and
        `synchronize` returns at once. At the end all of it is done."""
        ...

    def synchronize(self) -> None:
        """Wait for the end of all work.

        Raises:
            EngineError: a kernel failed.
        """
        ...


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what the engine asked of it: an error of the engine's kernels
    shows here, and not in work of ours behind it.

    Raises:
        EngineError: a kernel failed.
    """
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise EngineError(str(error).partition("\n")[0]) from error


class Cuda:
    """`torch.cuda`: CUDA on NVIDIA, HIP on ROCm.

    Raises:
        AdapterUnavailable: there is no such device, or `memory` lies elsewhere.
    """

    name = "device"

    def __init__(self, memory: GuardedMemory) -> None:
        if not torch.cuda.is_available() or memory.device.type != "cuda":
            raise AdapterUnavailable(
                f"device graphs need a CUDA or ROCm device; memory lies on {memory.device}, "
                f"torch.cuda.is_available() is {torch.cuda.is_available()}. "
                "Use the recorder, or a machine with a GPU."
            )
        self._device = memory.device
        self._unguarded = memory.unguarded
        self._held = False
        self._pool = torch.cuda.graph_pool_handle()
        # Warm-ups run on the stream that captures, as libraries keep a workspace for each stream.
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @staticmethod
    def graph() -> torch.cuda.CUDAGraph:
        """See `Driver`."""
        return _CUDAGraph()

    @contextmanager
    def capturing(self, graph: torch.cuda.CUDAGraph, *, prepares: bool) -> Iterator[None]:
        """See `Driver`; which memory is the host's, a device knows by itself."""
        capture = _capture_of(
            graph, pool=self._pool, stream=self._stream, capture_error_mode=_ERROR_MODE
        )
        # Begun and ended unguarded: what torch allocates for it, the state of its generators, is
        # the process' own. In a session's memory it would be gone with the session.
        with self._unguarded():
            capture.__enter__()
        try:
            yield
        except BaseException:
            with self._unguarded():
                capture.__exit__(*sys.exc_info())
            raise
        with self._unguarded():
            capture.__exit__(None, None, None)

    def current_stream(self) -> torch.cuda.Stream:
        """See `Driver`."""
        return torch.cuda.current_stream(self._device)

    def set_stream(self, stream: torch.cuda.Stream) -> None:
        """See `Driver`."""
        torch.cuda.set_stream(stream)

    @contextmanager
    def on_capturing_stream(self) -> Iterator[None]:
        """See `Driver`."""
        current = self.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    @contextmanager
    def held(self) -> Iterator[None]:
        """See `Driver`."""
        torch.cuda._sleep(_HELD_CYCLES)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.synchronize()

    def synchronize(self) -> None:
        """See `Driver`."""
        if not self._held:
            wait_for(self._device)
