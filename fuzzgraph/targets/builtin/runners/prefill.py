"""Prefill runners: graphs on the token axis, with attention between their segments run eagerly.

Tokens are padded to a captured count; request rows are not, and metadata is built for the live
tokens only. Both runners do the same work: the piecewise one captures the parts before and after
attention apart, the breakable one captures one function that stops at attention.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch

from fuzzgraph.case import Mode
from fuzzgraph.ports import CapturedGraph
from fuzzgraph.targets.builtin.model import ForwardInputs
from fuzzgraph.targets.builtin.registry import FillContext
from fuzzgraph.targets.builtin.runners.base import (
    GraphRunner,
    Outputs,
    RunnerContext,
    Step,
)
from fuzzgraph.targets.builtin.shape import DTYPES, Extent
from fuzzgraph.world import Batch


@dataclass(slots=True)
class PrefillGraphs:
    """The graphs before and after attention for one token count."""

    before: CapturedGraph[torch.Tensor]
    after: CapturedGraph[Outputs]


class PiecewiseRunner(GraphRunner):
    """Graph, eager attention, graph."""

    mode: Mode = "prefill"

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self.segments: dict[int, PrefillGraphs] = {}
        self.attention_out = self.allocate_attention_out()

    def allocate_attention_out(self) -> torch.Tensor:
        """[tokens, heads, v_head_dim] what attention leaves for the graph behind it."""
        config = self.config
        shape = (self.largest().tokens, config.num_q_heads, config.v_head_dim)
        return torch.zeros(shape, dtype=DTYPES[config.dtype], device=self.context.device)

    # sizes

    def sizes(self) -> tuple[int, ...]:
        return self.config.capture_tokens

    def extent(self, size: int) -> Extent:
        """Request rows count what fits the pool, for they are not padded."""
        return Extent(self.config.req_pool_size, size)

    def largest_eager(self) -> Extent:
        """Every request at full context."""
        rows = self.config.req_pool_size
        return Extent(rows, rows * self.config.max_context_len)

    # capture

    def warm_up(self) -> None:
        size = self.sizes()[0]
        self.prepare_capture(size)
        inputs = self.graph_inputs(size)
        self.run_attention(self.current(), self.model.before_attention(inputs))
        self.run_after(inputs)

    def prepare_capture(self, size: int) -> None:
        """A dummy batch of one request."""
        static, padded = self.static_for(size), Extent(1, size)
        self.fill_dummies(static.registry, padded)
        live = Extent(1, min(size, self.config.seq_len_fill_value))
        self.start_step(static, live, padded, size, size)

    def capture_size(self, size: int) -> None:
        self.prepare_capture(size)
        self.segments[size] = self.capture_segments(size)
        self.record_capture(size)

    def capture_segments(self, size: int) -> PrefillGraphs:
        """Both graphs, with attention run eagerly in between as it will be at replay."""
        inputs, capture = self.graph_inputs(size), self.context.graphs.capture
        before = capture(
            lambda: self.model.before_attention(inputs), key=f"{self.mode}[{size}].before"
        )
        self.run_attention(self.current(), before.outputs)
        after = capture(lambda: self.run_after(inputs), key=f"{self.mode}[{size}].after")
        return PrefillGraphs(before, after)

    def graph_inputs(self, size: int) -> ForwardInputs:
        return self.forward_inputs(self.static_for(size).registry, Extent(1, size), size)

    # one step

    def prepare_replay(self, batch: Batch) -> None:
        size = self.choose_size(batch)
        if size is None:
            self.prepare_eager(batch)
            return
        static, raw = self.static_for(size), self.raw_extent(batch)
        padded = Extent(raw.rows, size)
        self.fill_inputs(static.registry, batch, FillContext(raw, padded), size)
        self.start_step(static, raw, padded, size, size)

    def attended(self, raw: Extent, padded: Extent) -> Extent:
        """The live tokens: attention runs outside the graphs."""
        return raw

    def run_graph(self, size: int) -> Outputs:
        segments = self.segments[size]
        segments.before.replay()
        self.run_attention(self.current(), segments.before.outputs)
        segments.after.replay()
        return segments.after.outputs

    def run_attention(self, step: Step, q: torch.Tensor) -> None:
        """Attention of the live tokens into `attention_out`; its padded rows become zeros."""
        live = step.view.extent.tokens
        self.clear_tail(live, step.padded.tokens)
        if live:
            out = self.attention_out[:live]
            metadata = step.static.builder.in_forward(step.metadata, step.view)
            self.model.attend(q[:live], out, self.attention_inputs(step), metadata)

    def clear_tail(self, live: int, padded: int) -> None:
        """No earlier batch's rows reach the graph behind."""
        self.attention_out[live:padded].zero_()

    def attention_inputs(self, step: Step) -> ForwardInputs:
        return self.forward_inputs(step.static.registry, step.view.extent, step.sharded_tokens)

    def run_after(self, inputs: ForwardInputs) -> Outputs:
        """The part behind attention, from `attention_out`."""
        out = self.attention_out[: inputs.extent.tokens].clone()
        return self.model.after_attention(out, inputs)


class BreakableRunner(PiecewiseRunner):
    """One function, broken at attention: what it does between breaks becomes a graph."""

    def capture_segments(self, size: int) -> PrefillGraphs:
        inputs, capture = self.graph_inputs(size), self.context.graphs.capture
        # A device runs each part once before it captures it: that run has a flow of its own.
        flows: list[Generator[torch.Tensor, None, Outputs]] = []

        def begin() -> torch.Tensor:
            flows.append(self.flow(inputs))
            return next(flows[-1])

        before = capture(begin, key=f"{self.mode}[{size}].before")
        self.run_attention(self.current(), before.outputs)
        after = capture(lambda: end_of(flows.pop(0)), key=f"{self.mode}[{size}].after")
        return PrefillGraphs(before, after)

    def flow(self, inputs: ForwardInputs) -> Generator[torch.Tensor, None, Outputs]:
        """The whole forward; yields the query where the graph breaks."""
        yield self.model.before_attention(inputs)
        return self.run_after(inputs)


def end_of(flow: Generator[torch.Tensor, None, Outputs]) -> Outputs:
    """Run a flow to its end; what it returns."""
    try:
        next(flow)
    except StopIteration as end:
        outputs: Outputs = end.value
        return outputs
    raise AssertionError("the flow breaks once, at attention")
