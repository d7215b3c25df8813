"""Opens a target inside guarded memory, captures its graphs, and can put it back to that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from fuzzgraph.accesses import Access, Race
from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.errors import ArenaFull
from fuzzgraph.execution.failures import Border
from fuzzgraph.execution.kernels import take_accesses, take_races
from fuzzgraph.execution.pool_writer import PoolWriter, StepState
from fuzzgraph.execution.pools import require_pools
from fuzzgraph.graphs import open_engine
from fuzzgraph.memory import (
    ROOMY_CAPACITY,
    Bindings,
    GuardedMemory,
    Image,
    Perturbation,
    PythonStateWatch,
)
from fuzzgraph.observation import AddressChange, Field, ForeignWrite, ZoneHit
from fuzzgraph.ports import GraphEngine, Session, Target, is_isolated
from fuzzgraph.run_spec import DEFAULT_SETUP, Setup
from fuzzgraph.targets.protocol import require_session
from fuzzgraph.world import TRAPS

__all__ = ["Snapshot", "OpenSession", "open_session"]

# Images besides those in other worlds: after capture, and before and after a replay.
_MOMENTS = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Bytes and attributes of a session at one moment."""

    image: Image
    attributes: Bindings


@dataclass(slots=True)
class OpenSession:
    """A session, its memory, and how both looked just after capture."""

    config: EngineConfig
    session: Session
    graphs: GraphEngine
    memory: GuardedMemory
    pool_writer: PoolWriter
    border: Border
    opening_hits: list[ZoneHit] = field(default_factory=list)
    opening_writes: list[ForeignWrite] = field(default_factory=list)
    opening_accesses: list[Access] = field(default_factory=list)
    _captured: Snapshot = field(init=False)
    _watch: PythonStateWatch = field(init=False)
    _images: dict[int, Image] = field(init=False, default_factory=dict)
    _fields: dict[str, Field] = field(init=False)
    _dtypes: dict[str, torch.dtype] = field(init=False, default_factory=dict)

    def remember_capture(self) -> None:
        """Take this moment as the one `reset` returns to."""
        self._watch = PythonStateWatch(self.session.roots)
        self._captured = Snapshot(self.memory.snapshot(), self._watch.first)
        self._fields = {declared.name: declared for declared in self.session.fields}
        captured = self.session.captured_addresses().items()
        self._dtypes = {name: tensor.dtype for name, (tensor, _) in captured}

    def snapshot(
        self, instead_of: Snapshot | None = None, attributes: Bindings | None = None
    ) -> Snapshot:
        """This moment, to come back to.

        Args:
            instead_of: one that is over, whose memory is used again.
            attributes: the bindings, where they are known.
        """
        image = self.memory.snapshot(None if instead_of is None else instead_of.image)
        return Snapshot(image, attributes or self._watch.snapshot())

    def restore(self, moment: Snapshot) -> None:
        """Bytes and attributes as they were at that moment."""
        self.memory.restore(moment.image)
        self._watch.restore(moment.attributes)

    def at_capture(self, tensor: torch.Tensor) -> torch.Tensor:
        """A guarded tensor as it was just after capture."""
        return self.memory.as_in(self._captured.image, tensor)

    def reset(self) -> None:
        """As it was just after capture."""
        self.restore(self._captured)

    def reset_in_world(self, world: int) -> None:
        """As it was just after capture, with all memory that no batch owns as `world` has it."""
        image = self._images.get(world)
        if image is None:
            changes = [
                *self.memory.unwritten_perturbation(world),
                Perturbation("pools", lambda: self.pool_writer.fill_unowned(world)),
                *self.rewritten(),
            ]
            image = self.memory.image_in(self._captured.image, world, changes)
            self._images[world] = image
        self.memory.restore_in(image, world)
        self._watch.restore(self._captured.attributes)

    def discard_kernel_reports(self) -> None:
        """What kernels did so far, e.g. in the twins of the last step, is nobody's business."""
        self.take_accesses()
        self.take_races()

    def take_accesses(self) -> list[Access]:
        """What kernels did outside of their memory since the last call."""
        return take_accesses(self.memory)

    def take_races(self) -> list[Race]:
        """Programs of a launch that met since the last call."""
        return take_races(self.memory, self.session.pools)

    def moved_buffers(self) -> tuple[list[AddressChange], list[tuple[str, str, str]]]:
        """Buffers that lie elsewhere than the graphs captured, and those of another dtype."""
        moved, retyped = [], []
        for name, (tensor, captured) in self.session.captured_addresses().items():
            if tensor.data_ptr() != captured:
                moved.append(AddressChange(name, captured, tensor.data_ptr()))
            if (dtype := self._dtypes.get(name, tensor.dtype)) != tensor.dtype:
                retyped.append((name, str(dtype)[6:], str(tensor.dtype)[6:]))
        return moved, retyped

    @property
    def held_bytes(self) -> int:
        """About what it costs to keep this session open."""
        return self.memory.held_bytes(images=len(self._images) + _MOMENTS)

    @property
    def reserved_bytes(self) -> int:
        """Address space that this session takes, whether or not it is touched."""
        return self.memory.arena.capacity

    def close(self) -> None:
        """End the session and give its memory back at once; none of its tensors may be used again.

        Engines are full of reference cycles: the garbage collector would come much later.
        """
        try:
            with self.border.crossing("check"):
                self.session.close()
        finally:
            self.graphs.close()
            self.memory.release()

    def static_buffers(self) -> Iterator[tuple[Field, torch.Tensor]]:
        """Each declared field with the whole buffer that the engine writes it to.

        An engine with several runners names them "runner.field". A buffer that the engine has
        allocated anew during a step lies outside guarded memory, and its new address is a finding.
        """
        with self.border.crossing("check"):
            found = self.session.captured_addresses()
        for name, (tensor, _) in found.items():
            declared = self._fields.get(name.rsplit(".", 1)[-1])
            if declared is not None and self.memory.region_of(tensor) is not None:
                yield declared, tensor

    def write_step_state(self, state: StepState, image: Image) -> None:
        """Give a session without a past a step's state, and the past's harmless leftovers.

        Tails that the target declares free, and what padded rows left in the reserved slot, may
        differ between any two histories: both runs get the same.

        Args:
            image: the memory that the step has with its past.
        """
        state.write()
        self.pool_writer.keep_reserved(image)
        for declared, tensor in self.static_buffers():
            if declared.padding.kind == "free" and not declared.rewritten:
                tensor.copy_(self.memory.as_in(image, tensor))

    def candidates(self, state: StepState, world: int) -> list[Perturbation]:
        """All memory that a step does not own, place by place, with its change to `world`."""
        memory = self.memory
        candidates = [*memory.zone_perturbations(world), *memory.unwritten_perturbation(world)]
        return [*candidates, *state.dont_care(world)]

    def rewritten(self) -> Iterator[Perturbation]:
        """Buffers whose content before prepare_replay is nobody's business, changed to world B."""
        for declared, tensor in self.static_buffers():
            if declared.rewritten:
                first = 1 if declared.axis == "indptr" else 0  # offsets start at a zero set once
                yield Perturbation(
                    f"{declared.name} as the previous replay left it", _trap(tensor[first:])
                )


def _trap(tensor: torch.Tensor) -> Callable[[], None]:
    def change() -> None:
        tensor.fill_(TRAPS[1])

    return change


def open_session(
    target: Target,
    config: EngineConfig,
    setup: Setup = DEFAULT_SETUP,
) -> OpenSession:
    """Open, warm up and capture.

    Raises:
        SessionFailed: the engine raised at one of these stages. TargetFailed, HarnessFailed: the
            target or FuzzGraph itself did. ArenaFull: the config is too large for guarded memory.
    """
    content_for(config).build()
    try:
        return _opened(target, config, setup, capacity=None)
    except ArenaFull:
        return _opened(target, config, setup, capacity=ROOMY_CAPACITY)


def _opened(
    target: Target,
    config: EngineConfig,
    setup: Setup,
    *,
    capacity: int | None,
) -> OpenSession:
    isolated = is_isolated(target)
    memory = GuardedMemory(
        setup.device,
        zone_bytes=256 if isolated else 128,
        tail_factor=config.page_size,
        tail_cap=(64 if isolated else 2) << 10,
        keep_pool=isolated,
        stock_kernels=setup.stock_kernels,
        capacity=capacity,
    )
    engine = open_engine(setup.graphs, memory)
    stage, border = "open", Border(target)
    try:
        with memory.intercept("engine"):
            session = target.open(config, engine)
        require_session(session)
        require_pools(session, config)
        border = Border(target, session)
        opened = OpenSession(
            config,
            session,
            engine,
            memory,
            PoolWriter(session.pools, config, memory),
            border,
        )
        opened.pool_writer.fill_unowned(0)
        stage = "warmup"
        with memory.intercept("scratch"):
            session.warm_up()
        stage = "capture"
        with memory.intercept("engine"):
            session.capture()
        memory.name_regions(session.roots)
    except ArenaFull:
        raise
    except BaseException as error:
        border.judge(error, stage)
        raise
    opened.pool_writer.use_region_names()
    opened.opening_hits = memory.zone_hits("capture")
    opened.opening_writes = opened.pool_writer.written_in_capture()
    opened.opening_accesses = opened.take_accesses()
    with border.crossing("capture"):
        opened.remember_capture()
    return opened
