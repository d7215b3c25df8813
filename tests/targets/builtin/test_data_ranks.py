"""The built-in engine on one of several data-parallel ranks, and changes of it that are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from fuzzgraph.case import Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.execution import Execution
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.prefill import PiecewiseRunner
from fuzzgraph.world import Batch
from tests.targets.builtin.engine import rows

MODES: tuple[Mode, ...] = ("decode", "target_verify", "draft_extend", "draft")


class OwnSize(GraphRunner):
    """A graph is chosen by this rank's rows."""

    def size_of(self, batch: Batch) -> int:
        return batch.raw_bs


class OwnTokens(PiecewiseRunner):
    """A prefill graph is chosen by this rank's tokens."""

    def size_of(self, batch: Batch) -> int:
        return batch.num_tokens


class RowsOfRanks(GraphRunner):
    """Each rank counts with its own rows."""

    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        super().fill_inputs(registry, batch, context, sharded)
        for rank, own in enumerate(batch.rank_sizes.tolist()):
            registry.buffers["rank_tokens"][rank] = own


class StaleCounts(GraphRunner):
    """The counts stay as the last capture left them."""

    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        counts = registry.buffers["rank_tokens"].clone()
        super().fill_inputs(registry, batch, context, sharded)
        registry.buffers["rank_tokens"].copy_(counts)


class NoCountsAtCapture(GraphRunner):
    """A capture counts no tokens."""

    def prepare_capture(self, size: int) -> None:
        super().prepare_capture(size)
        self.static_for(size).registry.buffers["rank_tokens"].zero_()


class Apart(BuiltinTarget):
    """Nothing in its steps waits for other ranks."""

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        session: Any = super().open(config, graphs)
        observe = session.observe

        def apart(batch: Batch) -> Observation:
            seen: Observation = observe(batch)
            seen.ranks_apart = True
            return seen

        session.observe = apart
        return session


def beside(mode: Mode = "decode") -> Case:
    """A small batch beside larger ranks, idle beside others, and alone among idle ones."""
    config = EngineConfig(
        modes=(mode,), capture_bs=(1, 2, 4), max_context_len=32, dp_size=3, dp_rank=1,
        draft_tokens=3, spec_steps=2,
    )  # fmt: skip
    new = {"target_verify": (3, 3), "draft_extend": (2, 0), "draft": (0, 0)}.get(mode, (1, 1))
    steps = (
        ReplayStep(mode=mode, rows=rows((9, 5), mode, new, draft_tokens=3), other_ranks=(4, 0)),
        ReplayStep(mode="idle", other_ranks=(0, 2)),
        ReplayStep(mode=mode, rows=rows((10,), mode, new[:1], draft_tokens=3), other_ranks=(0, 0)),
        ReplayStep(mode=mode, rows=rows((11,), mode, new[:1], draft_tokens=3), other_ranks=(3, 8)),
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


def beside_prompts(kind: Literal["piecewise", "breakable"]) -> Case:
    """A short prompt beside longer ones, an idle rank, and a prompt that fills its graph."""
    config = EngineConfig(
        modes=("prefill",), capture_tokens=(2, 4, 8), max_context_len=32, dp_size=3, dp_rank=1,
        prefill_runner=kind,
    )  # fmt: skip
    steps = (
        ReplayStep(mode="prefill", rows=rows((9, 5), "prefill", (1, 2)), other_ranks=(8, 0)),
        ReplayStep(mode="idle", other_ranks=(0, 3)),
        ReplayStep(mode="prefill", rows=rows((11,), "prefill", (2,)), other_ranks=(0, 1)),
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


def found(
    case: Case,
    runner: type[GraphRunner] = GraphRunner,
    piecewise: type[PiecewiseRunner] = PiecewiseRunner,
    target: type[BuiltinTarget] = BuiltinTarget,
) -> set[tuple[str, str, int, str]]:
    """(oracle, buffer, step, stage) of each finding."""
    components = replace(Components(), decode=runner, piecewise=piecewise)
    execution = Execution(target(components))
    findings = execution.run_case(case).findings
    execution.close()
    return {(each.oracle, each.buffer, each.step, each.stage) for each in findings}


@pytest.mark.parametrize("mode", MODES)
def test_a_healthy_rank_is_silent(mode: Mode) -> None:
    assert found(beside(mode)) == set()


def test_a_graph_of_its_own_size_is_found() -> None:
    assert ("contract", "graph", 0, "replay") in found(beside(), OwnSize)


def test_a_graph_of_its_own_size_is_right_where_nothing_waits_for_other_ranks() -> None:
    buffers = {buffer for _, buffer, _, _ in found(beside(), OwnSize, target=Apart)}
    assert "graph" not in buffers


@pytest.mark.parametrize("kind", ["piecewise", "breakable"])
def test_a_healthy_rank_with_prompts_is_silent(kind: Literal["piecewise", "breakable"]) -> None:
    assert found(beside_prompts(kind)) == set()


def test_a_prefill_graph_of_its_own_size_is_found() -> None:
    case = beside_prompts("piecewise")
    assert ("contract", "graph", 0, "replay") in found(case, piecewise=OwnTokens)


@pytest.mark.parametrize("runner", [RowsOfRanks, StaleCounts])
def test_counts_of_the_ranks_that_are_not_the_graphs_are_found(runner: type[GraphRunner]) -> None:
    assert ("contract", "rank_tokens", 0, "replay") in found(beside(), runner)


def test_counts_that_a_capture_lacks_are_found() -> None:
    buffers = {(buffer, stage) for _, buffer, _, stage in found(beside(), NoCountsAtCapture)}
    assert ("rank_tokens", "capture") in buffers
