"""Runs one step in all the ways that the oracles ask for, and records what was seen.

The step under test comes first: in world A, on the session with its past. The other runs start from
saved bytes and attributes, and their effects are undone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial

from fuzzgraph import reference
from fuzzgraph.case import EngineConfig, captured_size
from fuzzgraph.errors import TargetFailed
from fuzzgraph.execution.ahead import Ahead
from fuzzgraph.execution.attribution import Attribution, same
from fuzzgraph.execution.failures import SessionFailed
from fuzzgraph.execution.handovers import drop_unwritten, launches
from fuzzgraph.execution.kept_results import KeptResults
from fuzzgraph.execution.observed import in_terms_of, on_host
from fuzzgraph.execution.pool_writer import StepState
from fuzzgraph.execution.session import OpenSession, Snapshot
from fuzzgraph.memory import NAN_WORLD, Room
from fuzzgraph.observation import (
    Engagement,
    Observation,
    RunKind,
    StepRecord,
)
from fuzzgraph.ports import CapturedGraph
from fuzzgraph.run.spec import Setup
from fuzzgraph.world import Batch


class StepRunner:
    """Runs the steps of one case, in order, on one open session.

    Args:
        rooms: for the snapshots before and after a step; cases one after the other share them.
    """

    def __init__(
        self,
        opened: OpenSession,
        target: str,
        needs: frozenset[RunKind],
        setup: Setup,
        rooms: tuple[Room, Room],
    ) -> None:
        self._opened = opened
        self._target = target
        self._needs = needs
        self._setup = setup
        self._kept = KeptResults(opened.memory.crossings)
        self._room_before, self._room_after = rooms
        self._after: Snapshot | None = None
        self._ahead = Ahead(opened, self._execute) if setup.overlap else None

    def run(self, batch: Batch, following: Batch | None = None) -> StepRecord:
        """All runs of one step; the session is then as the step under test left it.

        Args:
            batch: the step.
            following: the next one; None behind the last, where the session need not be restored.
        """
        opened, session = self._opened, self._opened.session
        step = StepRecord(batch.step, self._target, opened.config, batch, session.fields)
        step.allocation = partial(opened.allocation_of, mode=batch.mode)
        step.excuses = opened.excuses
        state = opened.pool_writer.state_of(batch)
        state.lay()
        # Writing the step's state binds no attribute: the snapshot taken after the last step still
        # has the present bindings, and its walk over the engine's objects is saved.
        known = self._after.attributes if self._after else None
        before = opened.snapshot(self._room_before, known)
        # The last step's comparison runs replayed graphs and ran kernels too.
        opened.graphs.replayed.clear()
        opened.discard_kernel_reports()
        try:
            step.promised_outputs = self._promised(batch)
            step.runs["replay"] = self._execute(batch, "replay")
        except SessionFailed as lost:
            step.failures.append(lost.failure)
            step.accesses, step.misuses = opened.take_accesses(), opened.take_misuses()
            with opened.device_may_be_lost():
                step.zone_hits = opened.memory.zone_hits(lost.failure.stage)
            return step
        # Memory is checked right after the replay, because every other run overwrites it.
        try:
            with opened.border.crossing("check"):
                self._check_memory(step, state, before)
        except SessionFailed as lost:
            step.failures.append(lost.failure)
            return step
        self._add_expectation(step)
        # The next step must start from what this one left, so this is saved before other runs.
        self._after = None if following is None else opened.snapshot(self._room_after)
        try:
            self._run_comparisons(step, state, before)
            if self._ahead is not None and batch.via == "graph":
                self._ahead.run(step, following, before)
        except SessionFailed as lost:
            step.failures.append(lost.failure)
        if self._after is not None:
            with opened.device_may_be_lost() if step.failures else nullcontext():
                opened.restore(self._after)
                self._kept.put_back()
        return step

    @property
    def late_copies(self) -> Mapping[str, int]:
        """See `Verdict`."""
        return {} if self._ahead is None else self._ahead.late_copies

    @property
    def unrepeatable(self) -> int:
        """See `Verdict`."""
        return 0 if self._ahead is None else self._ahead.unrepeatable

    def run_bare(self, batch: Batch) -> Observation:
        """Write, prepare, replay, observe, compute one reference: the least that a check costs."""
        self._opened.pool_writer.state_of(batch).write()
        seen = self._execute(batch, "replay")
        reference.expected(batch, self._opened.config)
        return seen

    def _promised(self, batch: Batch) -> tuple[str, ...]:
        with self._opened.border.crossing("check"):
            return self._opened.session.promised_outputs(batch.mode)

    def _execute(self, batch: Batch, run: RunKind) -> Observation:
        session = self._opened.session
        # `stage` is what a failure is reported for; it changes as the run gets on.
        eagerly = run == "eager" or batch.via == "eager"
        stage = "eager" if eagerly else "prepare"
        memory = self._opened.memory
        taking_down_later = self._opened.taking_down_later()
        try:
            # Streams of the engine's own do not wait for what was laid on ours.
            self._opened.wait()
            with memory.over_lanes(), memory.taking_down() as launched, taking_down_later as later:
                if eagerly:
                    session.eager(batch)
                else:
                    with self._opened.unguarded.during("prepare"):
                        session.prepare_replay(batch)
                    stage = "replay"
                    with self._opened.unguarded.during("replay"):
                        session.replay(batch)
                self._opened.wait()
                stage = "check"
                seen = session.observe(batch)
            seen = on_host(seen, memory.crossings, later)
            seen = in_terms_of(batch, seen, session.fields, self._opened.config)
            seen.handovers = (
                *seen.handovers,
                *launches(launched, session.pools, self._opened.config),
            )
            drop_unwritten(seen.handovers, memory)
            return seen
        except BaseException as error:
            self._opened.border.judge(error, stage, run)
            raise

    def _check_memory(self, step: StepRecord, state: StepState, before: Snapshot) -> None:
        opened, session, batch = self._opened, self._opened.session, step.batch
        stage = "eager" if batch.via == "eager" else "replay"
        # First: a look at the zones may poison the graphs' memory, where results can lie.
        step.kept_changes = self._kept.take_changed()
        step.accesses, step.races = opened.take_accesses(), opened.take_races()
        step.misuses = opened.take_misuses()
        if not opened.memory.zones_intact():
            step.zone_hits = opened.memory.zone_hits(stage)
            # Or the same hit would be reported in every later step.
            opened.memory.repair_zones()
        step.foreign_writes = state.foreign_writes(before.image)
        # A step must replay a graph unless the engine has none for it or declined by its own rule.
        seen = step.runs["replay"]
        if not seen.declined and _fits_ladder(batch, step.config):
            if opened.graphs.captured:
                step.engagements = _engagements(opened.graphs.replayed)
            elif seen.compiled_forwards == 0:
                step.engagements = ()
        elif batch.others_prefill:
            step.engagements = _engagements(opened.graphs.replayed) or None
        step.freed_uses = opened.freed.used_by(opened.graphs.replayed, before.attributes)
        if batch.via == "graph":
            step.address_changes, step.dtype_changes = opened.moved_buffers()
            at_capture = session.capture_values(batch)
            moved = opened.memory.crossings.to_host([*at_capture.values()])
            step.at_capture = dict(zip(at_capture, moved, strict=True))
            if step.engagements:
                step.owed_at_capture = opened.owed_at_capture(batch.mode, step.at_capture)
        if session.keeps_outputs(batch.mode):
            self._kept.keep(batch.step, session.results())

    def _add_expectation(self, step: StepRecord) -> None:
        """The float64 truth, and how to compute the yardstick where the oracles need it."""
        if not step.promised_outputs or not step.batch.raw_bs:
            return
        state = reference.expected(step.batch, step.config, step.promised_outputs)
        _demand_truths(step, state.outputs)
        step.expected, step.value_bound = state.outputs, state.value_bound
        # Computed on demand: most steps agree with the truth well enough without it.
        step.yardstick = cache(
            partial(reference.yardstick, step.batch, step.config, step.promised_outputs)
        )
        if (weights := self._opened.fp8_weights) is not None:
            step.weight_errors = cache(
                partial(reference.weight_errors, step.batch, step.config, weights)
            )
        if self._setup.second_opinion:
            step.second_opinion = reference.second_opinion(step.batch, step.config)

    def _run_comparisons(self, step: StepRecord, state: StepState, before: Snapshot) -> None:
        """The runs that the oracles compare with the replay: screen, its causes, eager."""
        batch, replay = step.batch, step.runs["replay"]
        if "screen" in self._needs:
            step.runs["screen"] = self._screen(state, before, batch, 1)
            # World B first. The NaN world is run only if B agrees: a stray read shows in B already,
            # and NaN adds only masked reads that end in 0 * NaN.
            by_right = {field.name for field in step.fields if field.past}
            if not same(step.runs["screen"], replay, by_right):
                self._attribute(step, state, before, 1)
            elif self._setup.strict_nan and not same(
                self._screen(state, before, batch, NAN_WORLD), replay, by_right
            ):
                self._attribute(step, state, before, NAN_WORLD)
        if "eager" in self._needs and batch.via == "graph" and batch.raw_bs:
            # Same world and same past as the replay, so that any difference is the graph's.
            self._opened.restore(before)
            self._opened.take_misuses()  # of the runs before
            step.runs["eager"] = self._execute(batch, "eager")
            step.eager_misuses = self._opened.take_misuses()
            told = {(write.region, write.own) for write in step.foreign_writes}
            writes = state.state_writes(before.image)
            step.eager_state_writes = [w for w in writes if (w.region, w.own) not in told]

    def _attribute(self, step: StepRecord, state: StepState, before: Snapshot, world: int) -> None:
        # Made anew each time: kept, it and this object would hold each other, and the session with
        # them, until the garbage collector runs.
        attribution = Attribution(self._opened, self._execute, self._screen)
        attribution.attribute(step, state, before, world)

    def _screen(self, state: StepState, before: Snapshot, batch: Batch, world: int) -> Observation:
        """Run the step without a past and in another world, both at once."""
        self._opened.reset_in_world(world)
        self._opened.write_step_state(state, before.image)
        return self._execute(batch, "screen")


def _engagements(replayed: Sequence[CapturedGraph[object]]) -> tuple[Engagement, ...]:
    """Whether each replayed graph engaged, in order."""
    # Each replay poisons the pool that all graphs share, so outputs of earlier graphs look
    # unwritten. Only the last graph's can be judged.
    earlier = [replace(graph.engaged, unwritten=()) for graph in replayed[:-1]]
    return (*earlier, *(graph.engaged for graph in replayed[-1:]))


def _fits_ladder(batch: Batch, config: EngineConfig) -> bool:
    """Whether an engine must have a graph for this step. Without rows on any rank it is left to
    the engine; an idle rank beside others replays with them."""
    if batch.via == "eager" or not batch.largest_rank:
        return False
    return captured_size(config, batch.mode, batch.largest_rank) is not None


def _demand_truths(step: StepRecord, truths: Collection[str]) -> None:
    """Nothing would compare an output that has none.

    Raises:
        TargetFailed: the session promises such an output.
    """
    unknown = [name for name in step.promised_outputs if name not in truths]
    if unknown:
        raise TargetFailed(
            f"promised_outputs({step.batch.mode!r}) names {', '.join(unknown)}, of which no truth "
            f"is known; known are {', '.join(sorted(truths))}. Name one of them, or show the "
            "output without a promise: then replays are compared with eager runs alone."
        )
