"""A runner that hands its backend tensors of another size than the graph's; opened by name."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.runners.decode_input_buffers import BufferTarget

__all__ = ["unsliced"]


def unsliced() -> BufferTarget:
    """The backend gets the whole buffer of lengths, not the rows of the graph."""
    target = BufferTarget("sglang-buffers", "decode")
    open_session = target.open

    def open_unsliced(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        backend = session.backend
        keep = backend._keep

        def keep_whole(given: dict[str, Any]) -> None:
            keep({**given, "seq_lens": session.runner.buffers.seq_lens})

        capture = session.capture

        def capture_then_change() -> None:
            capture()
            backend._keep = keep_whole

        session.capture = capture_then_change  # type: ignore[method-assign]
        return session

    target.open = open_unsliced  # type: ignore[method-assign]
    return target
