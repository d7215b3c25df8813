"""Changes memory that no correct engine reads: red zones, the graph pool, unwritten buffers.

The home world is what this memory holds normally. A `Perturbation` changes one piece of it to
another world; restoring a snapshot takes all perturbations back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fuzzgraph.memory.crossings import Crossings
from fuzzgraph.memory.placement import Layout
from fuzzgraph.memory.poison import NAN_HOME, NAN_WORLD, ROW_BYTES
from fuzzgraph.memory.pool_poison import PoolPoison
from fuzzgraph.memory.regions import Region
from fuzzgraph.memory.zones import ZonePlan, zone_hits_in
from fuzzgraph.observation import ZoneHit

# Zone plans of eager runs kept, one per sequence of allocations.
_SCRATCH_PLANS = 64


@dataclass(frozen=True, slots=True)
class Perturbation:
    """One change of memory that no correct engine reads; restoring a snapshot undoes it."""

    region: str
    """What a finding calls the place."""
    apply: Callable[[], None]


class Worlds:
    """Red zones and poison of one layout, and which world each of them is in."""

    def __init__(self, layout: Layout, crossings: Crossings) -> None:
        self._layout = layout
        self._crossings = crossings
        self._home = layout.world
        self._plan = ZonePlan(layout.arena, [])
        # Regions are appended and never removed, so their number tells whether a plan is still
        # complete.
        self._planned = 0
        # What the zones must hold; None means the home world everywhere. `_resident` is the world
        # that memory was moved to as a whole, `_region_worlds` has the regions that were moved
        # alone since.
        self._expected: torch.Tensor | None = None
        self._region_worlds: dict[int, int] = {}
        self._resident = self._home
        # The world that the next poisoning of the pool uses, and the one whose poison is there now.
        # They differ after a restore from an image without a pool.
        self._pool_world = self._pool_holds = self._home
        self.fresh_world = self._home
        """The world whose poison a step's own allocations get, while no graph captures them."""
        self._pool: PoolPoison | None = None  # none before the first capture
        self._pooled = 0
        self._behind: tuple[tuple[int, int], PoolPoison] | None = None
        self._scratch_plans: dict[tuple[int, ...], ZonePlan] = {}

    @property
    def at_home(self) -> bool:
        """Whether no perturbation has been applied since the last restore."""
        return self._expected is None

    def come_home(self, *, pool_restored: bool = True) -> None:
        """Memory has been restored: expect the home world again."""
        self._expected = None
        self._region_worlds = {}
        self._pool_world = self._resident = self.fresh_world = self._home
        if pool_restored:
            self._pool_holds = self._home

    def move_to(self, world: int) -> None:
        """Memory has been restored to an image of `world`: expect that everywhere."""
        self._region_worlds = {}
        self._pool_world = self._resident = self.fresh_world = world
        self._expected = self._zone_plan().expected(world)

    def forget(self) -> None:
        """Drop what was worked out: the layout's memory is given back."""
        self._plan, self._planned, self._expected = ZonePlan(self._layout.arena, []), 0, None
        self._scratch_plans.clear()

    @property
    def held_bytes(self) -> int:
        """What the red zones must hold, and the memory that they are compared in."""
        return sum(plan.held_bytes for plan in (self._plan, *self._scratch_plans.values()))

    # ---- red zones

    def _zone_plan(self) -> ZonePlan:
        layout = self._layout
        if self._planned != len(layout.engine) + len(layout.graph):
            self._plan = ZonePlan(layout.arena, layout.persistent)
            self._planned = len(layout.engine) + len(layout.graph)
            self._expected = None if self.at_home else self._rebuilt_expectation()
        return self._plan

    def _rebuilt_expectation(self) -> torch.Tensor:
        """The expectation after an allocation in a perturbed world.

        Fresh memory is poisoned for the home world, whatever world its neighbours are in.
        """
        expected = self._plan.expected(self._home).clone()
        for region in self._layout.persistent:
            world = self._region_worlds.get(id(region), self._resident)
            if world != self._home:
                self._plan.expect(expected, region, world)
        return expected

    def _scratch_plan(self) -> ZonePlan:
        # Scratch slots are reused, so the same sequence of allocations gives the same regions and
        # one plan serves every eager run of a session.
        key = tuple(map(id, self._layout.scratch))
        plan = self._scratch_plans.get(key)
        if plan is None:
            if len(self._scratch_plans) >= _SCRATCH_PLANS:
                self._scratch_plans.clear()
            plan = ZonePlan(self._layout.arena, self._layout.scratch)
            self._scratch_plans[key] = plan
        return plan

    def _expectation(self, plan: ZonePlan) -> torch.Tensor:
        return plan.expected(self._home) if self._expected is None else self._expected

    def intact(self) -> bool:
        """Whether no red zone changed."""
        plan = self._zone_plan()
        if self._pool_holds != self._pool_world:
            # The zones between intermediates are part of the pool. They must be in the world that
            # the plan expects, also where no replay poisoned them since the world changed.
            self.poison_pool()
        compared = [(plan.seen(), self._expectation(plan))]
        if self._layout.scratch:
            # It gets the home world's poison when it is allocated, and no perturbation moves it.
            plan = self._scratch_plan()
            compared.append((plan.seen(), plan.expected(self._home)))
        return all(self._crossings.same(compared))

    def hits(self, stage: str) -> list[ZoneHit]:
        """Every red zone that changed, looked at closely; empty if all are intact."""
        if self.intact():
            return []
        worlds = [
            (r, self._region_worlds.get(id(r), self._resident)) for r in self._layout.persistent
        ]
        worlds += [(region, self._home) for region in self._layout.scratch]
        return zone_hits_in(self._layout.arena, worlds, stage)

    def repair(self) -> None:
        """Rewrite all red zones with what they must hold now.

        Called after a hit, so that the next check reports only what happened since.
        """
        plan = self._zone_plan()
        plan.write(self._expectation(plan))
        if self._layout.scratch:
            plan = self._scratch_plan()
            plan.write(plan.expected(self._home))

    # ---- perturbations

    def _move(self, regions: list[Region], world: int) -> None:
        """Write the red zones of some regions as `world` has them, and expect that."""
        plan = self._zone_plan()
        # The usual case, all regions at once, needs no expectation mixed from two worlds.
        if len(regions) == len(self._layout.persistent):
            self._expected = plan.expected(world)
            plan.write(self._expected)
        else:
            # Region by region: thousands are moved one by one where the memory to blame is
            # searched for, and to write all zones for each of them took minutes.
            self._expected = self._own_expectation(plan)
            for region in regions:
                plan.expect(self._expected, region, world)
                plan.write_zones_of(region, self._expected)
        self._region_worlds.update((id(region), world) for region in regions)

    def _own_expectation(self, plan: ZonePlan) -> torch.Tensor:
        """What zones must hold, in a tensor that nobody else reads."""
        expected = self._expectation(plan)
        return expected.clone() if plan.is_shared(expected) else expected

    def zones_and_pool(self, world: int) -> Perturbation:
        """All red zones and the content of the graph pool at once."""

        def apply() -> None:
            self._move(self._layout.persistent, world)
            self._pool_world = self.fresh_world = world
            self.poison_pool()

        return Perturbation("red zones", apply)

    def each_zone(self, world: int) -> list[Perturbation]:
        """The same change in pieces: the graph pool, then the red zones of each engine buffer."""
        buffers = self._layout.engine
        return [
            self.pool(world),
            self.fresh(world),
            *(self._zones_of(region, world) for region in buffers),
        ]

    def _zones_of(self, region: Region, world: int) -> Perturbation:
        return Perturbation(f"red zone of {region.name}", lambda: self._move([region], world))

    def pool(self, world: int) -> Perturbation:
        """What graph intermediates hold before a replay writes them, their zones included."""

        def apply() -> None:
            self._move(self._layout.graph, world)
            self._pool_world = world
            self.poison_pool()

        return Perturbation("graph pool", apply)

    def fresh(self, world: int) -> Perturbation:
        """What a step's own allocations hold before they are written, where no graph captures
        them."""

        def apply() -> None:
            self.fresh_world = world

        return Perturbation("fresh memory of the step", apply)

    def unwritten(self, world: int) -> list[Perturbation]:
        """One change for each engine buffer without initial content that nothing has written."""
        return [
            self._payload_of(region, world)
            for region in self._layout.engine
            if self._is_unwritten(region, self._home)
        ]

    def is_unwritten(self, region: Region) -> bool:
        """Whether an engine buffer without initial content holds what nobody has written."""
        worlds = {self._home, self._resident}  # another world changes it on purpose
        return any(self._is_unwritten(region, world) for world in worlds)

    def _is_unwritten(self, region: Region, world: int) -> bool:
        if region.segment != "engine" or not region.born_empty or not region.nbytes:
            return False
        # `touched` alone does not tell: no mode sees what NumPy and compiled kernels write.
        return not region.touched and torch.equal(
            self._payload(region), self._poison_bytes(region, world)
        )

    def _payload(self, region: Region) -> torch.Tensor:
        return self._layout.arena.bytes[region.offset : region.offset + region.nbytes]

    def _poison_bytes(self, region: Region, world: int) -> torch.Tensor:
        # A payload starts on a row, so poison begins with the first byte of the row pattern.
        row = self._layout.poison_row(region.dtype, world).view(torch.uint8)
        return row.repeat(-(-region.nbytes // ROW_BYTES))[: region.nbytes]

    def _payload_of(self, region: Region, world: int) -> Perturbation:
        payload, poison = self._payload(region), self._poison_bytes(region, world)

        def apply() -> None:
            payload.copy_(poison)

        return Perturbation(region.name, apply)

    # ---- the graph pool

    def poison_pool(self) -> None:
        """Put poison into all graph intermediates."""
        if self._pooled != len(self._layout.graph):
            self._plan_pool()
        if self._pool is not None:
            self._pool.write(self._pool_world)
        self._pool_holds = self._pool_world

    def poison_pool_behind(self, offset: int) -> None:
        """Poison the intermediates that a snapshot did not hold: they were in another world."""
        graph = self._layout.graph
        if not graph or graph[-1].start < offset:
            return
        # Planned again only if a capture has added regions since.
        key = offset, len(graph)
        if self._behind is None or self._behind[0] != key:
            late = [region for region in graph if region.start >= offset]
            self._behind = key, PoolPoison(self._layout, late)
        self._behind[1].write(self._pool_world)

    def are_poison(self, tensors: Sequence[torch.Tensor]) -> list[bool]:
        """Of each tensor whether it still holds what `poison_pool` put there; no where that cannot
        be told, because NaN may as well have been computed."""
        nan = self._pool_world in (NAN_WORLD, NAN_HOME)
        told = [not (nan and tensor.is_floating_point()) for tensor in tensors]
        same = iter(
            self._crossings.same(
                self._beside_poison(tensor)
                for tensor, can_be in zip(tensors, told, strict=True)
                if can_be
            )
        )
        return [can_be and next(same) for can_be in told]

    def _beside_poison(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes of a tensor, and as many of the poison that `poison_pool` puts there."""
        row = self._layout.poison_row(tensor.dtype, self._pool_world).view(torch.uint8)
        raw = tensor.contiguous().reshape(-1).view(torch.uint8)
        return raw, row.repeat(-(-raw.numel() // ROW_BYTES))[: raw.numel()]

    def _plan_pool(self) -> None:
        self._pooled = len(self._layout.graph)
        self._pool = PoolPoison(self._layout, self._layout.graph)
