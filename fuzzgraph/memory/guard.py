"""Guarded memory: every fresh tensor of the engine becomes a view of the arena, between red zones.

One dispatch mode does it all, for the engine's own buffers, for intermediates of captured graphs
and for scratch; the recorder listens to it instead of stacking a mode of its own. "Fresh" is
decided by storage, never by a list of operators.

Limits: memory that was allocated outside `intercept` is not guarded; `torch.frombuffer` dispatches
nothing and goes unseen; memory of another device than the guard's is left alone; writes count only
where they land in a red zone and change it. A NumPy array handed to `torch.from_numpy` is copied,
so later writes through the array do not reach the tensor (`adopt_numpy=False` keeps the two shared,
and unguarded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.memory.arena import Arena, address_of, storage_key
from fuzzgraph.memory.image import Image
from fuzzgraph.memory.launches import Launch, LaunchHook
from fuzzgraph.memory.operations import Facts, facts_of, tensors_in
from fuzzgraph.memory.placement import Layout, extent
from fuzzgraph.memory.regions import Region, Segment
from fuzzgraph.memory.resizing import Resizing
from fuzzgraph.memory.worlds import Perturbation, Worlds
from fuzzgraph.observation import ZoneHit

__all__ = ["GuardedMemory", "Listener"]

Tensors = tuple[torch.Tensor, ...]
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_FACTS: dict[Any, Facts] = {}
"""Facts of every operator met in this process; they never change."""


def _unguarded(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The harness's own allocations inside a method are no business of the guard's."""

    @wraps(method)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        guard: Any = args[0]
        if not guard.intercepting:
            return method(*args, **kwargs)
        with guard.unseen():
            return method(*args, **kwargs)

    return call


class Listener:
    """Told of every operation and launch that the guard sees; override what is needed."""

    def before_operation(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> None:
        """An operation is about to run; raise to refuse it."""

    def on_operation(
        self, func: Any, facts: Facts, args: Any, kwargs: Any, out: Any, fresh: Tensors
    ) -> None:
        """An operation ran; `fresh` are those results that have memory of their own."""

    def on_launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An interpreted Triton kernel was launched."""


class GuardedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """All memory an engine allocates, guarded and poisoned, in one arena.

    Args:
        device: device whose allocations are guarded.
        zone_bytes: red zone before and at least after an engine buffer, bytes.
        tail_factor: the zone after an engine buffer of integers is this many times its size,
            because confusing pages and tokens overshoots by a share of the buffer.
        tail_cap: most bytes of such a zone.
        world: home world, whose poison fresh memory holds.
        capacity: bytes of the arena; None chooses 512 MiB of address space on a CPU (untouched
            pages are free) and 64 MiB on a device.
        adopt_numpy: whether `torch.from_numpy` yields a guarded copy.
        keep_pool: whether snapshots hold the graph pool too: for engines that read a graph's
            outputs again after other work was done. Each replay poisons the pool first anyway.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        zone_bytes: int = 256,
        tail_factor: float = 1,
        tail_cap: int = 64 << 10,
        world: int = 0,
        capacity: int | None = None,
        adopt_numpy: bool = True,
        keep_pool: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = torch.empty(0, device=device).device
        self.world = world
        self.arena = Arena(self.device, capacity)
        self._layout = Layout(self.arena, zone_bytes, tail_factor, tail_cap, world)
        self._worlds = Worlds(self._layout)
        self._resizing = Resizing(self._layout)
        self._adopt_numpy = adopt_numpy
        self._keep_pool = keep_pool
        self._storage = self.arena.storage_key
        self._segment: Segment = "engine"
        self._listener: Listener | None = None
        self._depth = 0
        self._touched: set[int] = set()
        self._hook = LaunchHook()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the wrapper it asks for imports the compiler (a second) and slows each call."""
        return False

    # ---- interception

    @contextmanager
    def intercept(self, segment: Segment, listener: Listener | None = None) -> Iterator[None]:
        """Guard every allocation made inside; may be nested, one mode stays active.

        Entering "scratch" frees what the last scratch run allocated.
        """
        outer = self._segment, self._listener
        self._segment, self._listener = segment, listener
        if segment == "scratch" and (self._depth == 0 or outer[0] != "scratch"):
            self._layout.restart_scratch()
        if self._depth == 0:
            self._hook.install(self._launch)
            self.__enter__()  # type: ignore[no-untyped-call]
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                self._hook.remove()
            self._segment, self._listener = outer

    @property
    def intercepting(self) -> bool:
        """Whether the guard is active right now."""
        return self._depth > 0

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Run the harness's own operations inside `intercept` without guarding them."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            yield

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        facts = _FACTS.get(func)
        if facts is None:
            facts = _FACTS[func] = facts_of(func)
        if self._listener is not None:
            return self._reported(func, facts, args, kwargs or {})
        return self._run(func, facts, args, kwargs)[0]

    def _run(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[Any, Tensors]:
        """Result of an operation, and those tensors that it allocated."""
        fresh: Tensors = ()
        if facts.may_resize:
            fresh = self._resizing.make_room(func, facts, args, kwargs or {}, self._segment)
        out = facts.call(*args, **kwargs) if kwargs else facts.call(*args)
        if out.__class__ is tuple or out.__class__ is list:
            out, fresh = self._adopt_each(func, facts, out, args, kwargs)
        elif isinstance(out, torch.Tensor) and out.untyped_storage()._cdata != self._storage:
            out, fresh = self._adopt(func, facts, out, args, kwargs)
        if facts.writes:
            self._mark_written(facts, args, kwargs)
        return out, fresh

    def _reported(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        listener = self._listener
        assert listener is not None
        listener.before_operation(func, facts, args, kwargs)
        out, fresh = self._run(func, facts, args, kwargs)
        listener.on_operation(func, facts, args, kwargs, out, fresh)
        return out

    def _adopt(
        self, func: Any, facts: Facts, out: torch.Tensor, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[torch.Tensor, Tensors]:
        """The result moved into the arena, if its storage is new."""
        storage = out.untyped_storage()
        if facts.is_lift:
            if not self._adopt_numpy and not storage.resizable():
                return out, ()
        elif _holds(storage._cdata, args) or (kwargs and _holds(storage._cdata, kwargs.values())):
            return out, ()
        if (
            out.__class__ is not torch.Tensor
            or out.device != self.device
            or out.layout is not torch.strided
        ):
            return out, ()
        slot = self._layout.slot(func, out, self._segment, born_empty=facts.is_empty)
        view = slot.base.as_strided(out.shape, out.stride(), slot.element)
        if not facts.is_empty:
            _copy_whole(view, out)
        return view, (view,)

    def _adopt_each(
        self, func: Any, facts: Facts, out: Any, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[Any, Tensors]:
        items = list(out)
        fresh: list[torch.Tensor] = []
        for index, item in enumerate(items):
            if isinstance(item, torch.Tensor) and storage_key(item) != self._storage:
                items[index], new = self._adopt(func, facts, item, args, kwargs)
                fresh.extend(new)
        return (out.__class__(items) if fresh else out), tuple(fresh)

    def _mark_written(self, facts: Facts, args: tuple[Any, ...], kwargs: Any) -> None:
        for which in facts.writes:
            if which.__class__ is int:
                target = args[which] if which < len(args) else None
            else:
                target = kwargs.get(which) if kwargs else None
            if isinstance(target, torch.Tensor):
                self._touch(target)
            else:
                for tensor in target or ():
                    self._touch(tensor)

    def _touch(self, tensor: torch.Tensor) -> None:
        address = tensor.data_ptr()
        if address in self._touched:
            return
        region = self._layout.region_of(tensor)
        if region is not None:
            region.touched = True
            self._touched.add(address)

    def _launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an interpreted kernel launch; its own tensor operations are not the engine's."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            result = launch(executor, *args, **kwargs)
        for tensor in tensors_in([*args, *kwargs.values()]):
            self._touch(tensor)
        if self._listener is not None:
            self._listener.on_launch(launch, executor, args, kwargs)
        return result

    # ---- regions

    @property
    def regions(self) -> list[Region]:
        """Every live allocation, ascending: engine and graph, then the last scratch run."""
        return self._layout.persistent + self._layout.scratch

    def region_of(self, tensor: torch.Tensor) -> Region | None:
        """The region that a tensor points into, None if it is not guarded memory."""
        return self._layout.region_of(tensor)

    @_unguarded
    def is_poison(self, tensor: torch.Tensor) -> bool:
        """Whether every byte of a guarded tensor is the graph pool's poison."""
        return self._worlds.is_poison(tensor)

    def name_regions(self, roots: Mapping[str, object]) -> None:
        """Call each engine buffer what the engine calls it; the shortest path wins."""
        self._layout.name_regions(roots)

    # ---- snapshot

    @_unguarded
    def snapshot(self, into: Image | None = None) -> Image:
        """Copy of all engine memory, and of the graph pool where `keep_pool` says so.

        Args:
            into: an earlier image that is no longer needed; its memory is used again.

        Raises:
            FuzzGraphError: taken while memory is perturbed.
        """
        if not self._worlds.at_home:
            raise FuzzGraphError(
                "snapshot() while red zones or the graph pool are perturbed would mix two worlds. "
                "Call restore(snapshot) first."
            )
        return self._image(into)

    def _image(self, into: Image | None = None) -> Image:
        arena, layout = self.arena, self._layout
        engine = arena.bytes[arena.front : layout.engine_top]
        pool = arena.bytes[arena.graph_front : layout.graph_top] if self._keep_pool else None
        if into is None or len(into.engine) != len(engine) or pool is not None:
            return Image(engine.clone(), None if pool is None else pool.clone())
        into.engine.copy_(engine)
        return into

    def _put_back(self, image: Image) -> None:
        arena = self.arena
        arena.bytes[arena.front : arena.front + len(image.engine)].copy_(image.engine)
        if image.pool is not None:
            arena.bytes[arena.graph_front : arena.graph_front + len(image.pool)].copy_(image.pool)

    @_unguarded
    def restore(self, snapshot: Image) -> None:
        """Put memory back, red zones included, and return to the home world.

        What was allocated after the snapshot keeps its content.
        """
        self._put_back(snapshot)
        self._worlds.come_home(pool_restored=snapshot.pool is not None)

    @_unguarded
    def image_in(self, snapshot: Image, world: int, changes: Iterable[Perturbation]) -> Image:
        """What a snapshot looks like in another world: its red zones, its pool, and `changes`.

        Memory is left as the snapshot has it.
        """
        self.restore(snapshot)
        self.zone_perturbation(world).apply()
        for change in changes:
            change.apply()
        image = self._image()
        self.restore(snapshot)
        return image

    @_unguarded
    def restore_in(self, image: Image, world: int) -> None:
        """Put memory to an image that `image_in` made, and live in its world until `restore`."""
        self._put_back(image)
        self._worlds.move_to(world)

    @_unguarded
    def as_in(self, snapshot: Image, tensor: torch.Tensor) -> torch.Tensor:
        """An engine tensor as it was in a snapshot: a view of the snapshot, same shape."""
        offset = address_of(tensor) - self.arena.address - self.arena.front
        base = snapshot.engine.view(tensor.dtype)
        return base.as_strided(tensor.shape, tensor.stride(), offset // tensor.dtype.itemsize)

    def release(self) -> None:
        """Give the arena's memory back; every tensor in it is dead from then on.

        A storage that NumPy has looked into cannot be resized: it goes with its last reference.
        """
        storage = self.arena.bytes.untyped_storage()
        if storage.resizable():
            storage.resize_(0)
        self._layout.forget()

    # ---- red zones and worlds

    @_unguarded
    def zones_intact(self) -> bool:
        """Whether no red zone changed; one comparison, one flag read back."""
        return self._worlds.intact()

    @_unguarded
    def zone_hits(self, stage: str) -> list[ZoneHit]:
        """Every red zone that changed, looked at closely; empty if all are intact."""
        return self._worlds.hits(stage)

    @_unguarded
    def repair_zones(self) -> None:
        """Rewrite all red zones with what they must hold now."""
        self._worlds.repair()

    def zone_perturbation(self, world: int) -> Perturbation:
        """All red zones and the content of the graph pool, changed to `world` at once."""
        return self._worlds.zones_and_pool(world)

    def zone_perturbations(self, world: int) -> list[Perturbation]:
        """The same piece by piece, to find the guilty one."""
        return self._worlds.each_zone(world)

    @_unguarded
    def unwritten_perturbation(self, world: int) -> list[Perturbation]:
        """One for each engine buffer that was born empty and that nothing has written since."""
        return self._worlds.unwritten(world)

    @_unguarded
    def poison_graph_pool(self) -> None:
        """Poison all graph intermediates, as the replay of another graph may clobber them."""
        self._worlds.poison_pool()


def _holds(key: int, values: Any) -> bool:
    """Whether a tensor among the arguments has this storage."""
    for value in values:
        if value.__class__ is int:
            continue
        if isinstance(value, torch.Tensor):
            if value.untyped_storage()._cdata == key:
                return True
        elif isinstance(value, (list, tuple)) and _holds(key, value):
            return True
    return False


def _copy_whole(view: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor into one of equal strides, repeated elements (stride 0) included."""
    if 0 in view.stride() and view.numel() > 1:
        size = [extent(view)]
        view, source = view.as_strided(size, (1,)), source.as_strided(size, (1,))
    view.copy_(source)
