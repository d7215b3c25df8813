"""Runners that take other sizes than the graph's, or none where one fits; opened by name."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.runners.cpu_graph_runner import CpuGraphTarget
from fuzzgraph.targets.sglang.runners.decode_input_buffers import BufferTarget
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

__all__ = ["largest_batch_declined", "padded_batches_declined", "uncounted", "unsliced"]


def _declining(line: str, other: str) -> CpuGraphTarget:
    """The CPU runner, which answers otherwise whether it has a graph for a batch."""
    return with_changed_sessions(
        CpuGraphTarget("sglang-cpu-graph"),
        lambda session: change_line(session.runner._engine, "can_run_graph", line, other),
    )


def padded_batches_declined() -> CpuGraphTarget:
    """It takes batches of captured sizes alone, as where padding is switched off."""
    return _declining("if self.disable_padding", "if not self.disable_padding")


def largest_batch_declined() -> CpuGraphTarget:
    """A batch of the largest captured size has no graph."""
    return _declining("<= self.max_bs", "< self.max_bs")


def uncounted() -> BufferTarget:
    """A graph of ranks that share its tokens is not told at its capture how many these are."""
    return with_a_line_changed(
        lambda: BufferTarget("sglang-buffers", "decode"),
        "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner",
        "_global_num_tokens_for_graph",
        "if self.require_attn_tp_gather:",
        "if self.require_mlp_tp_gather and self.num_dp_ranks:",
    )()


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
