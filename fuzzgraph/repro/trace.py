"""Runs a case once more and keeps every operation, so that it can be printed.

A fresh session is opened; each step is laid out, prepared, replayed and observed as in `execution`,
under `memory.tracing`. A replayed graph is one event: its operations are those recorded at capture.
Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.case import EngineConfig
from fuzzgraph.execution.open_session import open_session
from fuzzgraph.execution.session import OpenSession
from fuzzgraph.graphs import RecordedGraph, RecordedOp
from fuzzgraph.memory import Region
from fuzzgraph.memory.operator_facts import facts_of, tensors_in
from fuzzgraph.memory.source_lines import innermost_source, sources_of
from fuzzgraph.memory.tracing import tracing
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine, Session, Target
from fuzzgraph.process.interrupts import signal_may_have_raised
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.run.spec import Setup
from fuzzgraph.world import Batch

Graph = RecordedGraph[Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """The operation that raised, or, if none did, the error that the engine's Python raised."""

    op: RecordedOp | None
    error: str
    sources: tuple[str, ...] = ()
    """Lines of the engine that the error came through, the innermost first."""


Event = RecordedOp | Graph


@dataclass(slots=True)
class Run:
    """One way through one step."""

    batch: Batch
    kind: Literal["step", "eager", "twin", "capture"] = "step"
    start: torch.Tensor | None = None
    """Bytes when the run began to prepare, the step's world laid out."""
    unlaid: torch.Tensor | None = None
    """Bytes before the world was laid out."""
    events: list[Event] = field(default_factory=list)
    looks: list[Event] = field(default_factory=list)
    """Operations of `observe`."""
    seen: Observation | None = None
    results: dict[str, torch.Tensor] = field(default_factory=dict)
    """What the engine handed out, not copied."""
    failure: Failure | None = None


class _LastAttempt(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows the operation that is being run, should it not come back."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op: RecordedOp | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.op = RecordedOp(str(func), func, args, dict(kwargs or {}), (), innermost_source(2))
        out = func(*args, **(kwargs or {}))
        self.op = None
        return out


class Watcher:
    """Told of the operations of a recording, those inside of a replay one by one."""

    def before(self, op: RecordedOp) -> None:
        """A launch, or an operation inside of a replay, is about to run."""

    def after(self, op: RecordedOp) -> None:
        """An operation or a launch ran."""


class _WatchedTarget:
    """A target whose opening, warm-up and capture are traced."""

    def __init__(self, target: Target, watcher: Watcher) -> None:
        self.name, self.capabilities = target.name, target.capabilities
        self.unwrapped = self._target = target
        self.events: list[Event] = []
        self._watcher = watcher

    def _took_place(self, op: RecordedOp) -> None:
        self.events.append(op)
        self._watcher.after(op)

    def unsupported(self, config: EngineConfig) -> str | None:
        return self._target.unsupported(config)

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        with tracing(self._took_place, self._watcher.before), _replays_watched(self._watcher):
            session = self._target.open(config, graphs)
        for name in ("warm_up", "capture"):
            setattr(session, name, self._traced(getattr(session, name)))
        return session

    def _traced(self, method: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            with tracing(self._took_place, self._watcher.before), _replays_watched(self._watcher):
                method()

        return call


class Recording:
    """A session with everything that was run on it."""

    def __init__(self, opened: OpenSession, watcher: Watcher, *, over_lanes: bool = False) -> None:
        self.opened = opened
        self.watcher = watcher
        self._over_lanes = over_lanes
        self.memory = opened.memory
        self.runs: list[Run] = []
        self.graphs: dict[str, Graph] = {}
        self.opening: list[Event] = []
        """Operations of open, warm-up and capture, where these were recorded."""
        self.host: dict[int, torch.Tensor] = {}
        """Content of host memory that the engine read, by the address of its storage."""
        self.reached: set[int] = set()
        """Regions that an access through a view of the whole arena touched, by id."""
        self._known: set[int] = set()
        self._alive: list[Any] = []
        self._laid: torch.Tensor | None = None
        self._regions = [each for each in self.memory.regions if each.segment != "scratch"]
        self.spans = _spans(self._regions)
        """(start, end) in the arena of the parts that hold regions."""
        self.captured = self.image()

    # ---- running

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        config: EngineConfig,
        target: Target,
        *,
        opening: bool,
        watcher: Watcher | None = None,
        over_lanes: bool = False,
    ) -> Recording:
        """Open a fresh session of `target`.

        Args:
            opening: whether to keep the operations of that as well.
            watcher: told of every operation.
            over_lanes: whether kernels run over lanes, as in a check; else by Triton's own
                interpreter, as in a script, which refuses some that the lanes run.

        Raises:
            SessionFailed: the engine raised.
        """
        watcher = watcher or Watcher()
        watched = _WatchedTarget(target, watcher)
        opened = open_session(watched if opening else target, config, Setup())
        recording = cls(opened, watcher, over_lanes=over_lanes)
        recording.opening = watched.events
        return recording

    @torch.no_grad()
    def add(self, batch: Batch, kind: Literal["step", "eager", "twin"] = "step") -> Run:
        """One more run from the session's present state; the world is laid out for a `step`.

        The first run after `lay` is the one for which the script lays it out.
        """
        run = Run(batch, kind)
        if kind == "step" and self._laid is None:
            self.lay(batch)
        run.unlaid, self._laid = self._laid, None
        return self.execute(run)

    @torch.no_grad()
    def lay(self, batch: Batch) -> torch.Tensor:
        """Lay out the world of the next step ahead of it; the bytes before."""
        self._laid = self.image()
        self.opened.pool_writer.state_of(batch).lay()
        return self._laid

    @torch.no_grad()
    def execute(self, run: Run) -> Run:
        """Prepare, replay and observe, traced; the world is as the caller left it."""
        run.start = self.image()
        session, batch = self.opened.session, run.batch
        self.runs.append(run)
        last = _LastAttempt()
        try:
            with last, self._launching(), self._traced(run.events):
                if run.kind == "eager" or batch.via == "eager":
                    session.eager(batch)
                else:
                    session.prepare_replay(batch)
                    session.replay(batch)
            with self._traced(run.looks):
                run.seen = session.observe(batch)
            run.results = dict(session.results())
        except NotStandalone:  # raised by what watches here, inside of the engine's call
            raise
        except BaseException as error:  # the engine's own, and what the script is about
            if not isinstance(error, Exception):
                raise _no_script(error) from None
            op = last.op or self._failed
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            run.failure = Failure(op, said, sources_of(error))
        self._alive.append(run.seen)
        return run

    def image(self) -> torch.Tensor:
        """Bytes of engine and graph memory as they are now, span after span."""
        raw = self.memory.arena.bytes
        return torch.cat([raw[:0], *(raw[start:end] for start, end in self.spans)])

    # ---- memory

    def regions(self) -> list[Region]:
        """Engine and graph memory, ascending."""
        return self._regions

    def payload(self, region: Region, image: torch.Tensor) -> torch.Tensor:
        """A region's content in bytes saved earlier, in its own form."""
        flat = self.raw(region, image).clone().view(region.dtype)
        return flat.as_strided(region.shape, region.stride)

    def raw(self, region: Region, image: torch.Tensor) -> torch.Tensor:
        """A region's payload in bytes saved earlier, as uint8."""
        at = 0
        for start, end in self.spans:
            if start <= region.offset < end:
                first = at + region.offset - start
                return image[first : first + region.nbytes]
            at += end - start
        raise AssertionError(f"region {region.name} lies in no span")

    def zone_bytes(self, region: Region) -> torch.Tensor:
        """A copy of both red zones of a region, uint8."""
        raw, stop = self.memory.arena.bytes, region.offset + region.nbytes
        return torch.cat((raw[region.start : region.offset], raw[stop : region.end]))

    def offset(self, address: int) -> int | None:
        """Arena offset of an address, None outside."""
        offset = address - self.memory.arena.address
        return offset if 0 <= offset < self.memory.arena.capacity else None

    # ---- tracing

    def _launching(self) -> AbstractContextManager[None]:
        return self.memory.over_lanes() if self._over_lanes else nullcontext()

    _failed: RecordedOp | None = None

    @contextmanager
    def _traced(self, events: list[Event]) -> Iterator[None]:
        def on_op(op: RecordedOp) -> None:
            self._note(op)
            events.append(op)
            self.watcher.after(op)

        def on_replay(graph: Graph) -> None:
            self.graphs.setdefault(graph.key, graph)
            events.append(graph)
            self._replay(graph)

        with _replays_told(on_replay), tracing(on_op, self.watcher.before):
            yield

    def _replay(self, graph: Graph) -> None:
        """Replay step by step, noting what each operation is about to touch."""
        work = [op for op in graph.trace if op.replayed]
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if not graph.continues:  # else the piece before it left what it reads
                self.memory.poison_graph_pool()
            with torch.inference_mode():
                for op, step in zip(work, graph._steps, strict=True):
                    self._failed = op
                    self._note_reach(op)
                    self.watcher.before(op)
                    step()
                    self.watcher.after(op)
                    if op.kind == "model" and not self._over_lanes:
                        self._note_strays(op)
                self._failed = None

    def _note(self, op: RecordedOp) -> None:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            lifts = op.kind == "operation" and facts_of(op.func).is_lift
            for tensor in tensors_of_event(op)[0]:
                self._note_host(tensor)
            for tensor in op.outputs:
                if lifts:
                    self._note_host(tensor)
                self._known.add(tensor.untyped_storage().data_ptr())
            self._note_reach(op)

    def _note_host(self, tensor: torch.Tensor) -> None:
        """Keep the content of memory that no operation made."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self._known or self.offset(address) is not None:
            return
        self._known.add(address)
        count = storage.nbytes() // tensor.element_size()
        self.host[address] = tensor.as_strided((count,), (1,), 0).clone()

    def _note_reach(self, op: RecordedOp) -> None:
        if op.kind != "operation":
            return
        for position, tensor in enumerate(op.args):
            if isinstance(tensor, torch.Tensor) and self.is_wide(tensor):
                self._reach_through(op, position, tensor)

    def _note_strays(self, op: RecordedOp) -> None:
        """Regions that the launch of a model reached beside those that it was passed."""
        for access in self.memory.lanes.report.take_accesses():
            start, region = self.offset(access.address), self.memory.region_at(access.address)
            if start is None or region is None:
                raise NotStandalone(f"{op.name} reaches memory that it was not passed")
            # A model that calls another one's has other names for what it was passed.
            argument = op.kwargs.get(access.buffer)
            passed = argument.dtype if isinstance(argument, torch.Tensor) else region.dtype
            size = passed.itemsize
            low, high = start + access.low * size, start + (access.high + 1) * size
            self.reached |= {
                id(region) for region in self.regions() if region.start < high and low < region.end
            }

    def is_wide(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor spans more than one region's payload."""
        if self.offset(tensor.data_ptr()) is None or not tensor.numel():
            return False
        region = self.memory.region_of(tensor)
        if region is None:
            return True
        start = tensor.data_ptr() - self.memory.arena.address
        span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        end = start + span * tensor.element_size()
        return start < region.offset or end > region.offset + region.nbytes

    def _reach_through(self, op: RecordedOp, position: int, tensor: torch.Tensor) -> None:
        base = op.name.split(".")[1]
        index = _row_index(base, op.args)
        if position == 0 and index is not None:
            starts = torch.unique(index) * tensor.stride(0) * tensor.element_size()
            begin = tensor.data_ptr() - self.memory.arena.address
            for start in starts.tolist():
                self._mark(begin + start)
        elif tensor.numel() * tensor.element_size() < 1 << 22:
            begin = tensor.data_ptr() - self.memory.arena.address
            end = begin + tensor.numel() * tensor.element_size()
            self.reached |= {
                id(region) for region in self.regions() if region.start < end and region.end > begin
            }

    def _mark(self, offset: int) -> None:
        for region in self.regions():
            if region.start <= offset < region.end:
                self.reached.add(id(region))


def _spans(regions: list[Region]) -> tuple[tuple[int, int], ...]:
    spans: list[tuple[int, int]] = []
    for region in regions:
        if spans and region.start - spans[-1][1] < 1 << 16:
            spans[-1] = (spans[-1][0], region.end)
        else:
            spans.append((region.start, region.end))
    return tuple(spans)


_ALONG_ROWS = {"index_select", "index_copy_", "index_fill_", "index_add_", "gather", "scatter_"}
"""Operations that address dimension 0 by their third argument."""


def _row_index(base: str, args: tuple[Any, ...]) -> torch.Tensor | None:
    """The rows of its first argument that an operation addresses; None where it takes all."""
    if base in ("take", "put_"):
        index = args[1]
    elif base in _ALONG_ROWS and len(args) > 2 and args[1] == 0:
        index = args[2]
    else:
        return None
    return index if isinstance(index, torch.Tensor) else None


@contextmanager
def _replays_told(callback: Callable[[Graph], None]) -> Iterator[None]:
    """Hand each replay of a recorded graph to `callback` instead of running it."""
    original = RecordedGraph.replay
    RecordedGraph.replay = callback  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        RecordedGraph.replay = original  # type: ignore[method-assign]


@contextmanager
def _replays_watched(watcher: Watcher) -> Iterator[None]:
    """Tell of the operations inside of each replay, as of those outside."""
    original = RecordedGraph._run

    def run(graph: Graph) -> None:
        work = [op for op in graph.trace if op.replayed]
        with torch.inference_mode(), graph._memory.unguarded():
            for op, step in zip(work, graph._steps, strict=True):
                watcher.before(op)
                step()
                watcher.after(op)

    RecordedGraph._run = run  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        RecordedGraph._run = original  # type: ignore[method-assign]


def tensors_of_event(op: RecordedOp) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(arguments, results) of one operation that are tensors."""
    return tensors_in([*op.args, *op.kwargs.values()]), list(op.outputs)


def _no_script(error: BaseException) -> BaseException:
    """Why an engine that leaves by `sys.exit` or its like has no script of its own."""
    if isinstance(error, KeyboardInterrupt) and signal_may_have_raised():
        return error
    return NotStandalone(f"the engine raises {type(error).__name__}, which ends a script")
