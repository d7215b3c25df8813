"""What the engine's graph runners show of themselves and how they capture, whatever their shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from fuzzgraph.targets.sglang.runners.capture import capture_mode


def takes_graph(engine: Any, forward_batch: Any) -> bool:
    """The engine's own answer, under its name in this release; where it is no, it goes eager."""
    ask = getattr(engine, "can_run_graph", None) or engine.can_run
    return bool(ask(forward_batch))


def execute(engine: Any, *given: Any, **named: Any) -> Any:
    """Prepares and replays in one go, under its name in this release."""
    run = getattr(engine, "execute", None) or engine.replay
    return run(*given, **named)


class RunnerDriver:
    """Reads a runner of the engine, and lets it capture."""

    _engine: Any
    _device: Callable[[], AbstractContextManager[None]]
    """Around everything that the engine opens or captures."""
    _modes: str
    """Module of the release's decode runner."""

    @property
    def buffers(self) -> Any:
        """The static inputs, one attribute each; in 0.5.9 some are the runner's own."""
        return getattr(self._engine, "buffers", self._engine)

    @property
    def width(self) -> int:
        """Tokens of each row."""
        if hasattr(self._engine, "captured_req_width"):  # its name from 0.5.16 on
            return int(self._engine.captured_req_width)
        return int(self._engine.num_tokens_per_bs)

    @property
    def padded_bs(self) -> int:
        """Of the last replay; before any the largest captured size."""
        return int(getattr(self._engine, "bs", self._engine.max_bs))

    @property
    def graph_key(self) -> Hashable:
        """Of the same graph; its size, unless a size has several."""
        return self.padded_bs

    def capture(self) -> None:
        """The engine's own capture loop, largest size first."""
        with self._device(), capture_mode(self._modes):
            for engine in self._capturing():
                engine.may_capture = True
                engine.capture()

    def can_run(self, forward_batch: Any) -> bool:
        """Whether the engine takes a graph for this batch."""
        return takes_graph(self._engine, forward_batch)

    def prepare(self, forward_batch: Any) -> None:
        """The engine's own padding and metadata."""
        raise NotImplementedError

    def replay(self) -> Any:
        """What the captured forward returned; its tensors are rewritten by each replay."""
        raise NotImplementedError

    def handed_out(self, forward_batch: Any, replayed: Any) -> Any:
        """What the engine hands on of a replay that has taken place: its live rows.

        Args:
            forward_batch: the batch that was prepared.
            replayed: what `replay` returned.
        """
        raise NotImplementedError

    def _capturing(self) -> Iterable[Any]:
        """The engine's runners that capture, in its order."""
        return (self._engine,)
