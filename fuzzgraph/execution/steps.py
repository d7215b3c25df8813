"""Runs one step in all the ways the oracles ask for, and records what was seen.

World A comes first, on the session with its past: that is the step under test. The other runs
start from saved bytes and attributes and leave no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch

from fuzzgraph import reference
from fuzzgraph.case import EngineConfig, captured_size
from fuzzgraph.execution.attribution import Attribution, same
from fuzzgraph.execution.failures import SessionFailed
from fuzzgraph.execution.open_session import OpenSession, Snapshot
from fuzzgraph.execution.pool_writer import StepState
from fuzzgraph.memory import NAN_WORLD
from fuzzgraph.observation import (
    Engagement,
    KeptOutput,
    Observation,
    RunKind,
    StepRecord,
)
from fuzzgraph.ports import CapturedGraph
from fuzzgraph.rules.comparison import same_bits
from fuzzgraph.run_spec import Setup
from fuzzgraph.world import Batch

__all__ = ["KeptResults", "StepRunner"]


@dataclass(slots=True)
class KeptResults:
    """Results an engine handed out and promised to keep, with their bytes at that time."""

    entries: list[tuple[int, str, torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def changed(self) -> list[KeptOutput]:
        return [
            KeptOutput(name, step)
            for step, name, handed_out, then in self.entries
            if not same_bits(handed_out, then)
        ]

    def keep(self, step: int, results: Mapping[str, torch.Tensor]) -> None:
        self.entries += [(step, name, value, value.clone()) for name, value in results.items()]


class StepRunner:
    """Runs the steps of one case, in order, on one open session."""

    def __init__(
        self,
        opened: OpenSession,
        target: str,
        needs: frozenset[RunKind],
        setup: Setup,
    ) -> None:
        self._opened = opened
        self._target = target
        self._needs = needs
        self._setup = setup
        self._kept = KeptResults()
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None

    def run(self, batch: Batch, *, last: bool = False) -> StepRecord:
        """All runs of one step; the session is left as world A left it.

        Args:
            batch: the step.
            last: no step follows; the session is then left as the last twin left it.
        """
        opened, session = self._opened, self._opened.session
        step = StepRecord(batch.step, self._target, opened.config, batch, session.fields)
        state = opened.pool_writer.state_of(batch)
        state.write()
        known = self._after.attributes if self._after else None
        before = self._before = opened.snapshot(self._before, known)
        opened.graphs.replayed.clear()
        opened.discard_kernel_reports()
        try:
            step.promised_outputs = self._promised(batch)
            step.runs["replay"] = self._execute(batch, "replay")
        except SessionFailed as lost:
            step.failures.append(lost.failure)
            step.accesses = opened.take_accesses()
            step.zone_hits = opened.memory.zone_hits(lost.failure.stage)
            return step
        try:
            with opened.border.crossing("check"):
                self._check_memory(step, state, before)
        except SessionFailed as lost:
            step.failures.append(lost.failure)
            return step
        self._add_expectation(step)
        self._after = None if last else opened.snapshot(self._after)
        try:
            self._run_twins(step, state, before)
        except SessionFailed as lost:
            step.failures.append(lost.failure)
        if self._after is not None:
            opened.restore(self._after)
        return step

    def run_bare(self, batch: Batch) -> Observation:
        """Lay out, prepare, replay, observe and compute one reference: the yardstick of speed."""
        self._opened.pool_writer.state_of(batch).write()
        seen = self._execute(batch, "replay")
        reference.expected(batch, self._opened.config)
        return seen

    def _promised(self, batch: Batch) -> tuple[str, ...]:
        with self._opened.border.crossing("check"):
            return self._opened.session.promised_outputs(batch.mode)

    def _execute(self, batch: Batch, run: RunKind) -> Observation:
        session = self._opened.session
        eagerly = run == "eager" or batch.via == "eager"
        stage = "eager" if eagerly else "prepare"
        try:
            with self._opened.memory.over_lanes():
                if eagerly:
                    session.eager(batch)
                else:
                    session.prepare_replay(batch)
                    stage = "replay"
                    session.replay(batch)
                stage = "check"
                return session.observe(batch)
        except BaseException as error:
            self._opened.border.judge(error, stage, run)
            raise

    def _check_memory(self, step: StepRecord, state: StepState, before: Snapshot) -> None:
        opened, session, batch = self._opened, self._opened.session, step.batch
        stage = "eager" if batch.via == "eager" else "replay"
        step.accesses, step.races = opened.take_accesses(), opened.take_races()
        if not opened.memory.zones_intact():
            step.zone_hits = opened.memory.zone_hits(stage)
            opened.memory.repair_zones()
        step.foreign_writes = state.foreign_writes(before.image)
        declined = step.runs["replay"].declined
        if opened.graphs.captured and not declined and _fits_ladder(batch, step.config):
            step.engagements = _engagements(opened.graphs.replayed)
        if batch.via == "graph":
            step.address_changes, step.dtype_changes = opened.moved_buffers()
            step.at_capture = session.capture_values(batch)
        step.kept_changes = self._kept.changed()
        if session.keeps_outputs(batch.mode):
            self._kept.keep(batch.step, session.results())

    def _add_expectation(self, step: StepRecord) -> None:
        """The float64 truth, and how to compute the yardstick where the oracles need it."""
        if not step.promised_outputs or not step.batch.raw_bs:
            return
        state = reference.expected(step.batch, step.config)
        step.expected, step.value_bound = state.outputs, state.value_bound
        step.yardstick = cache(partial(reference.yardstick, step.batch, step.config))
        if self._setup.second_opinion:
            step.second_opinion = reference.second_opinion(step.batch, step.config)

    def _run_twins(self, step: StepRecord, state: StepState, before: Snapshot) -> None:
        batch, replay = step.batch, step.runs["replay"]
        if "screen" in self._needs:
            step.runs["screen"] = self._screen(state, before, batch, 1)
            if not same(step.runs["screen"], replay):
                self._attribute(step, state, before, 1)
            elif self._setup.strict_nan and not same(
                self._screen(state, before, batch, NAN_WORLD), replay
            ):
                self._attribute(step, state, before, NAN_WORLD)
        if "eager" in self._needs and batch.via == "graph" and batch.raw_bs:
            self._opened.restore(before)
            step.runs["eager"] = self._execute(batch, "eager")

    def _attribute(self, step: StepRecord, state: StepState, before: Snapshot, world: int) -> None:
        # Not kept: the two would hold each other, and the session, until the collector comes.
        attribution = Attribution(self._opened, self._execute, self._screen)
        attribution.attribute(step, state, before, world)

    def _screen(self, state: StepState, before: Snapshot, batch: Batch, world: int) -> Observation:
        """The step without a past and in another world, at once."""
        self._opened.reset_in_world(world)
        self._opened.write_step_state(state, before.image)
        return self._execute(batch, "screen")


def _engagements(replayed: Sequence[CapturedGraph[object]]) -> tuple[Engagement, ...]:
    """Of each graph; the pool of all but the last has been poisoned again since."""
    earlier = [replace(graph.engaged, unwritten=()) for graph in replayed[:-1]]
    return (*earlier, *(graph.engaged for graph in replayed[-1:]))


def _fits_ladder(batch: Batch, config: EngineConfig) -> bool:
    """Whether an engine has a graph for this step; what it does with an idle batch is its own."""
    if batch.via == "eager" or not batch.raw_bs:
        return False
    size = batch.num_tokens if batch.mode == "prefill" else batch.raw_bs
    return captured_size(config, batch.mode, size) is not None
