"""Runs a step with the host a step ahead of the device, as servers that overlap steps do.

Nothing waits between `prepare_replay`, `replay` and what the engine does for the next step, and
copies between pinned memory and the device run as late as they may: on a CPU by `late_copies` and
`late_arrivals` of `graphs`, on a device by work that keeps it busy meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

from fuzzgraph.execution.attribution import same
from fuzzgraph.execution.failures import SessionFailed, printable_error
from fuzzgraph.execution.observed import in_terms_of, on_host
from fuzzgraph.execution.session import OpenSession, Snapshot
from fuzzgraph.graphs.late_arrivals import Arrivals, late_arrivals
from fuzzgraph.graphs.late_copies import PinnedCopies, late_copies
from fuzzgraph.graphs.late_stream import LateStream
from fuzzgraph.observation import Observation, RunFailure, RunKind, StepRecord
from fuzzgraph.ports import drop_handed, overlaps
from fuzzgraph.world import Batch


class Ahead:
    """The runs `ahead` of the steps of one case, on one open session.

    Args:
        execute: runs a step once, from whatever the session holds.
    """

    def __init__(
        self, opened: OpenSession, execute: Callable[[Batch, RunKind], Observation]
    ) -> None:
        self._opened = opened
        self._execute = execute
        self.late_copies: Counter[str] = Counter()
        """Line of the engine -> late copies that it gave, and work of side streams."""
        self.unrepeatable = 0
        """Steps that were not judged, because they did not repeat themselves."""

    def run(self, step: StepRecord, following: Batch | None, before: Snapshot) -> None:
        """Run a step once more; keep what was seen if a late copy read something else, or if the
        host read memory into which one had not arrived.

        Args:
            step: the record to complete.
            following: the next batch, for which the host prepares meanwhile; None if there is none.
            before: the session before the step.
        """
        opened = self._opened
        opened.restore(before)
        if not overlaps(opened.session):
            following = None
        run = self._run_late if opened.memory.device.type == "cpu" else self._run_held
        run(step, following, before)

    def _run_late(self, step: StepRecord, following: Batch | None, before: Snapshot) -> None:
        """On a CPU: on a stream that can do the step again."""
        stream = LateStream(self._opened.memory, before.image)
        late = late_copies(self._opened.memory, stream)
        seen = self._seen(step.batch, following, late, stream.unwaited())
        stream.wait()
        self.late_copies.update(copy.line for copy in stream.copies)
        self.late_copies.update(stream.to_host)
        lines = dict.fromkeys(copy.line for copy in stream.copies if copy.rewritten)
        agrees = self._agrees_with_itself(step, before)
        apart, sides = self._streams_apart(stream)
        if apart:
            self.late_copies.update(sides)
        if lines or apart:
            # What was taken down of the step has to give what the step gave, copies apart.
            stream.repeat(late=False)
            agrees = agrees and same(self._in_terms(step.batch, seen), step.runs["replay"])
        if agrees and lines:
            step.rewritten = tuple(lines)
            step.runs["ahead"] = self._late(step, stream, seen)
        elif agrees and apart:
            self._reorder(step, stream, seen, apart, sides)
        if agrees and stream.to_host and "ahead" not in step.runs:
            self._run_withheld(step, following, before, tuple(dict.fromkeys(stream.to_host)))
        if not agrees and (lines or apart or stream.to_host):
            self.unrepeatable += 1

    def _streams_apart(self, stream: LateStream) -> tuple[list[int], tuple[str, ...]]:
        """Streams whose work may run later than it was given, and the lines that gave work to
        streams beside the main one; of the graphs that were replayed too."""
        graphs = self._opened.graphs.replayed
        apart = dict.fromkeys(stream.streams_apart)
        apart |= dict.fromkeys(each for graph in graphs for each in graph.streams_apart)
        lines = dict.fromkeys(stream.side_lines.values())
        lines |= dict.fromkeys(line for graph in graphs for line in graph.side_lines)
        return list(apart), tuple(lines)

    def _reorder(
        self,
        step: StepRecord,
        stream: LateStream,
        seen: Observation,
        apart: list[int],
        lines: tuple[str, ...],
    ) -> None:
        """Have each stream in turn run as late as waits allow; keep what was seen if it differs."""
        for each in apart:
            step.unordered = lines
            late = self._late(step, stream, seen, each)
            if not same(late, step.runs["replay"]):
                step.runs["ahead"] = late
                return
        step.unordered = ()

    def _run_withheld(
        self, step: StepRecord, following: Batch | None, before: Snapshot, lines: tuple[str, ...]
    ) -> None:
        """On a CPU: while copies that these lines give to the host arrive late."""
        replay = step.runs["replay"]
        withheld = partial(self._withheld, step.batch, following, before)
        seen = withheld(lines)
        if same(seen, replay):
            return
        step.runs["ahead"], step.unarrived = seen, lines
        if len(lines) > 1:
            alone = tuple(line for line in lines if not same(withheld((line,)), replay))
            step.unarrived = alone or lines

    def _withheld(
        self, batch: Batch, following: Batch | None, before: Snapshot, lines: tuple[str, ...]
    ) -> Observation:
        """What the step gives with these copies as late as they may be.

        Raises:
            SessionFailed: the engine fails on what it reads.
        """
        opened = self._opened
        self._go_back(before)
        arrivals = Arrivals(lines)
        late = late_arrivals(opened.memory, arrivals)
        try:
            seen = self._seen(batch, following, late, arrivals.arrived())
        except SessionFailed as lost:
            error = f"{lost.failure.error}, before a copy to the host arrived, given at "
            failure = replace(lost.failure, error=error + ", ".join(lines))
            raise SessionFailed(failure) from lost
        finally:
            arrivals.wait()
        return self._in_terms(batch, seen)

    def _run_held(self, step: StepRecord, following: Batch | None, before: Snapshot) -> None:
        """On a device: while it is held."""
        given = PinnedCopies()
        seen = self._led(step.batch, following, self._lead(given))
        self.late_copies.update([*given.to_device, *given.to_host])
        replay = step.runs["replay"]
        if not same(seen, replay):
            # The same without a lead: what differs there too is no matter of when a copy runs.
            self._go_back(before)
            if same(self._led(step.batch, following), replay):
                step.rewritten = tuple(dict.fromkeys(given.to_device))
                step.unarrived = tuple(dict.fromkeys(given.to_host))
                step.runs["ahead"] = seen
            else:
                self.unrepeatable += 1
        # Memory of the host may be at the next step.
        self._again(step, before)

    @contextmanager
    def _lead(self, given: PinnedCopies) -> Iterator[None]:
        """Inside, a device begins late, and copies from and to pinned memory are noted."""
        with self._opened.graphs.held(), given:
            yield

    def _led(
        self,
        batch: Batch,
        following: Batch | None,
        lead: AbstractContextManager[object] | None = None,
    ) -> Observation:
        """What a device is given for a step while the host goes on to the next one. Looked at is
        what the step left, behind the lead: a target reads numbers there, for which the host would
        have to wait.

        Args:
            lead: entered, and left where the device is waited for; None gives no lead.
        """
        opened, session = self._opened, self._opened.session
        stage = "prepare"
        try:
            # Nobody looks at what is handed over in this run; to read it would end the lead.
            with opened.memory.over_lanes(), opened.taking_down_later():
                opened.wait()
                with lead or nullcontext():
                    session.prepare_replay(batch)
                    stage = "replay"
                    session.replay(batch)
                    if lead is None:
                        opened.wait()
                    left = opened.snapshot()
                    if following is not None:
                        self._prepare(following)
                opened.restore(left)
                stage = "check"
                seen = session.observe(batch)
        except BaseException as error:
            opened.border.judge(error, stage, "ahead")
            raise
        return self._in_terms(batch, seen)

    def _seen(
        self,
        batch: Batch,
        following: Batch | None,
        around: AbstractContextManager[object],
        observing: AbstractContextManager[object],
    ) -> Observation:
        """What the device is given for a step, while the host goes on to the next one.

        Args:
            around: entered for all of it.
            observing: entered while the harness looks, which an engine would not do here.
        """
        opened, session = self._opened, self._opened.session
        stage = "prepare"
        try:
            # Nobody looks at what is handed over in this run; to read it would end the lead.
            with opened.memory.over_lanes(), around, opened.taking_down_later():
                session.prepare_replay(batch)
                stage = "replay"
                session.replay(batch)
                stage = "check"
                with observing:
                    seen = session.observe(batch)
                if following is not None:
                    self._prepare(following)
        except BaseException as error:
            opened.border.judge(error, stage, "ahead")
            raise
        return seen

    def _prepare(self, following: Batch) -> None:
        """What the engine's host does for the next step."""
        # The next step's own state is not written yet, so the engine may well refuse it. Whether it
        # takes the step is judged when the step is run.
        with suppress(Exception):
            if following.via == "eager":
                self._opened.session.eager(following)
            else:
                self._opened.session.prepare_replay(following)

    def _agrees_with_itself(self, step: StepRecord, before: Snapshot) -> bool:
        """Whether the step, run once more without a lead, gives the same."""
        return same(self._again(step, before), step.runs["replay"])

    def _again(self, step: StepRecord, before: Snapshot) -> Observation:
        """The step once more without a lead; the session is then at this step again, and not at the
        next one."""
        self._go_back(before)
        return self._execute(step.batch, "again")

    def _go_back(self, before: Snapshot) -> None:
        """To before the step, as if no next one had been prepared."""
        drop_handed(self._opened.session)
        self._opened.restore(before)

    def _late(
        self,
        step: StepRecord,
        stream: LateStream,
        seen: Observation,
        late_stream: int | None = None,
    ) -> Observation:
        """What the step gives with copies as late as they may be, or one stream's work.

        Raises:
            SessionFailed: its kernels fail on that.
        """
        try:
            stream.repeat(late=late_stream is None, late_stream=late_stream)
        except Exception as error:  # of whatever kind: torch and models of kernels raise it
            text, where = printable_error(error), ", ".join(step.rewritten or step.unordered)
            failure = RunFailure("ahead", "replay", "exception", text, where)
            raise SessionFailed(failure) from error
        return self._in_terms(step.batch, seen)

    def _in_terms(self, batch: Batch, seen: Observation) -> Observation:
        """A copy of what was seen, in terms of the batch."""
        copied = replace(
            seen,
            outputs={name: tensor.clone() for name, tensor in seen.outputs.items()},
            metadata={name: tensor.clone() for name, tensor in seen.metadata.items()},
        )
        copied = on_host(copied, self._opened.memory.crossings)
        return in_terms_of(batch, copied, self._opened.session.fields, self._opened.config)
