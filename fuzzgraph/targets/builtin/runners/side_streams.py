"""A decode runner that works on streams beside the current one, as servers do to overlap work.

Metadata is built on a plan stream. In the forward, the upgrade of metadata and the second layer run
on a stream of their own. Each waits for what it reads and is waited for by what reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.metadata.views import BuiltView
from fuzzgraph.targets.builtin.model import ForwardInputs
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.context import Outputs, RunnerContext, StaticBatch, Step
from fuzzgraph.targets.builtin.staging import StagedRegistry, staged_by
from fuzzgraph.targets.offline import streams


class SideStreamRunner(GraphRunner):
    """See the module."""

    def __init__(self, context: RunnerContext) -> None:
        on_gpu = context.device.type == "cuda"
        self.streams: Any = torch.cuda if on_gpu else streams
        self.plan_stream = self.streams.Stream()
        self.side_stream = self.streams.Stream()
        super().__init__(context)

    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        with self.on(self.plan_stream):
            built = super().build_metadata(static, view)
        self.join(self.plan_stream)
        return built

    def full_metadata(self, step: Step) -> FullMetadata:
        with self.on(self.side_stream):
            metadata = super().full_metadata(step)
        self.join(self.side_stream)
        return metadata

    def run_second(self, step: Step, inputs: ForwardInputs) -> Outputs:
        with self.on(self.side_stream):
            outputs = super().run_second(step, inputs)
        self.join(self.side_stream)
        return outputs

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Inside, work is given to a stream, behind what the current one was given."""
        self.fork(stream)
        with self.streams.stream(stream):
            yield

    def fork(self, stream: Any) -> None:
        """A stream waits for the current one."""
        stream.wait_stream(self.streams.current_stream())

    def join(self, stream: Any) -> None:
        """The current stream waits for another one."""
        self.streams.current_stream().wait_stream(stream)


def on_side_streams(runner: type[SideStreamRunner]) -> Components:
    """The engine with this runner of decodes; a host that waited for the copies of its inputs would
    order the plan stream behind them."""
    return replace(staged_by(StagedRegistry), decode=runner)
