"""What an engine allocates in a step and does not write shows each time, with a graph and without.

Left to the allocator, such memory would hold in most runs what it held in the run before.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, Via
from fuzzgraph.execution import Execution, Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.overlap import HEALTHY
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.context import Outputs, Step
from fuzzgraph.world import Batch


class LeavesARow(GraphRunner):
    """Without a graph its last row is never written."""

    def run_forward(self, step: Step) -> Outputs:
        outputs = super().run_forward(step)
        if step.size is not None:
            return outputs
        result = torch.empty_like(outputs["attention"])
        result[:-1] = outputs["attention"][:-1]
        return {**outputs, "attention": result}


class PreparesFromNothing(GraphRunner):
    """Of the tokens that it stages for a graph, the first is never written."""

    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        super().fill_inputs(registry, batch, context, sharded)
        tokens = registry.view("input_ids", context.raw)
        staged = torch.empty_like(tokens)
        staged[1:] = tokens[1:]
        tokens.copy_(staged)


def ran(
    runner: type[GraphRunner], via: Via = "graph", *, overlap: bool = False, pinned: bool = False
) -> Verdict:
    """What is said of one padded step of two rows."""
    step = ReplayStep(
        rows=(BatchRow(request=0, seq_len=2), BatchRow(request=1, seq_len=3)), via=via
    )
    config = EngineConfig(capture_bs=(4,), max_context_len=4)
    case = Case(schema_version=1, config=config, steps=(step,))
    components = replace(HEALTHY["pinned" if pinned else ""], decode=runner)
    return Execution(BuiltinTarget(components), Setup(overlap=overlap)).run_case(case)


def found(runner: type[GraphRunner], via: Via) -> dict[str, Finding]:
    """The findings of the oracle of reads, by buffer."""
    verdict = ran(runner, via)
    assert not verdict.nondeterministic
    return {one.buffer: one for one in verdict.findings if one.oracle == "noninterference"}


@pytest.mark.parametrize("again", range(5))
def test_a_row_that_nobody_writes_is_found_without_a_graph(again: int) -> None:
    finding = found(LeavesARow, "eager")["attention"]
    assert finding.detail["blamed"] == "fresh memory of the step"
    assert finding.detail["rows"] == "live"


@pytest.mark.parametrize("again", range(5))
def test_what_is_prepared_from_memory_that_nobody_wrote_is_found(again: int) -> None:
    finding = found(PreparesFromNothing, "graph")["attention"]
    assert finding.detail["blamed"] == "fresh memory of the step"


@pytest.mark.parametrize("via", ["graph", "eager"])
def test_an_engine_that_writes_what_it_allocates_is_silent(via: Via) -> None:
    assert found(GraphRunner, via) == {}


def test_a_host_that_is_a_step_ahead_prepares_from_the_same_memory() -> None:
    verdict = ran(PreparesFromNothing, overlap=True, pinned=True)
    assert verdict.late_copies and verdict.unrepeatable == 0
    assert not {"overlap", "survival"} & {one.oracle for one in verdict.findings}
