"""Guarded memory of one session: interception, snapshots, red zones and worlds, in one arena.

A facade over three modules: `interception` moves allocations into the arena, `placement` decides
where each one lies, `worlds` knows what red zones and poison hold in each world. A stray write is
seen only if it lands in a red zone and changes it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.lanes import Lanes
from fuzzgraph.memory.arena import Arena, address_of
from fuzzgraph.memory.arena_regions import ArenaRegions
from fuzzgraph.memory.crossings import Crossings
from fuzzgraph.memory.fresh import FreshPoison
from fuzzgraph.memory.holders import held
from fuzzgraph.memory.image import Image, Room
from fuzzgraph.memory.interception import Interception
from fuzzgraph.memory.placement import Layout
from fuzzgraph.memory.regions import Region
from fuzzgraph.memory.side_requests import own_device
from fuzzgraph.memory.worlds import Perturbation, Worlds
from fuzzgraph.observation import ZoneHit

# Bytes of Python objects for each persistent allocation, as measured on the built-in engine: its
# region, its alias, the recorded operation.
_OBJECTS = 4 << 10

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _off(stock_kernels: bool, device: torch.device) -> str:
    """Why interpreted kernels do not run over lanes; "" if they do."""
    if device.type != "cpu":
        return f"kernels on {device.type} do not run over lanes"
    return "stock kernels were asked for (--stock-kernels)" if stock_kernels else ""


def _unguarded(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run a method without guarding what it allocates: the harness's own tensors."""

    @wraps(method)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        guard: Any = args[0]
        # Outside of `intercept` no mode of ours is on, so there is nothing to switch off.
        if not guard.intercepting:
            return method(*args, **kwargs)
        with guard.unguarded():
            return method(*args, **kwargs)

    return call


class GuardedMemory(Interception):  # type: ignore[no-untyped-call]
    """All memory an engine allocates, guarded and poisoned, in one arena.

    Args:
        device: device whose allocations are guarded.
        zone_bytes: red zone before and at least after an engine buffer, bytes.
        tail_factor: the zone after an engine buffer of integers is this many times its size. An
            engine that mixes up pages and tokens overruns in proportion to the buffer.
        tail_cap: most bytes of such a zone.
        world: home world, whose poison fresh memory holds.
        capacity: bytes of the arena; None chooses the first of `capacities`.
        adopt_numpy: whether `torch.from_numpy` yields a guarded copy.
        keep_pool: whether snapshots hold the graph pool too: for engines that read a graph's
            outputs again after other work was done. Each replay poisons the pool first anyway.
        gathered: whether crossings between host and device are gathered, see `Crossings`; None for
            what the device asks for.
        stock_kernels: whether interpreted kernels run in Triton's own interpreter, else vectorised
            and checked. Has no meaning on a device, where kernels are compiled.
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
        gathered: bool | None = None,
        stock_kernels: bool = False,
    ) -> None:
        self.arena = Arena(own_device(torch.empty(0, device=device).device), capacity)
        self.world = world
        layout = Layout(self.arena, zone_bytes, tail_factor, tail_cap, world)
        self._regions_of_kernels = ArenaRegions(layout)
        off = _off(stock_kernels, self.arena.device)
        super().__init__(
            self.arena,
            layout,
            adopt_numpy=adopt_numpy,
            lanes=Lanes(regions=self._regions_of_kernels, off=off),
        )
        if gathered is None:
            gathered = self.arena.device.type != "cpu"
        self.crossings = Crossings(self.arena.device, gathered=gathered)
        self._worlds = Worlds(layout, self.crossings)
        self._fresh_poison = FreshPoison(layout, self._worlds)
        self._keep_pool = keep_pool

    # ---- regions

    @property
    def regions(self) -> list[Region]:
        """Every live allocation, ascending: engine and graph, then the last scratch run."""
        return self._layout.persistent + self._layout.scratch

    def region_of(self, tensor: torch.Tensor) -> Region | None:
        """The region that a tensor points into, None if it is not guarded memory."""
        return self._layout.region_of(tensor)

    def region_at(self, address: int) -> Region | None:
        """The region whose red zones or payload hold the byte at this address."""
        return self._layout.region_at(address)

    def let_kernels_read_whole(self, rows: Iterable[torch.Tensor]) -> None:
        """From now on a kernel that is passed the first part of one of these rows may read it to
        its end."""
        self._regions_of_kernels.reach_to_the_end_of(rows)

    def side_of(self, tensor: torch.Tensor) -> str:
        """'host' or 'device', as the engine asked for the memory; '' where that is unknown."""
        return self.sides.of(tensor) if tensor.is_cpu else "device"

    def host_apart(self) -> AbstractContextManager[None]:
        """Inside, what the capture of a graph makes of the host's memory is on the host too."""
        return self.sides.host_apart()

    @_unguarded
    def are_poison(self, tensors: Sequence[torch.Tensor]) -> list[bool]:
        """Of each guarded tensor whether every byte of it is the graph pool's poison."""
        return self._worlds.are_poison(tensors)

    def held(
        self,
        regions: Iterable[Region],
        *,
        ours: Collection[int],
        containers: Collection[object] = (),
    ) -> dict[int, weakref.ReferenceType[torch.Tensor]]:
        """Of those of these regions in which something holds a tensor, by their `id`, one of these;
        see `holders.held`."""
        return held(regions, self._layout, ours=ours, containers=containers)

    def name_regions(self, roots: Mapping[str, object]) -> None:
        """Call each engine buffer what the engine calls it; the shortest path wins."""
        self._layout.name_regions(roots)

    @contextmanager
    def over_lanes(self) -> Iterator[None]:
        """As the interception has it; what is allocated without content holds poison."""
        with super().over_lanes(), self._fresh_poison.installed():
            yield

    # ---- snapshot

    @_unguarded
    def snapshot(self, room: Room | None = None) -> Image:
        """Copy of all engine memory, and of the graph pool where `keep_pool` says so.

        Args:
            room: where it goes; the image that is there is lost.

        Raises:
            FuzzGraphError: taken while memory is perturbed.
        """
        if not self._worlds.at_home:
            raise FuzzGraphError(
                "snapshot() while red zones or the graph pool are perturbed would mix two worlds. "
                "Call restore(snapshot) first."
            )
        return self._image(room)

    def _image(self, room: Room | None = None) -> Image:
        arena, layout = self.arena, self._layout
        engine = arena.bytes[arena.front : layout.engine_top]
        pool = arena.bytes[arena.graph_front : layout.graph_top] if self._keep_pool else None
        return (Room() if room is None else room).image_of(engine, pool)

    def _put_back(self, image: Image) -> None:
        arena = self.arena
        arena.bytes[arena.front : arena.front + len(image.engine)].copy_(image.engine)
        if image.pool is not None:
            arena.bytes[arena.graph_front : arena.graph_front + len(image.pool)].copy_(image.pool)

    @_unguarded
    def restore(self, snapshot: Image) -> None:
        """Put memory back, red zones included, and return to the home world.

        What was allocated after the snapshot keeps its content; in the graph pool it is poisoned.
        """
        self._put_back(snapshot)
        # Without a pool in the snapshot, the pool still holds the other world's poison. The next
        # replay poisons it again, and so does `intact` if none came.
        self._worlds.come_home(pool_restored=snapshot.pool is not None)
        if snapshot.pool is not None:
            self._worlds.poison_pool_behind(self.arena.graph_front + len(snapshot.pool))

    @_unguarded
    def restore_device(self, snapshot: Image) -> None:
        """The same for the device's memory alone: the host's keeps its content."""
        held = [(payload, payload.clone()) for payload in self.host_payloads()]
        self.restore(snapshot)
        for payload, content in held:
            payload.copy_(content)

    def host_payloads(self) -> list[torch.Tensor]:
        """The bytes of each buffer that lies on the host."""
        hosts = [region for region in self.regions if region.side == "host"]
        return [self.arena.bytes[each.offset : each.offset + each.nbytes] for each in hosts]

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
        # An image begins where the engine's part begins, not where the arena does.
        offset = address_of(tensor) - self.arena.address - self.arena.front
        base = snapshot.engine.view(tensor.dtype)
        return base.as_strided(tensor.shape, tensor.stride(), offset // tensor.dtype.itemsize)

    def held_bytes(self, images: int) -> int:
        """Roughly what this memory costs, in bytes, with so many images taken of it.

        It counts bytes, what red zones must hold, and the Python objects that belong to each
        persistent allocation.
        """
        touched = self._layout.touched
        copied = touched["engine"] + (touched["graph"] if self._keep_pool else 0)
        objects = _OBJECTS * len(self._layout.persistent)
        return sum(touched.values()) + images * copied + self._worlds.held_bytes + objects

    def release(self) -> None:
        """Give the arena's memory back; every tensor in it is dead from then on."""
        storage = self.arena.bytes.untyped_storage()
        # A storage that NumPy shares cannot be resized. It goes with its last reference.
        if storage.resizable():
            storage.resize_(0)
        self._layout.forget()
        self._worlds.forget()

    # ---- red zones and worlds

    @_unguarded
    def zones_intact(self) -> bool:
        """Whether no red zone changed; a device is waited for once."""
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
        """The same change piece by piece, to find the piece that a result depends on."""
        return self._worlds.each_zone(world)

    @_unguarded
    def unwritten_perturbation(self, world: int) -> list[Perturbation]:
        """One change for each engine buffer without initial content that nothing has written."""
        return self._worlds.unwritten(world)

    @_unguarded
    def is_unwritten(self, address: int) -> bool:
        """Whether an address lies in an engine buffer without initial content that nothing has
        written."""
        region = self.region_at(address)
        return region is not None and self._worlds.is_unwritten(region)

    @_unguarded
    def poison_graph_pool(self) -> None:
        """Poison all graph intermediates, as the replay of another graph may clobber them."""
        # A replay does it, in which a device's memory is counted: tables of poison are no engine's.
        with nullcontext() if self.asked is None else self.unguarded():
            self._worlds.poison_pool()

    @property
    def graph_top(self) -> int:
        """Where in the arena the next graph intermediate goes, bytes."""
        return self._layout.graph_top

    @_unguarded
    def poison_graph_pool_behind(self, offset: int) -> None:
        """Poison what was allocated in the graph pool since `graph_top` was `offset`."""
        self._worlds.poison_pool_behind(offset)
