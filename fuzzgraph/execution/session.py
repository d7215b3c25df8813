"""An open session: takes snapshots of it, restores them, and puts it into other worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

import torch

from fuzzgraph.accesses import Access, Misuse, Race
from fuzzgraph.case import EngineConfig
from fuzzgraph.execution.failures import Border
from fuzzgraph.execution.freed_memory import FreedMemory
from fuzzgraph.execution.kernels import take_accesses, take_misuses, take_races
from fuzzgraph.execution.pool_writer import PoolWriter, StepState
from fuzzgraph.fp8_weights import Fp8Weights
from fuzzgraph.graphs.drivers import wait_for
from fuzzgraph.handover import Excuse, Later
from fuzzgraph.memory import (
    Bindings,
    GuardedMemory,
    Image,
    Perturbation,
    PythonStateWatch,
    Room,
    UnguardedBytes,
)
from fuzzgraph.observation import AddressChange, Allocation, Field, ForeignWrite, ZoneHit
from fuzzgraph.ports import GraphEngine, Session
from fuzzgraph.text.finding_text import LEFT_OVER
from fuzzgraph.world import TRAPS

# Images of a cached session besides those of other worlds: the one after capture. Those before and
# after a replay belong to the case that is being run.
_OWN_IMAGES = 1


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
    unguarded: UnguardedBytes
    opening_hits: list[ZoneHit] = field(default_factory=list)
    opening_writes: list[ForeignWrite] = field(default_factory=list)
    opening_accesses: list[Access] = field(default_factory=list)
    opening_misuses: list[Misuse] = field(default_factory=list)
    excuses: tuple[Excuse, ...] = ()
    fp8_weights: Fp8Weights | None = None
    """How kernels round softmax's weights to FP8; None where they do not."""
    freed: FreedMemory = field(init=False)
    _captured: Snapshot = field(init=False)
    _watch: PythonStateWatch = field(init=False)
    _images: dict[int, Image] = field(init=False, default_factory=dict)
    _fields: dict[str, Field] = field(init=False)
    _owed: dict[str, set[str]] = field(init=False, default_factory=dict)
    _dtypes: dict[str, torch.dtype] = field(init=False, default_factory=dict)

    @property
    def damaged_while_opening(self) -> bool:
        """Whether memory was written that nobody may write before the first step."""
        stores = [access for access in self.opening_accesses if access.kind == "write"]
        return any((self.opening_hits, self.opening_writes, stores))

    def owed_at_capture(self, mode: str, shown: Iterable[str]) -> tuple[str, ...]:
        """Names whose values at capture the session has to hand over: those it ever did."""
        if mode not in self._owed:
            compared = getattr(self.session, "compared_at_capture", ())
            self._owed[mode] = {name for name in compared if name in self._fields}
        self._owed[mode].update(shown)
        return tuple(sorted(self._owed[mode]))

    def remember_capture(self) -> None:
        """Take this moment as the one `reset` returns to."""
        self._watch = PythonStateWatch(self.session.roots)
        self._captured = Snapshot(self.memory.snapshot(), self._watch.first)
        self._fields = {declared.name: declared for declared in self.session.fields}
        captured = self.session.captured_addresses().items()
        self._dtypes = {name: tensor.dtype for name, (tensor, _) in captured}
        self.freed = FreedMemory(self.memory, self.graphs, self._watch)

    def snapshot(self, room: Room | None = None, attributes: Bindings | None = None) -> Snapshot:
        """The present state, for `restore`.

        Args:
            room: for its bytes; the snapshot that is there is lost.
            attributes: the present bindings, if the caller has them already.
        """
        return Snapshot(self.memory.snapshot(room), attributes or self._watch.snapshot())

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
        """As it was just after capture, but with all unowned memory as `world` has it."""
        image = self._images.get(world)
        if image is None:
            # Made once for each world and then copied: applying every change costs far more than
            # one copy. The caller writes the step's own state over it.
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
        """Drop the records of kernels so far: those of the last step's comparison runs."""
        self.take_accesses()
        self.take_races()
        self.take_misuses()

    def take_misuses(self) -> list[Misuse]:
        """What kernels were given that they refuse, since the last call."""
        return take_misuses(self.memory)

    def take_accesses(self) -> list[Access]:
        """Accesses outside of a kernel's memory since the last call."""
        return take_accesses(self.memory)

    def take_races(self) -> list[Race]:
        """Races between programs of a launch since the last call."""
        return take_races(self.memory, self.session.pools)

    def moved_buffers(self) -> tuple[list[AddressChange], list[tuple[str, str, str]]]:
        """Buffers that lie elsewhere than the graphs captured, and those of another dtype."""
        moved, retyped = [], []
        for name, (tensor, captured) in self.session.captured_addresses().items():
            if tensor.data_ptr() != captured:
                moved.append(AddressChange(name, captured, tensor.data_ptr()))
            if (dtype := self._dtypes.get(name, tensor.dtype)) != tensor.dtype:
                retyped.append((name, _short(dtype), _short(tensor.dtype)))
        return moved, retyped

    @property
    def held_bytes(self) -> int:
        """Roughly the bytes that it takes to keep this session open."""
        return self.memory.held_bytes(images=len(self._images) + _OWN_IMAGES)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of address space that this session takes, touched or not."""
        return self.memory.arena.capacity

    def close(self) -> None:
        """End the session and give its memory back; none of its tensors may be used again."""
        # Explicitly, because engines are full of reference cycles: left to the garbage collector,
        # the memory of many sessions would pile up.
        try:
            with self.border.crossing("check"):
                self.session.close()
        finally:
            with self.device_may_be_lost():
                self.graphs.close()
                self.memory.release()
            self._images.clear()
            del self._captured  # the largest of what else would wait for the garbage collector

    def taking_down_later(self) -> AbstractContextManager[Later | None]:
        """Inside, what is handed over on a device is not read yet; None where it is read as it
        is."""
        if not self.memory.crossings.gathered:
            return nullcontext()
        return Later(here=self.memory.device.type == "cpu")

    def wait(self) -> None:
        """See `wait_for`; a CPU has done it."""
        if self.memory.device.type != "cpu":
            wait_for(self.memory.device)

    def device_may_be_lost(self) -> AbstractContextManager[None]:
        """Around work behind an engine's failure: a device whose context went with it answers
        nothing any more, and what it says now says nothing of us."""
        return nullcontext() if self.memory.device.type == "cpu" else suppress(RuntimeError)

    def static_buffers(self) -> Iterator[tuple[Field, torch.Tensor]]:
        """Each declared field with the whole buffer that the engine writes it to.

        An engine with several runners calls them "runner.field".
        """
        with self.border.crossing("check"):
            found = self.session.captured_addresses()
        for name, (tensor, _) in found.items():
            # A buffer that the engine allocated during a step is not guarded. Its new address is a
            # finding, see `moved_buffers`.
            declared = self._fields.get(name.rsplit(".", 1)[-1])
            if declared is not None and self.memory.region_of(tensor) is not None:
                yield declared, tensor

    def allocation_of(self, field: str, mode: str) -> Allocation | None:
        """The buffer that holds a field in a mode; None unless exactly one is known."""
        with self.border.crossing("check"):
            found = self.session.captured_addresses()
        names = [name for name in found if name.rsplit(".", 1)[-1] == field]
        names = [name for name in names if name.startswith(f"{mode}.")] or names
        regions = [self.memory.region_of(found[name][0]) for name in names]
        if len(set(regions)) != 1 or regions[0] is None:
            return None
        return Allocation(regions[0].name, regions[0].allocated_at)

    def write_step_state(self, state: StepState, image: Image) -> None:
        """Write a step's state into a session without a past.

        Args:
            image: the memory that the step has with its past; what may differ harmlessly between
                two histories is copied from it.
        """
        state.write()
        # Padded rows may leave anything in the reserved slot, and a padded tail declared free may
        # hold anything. Runs with and without a past have to agree there, or they would differ for
        # a reason that is not a finding.
        self.pool_writer.keep_reserved(image)
        for declared, tensor in self.static_buffers():
            if declared.padding_in(state.mode).kind == "free" and not declared.rewritten:
                tensor.copy_(self.memory.as_in(image, tensor))

    def candidates(self, state: StepState, world: int) -> list[Perturbation]:
        """Each place in memory that a step does not own, with its change to `world`."""
        memory = self.memory
        candidates = [*memory.zone_perturbations(world), *memory.unwritten_perturbation(world)]
        return [*candidates, *state.dont_care(world)]

    def rewritten(self) -> Iterator[Perturbation]:
        """A change to world B of each buffer that `prepare_replay` promises to rewrite."""
        for declared, tensor in self.static_buffers():
            if declared.rewritten:
                # Offsets start with a zero that engines write once and never again.
                first = 1 if declared.axis == "indptr" else 0
                yield Perturbation(f"{declared.name}{LEFT_OVER}", _trap(tensor[first:]))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _trap(tensor: torch.Tensor) -> Callable[[], None]:
    def change() -> None:
        tensor.fill_(TRAPS[1])

    return change
