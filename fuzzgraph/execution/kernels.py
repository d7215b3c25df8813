"""Takes from the lanes what Triton kernels did since the last call: accesses, races, fallbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch

from fuzzgraph.accesses import Access, Misuse, Race
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.ports import Pools


def take_accesses(memory: GuardedMemory) -> list[Access]:
    """Loads and stores outside of the memory they belong to."""
    # Regions get the engine's names after capture, so records from before have older ones.
    found = memory.lanes.report.take_accesses()
    return [replace(access, region=_name_at(memory, access)) for access in found]


def _name_at(memory: GuardedMemory, access: Access) -> str:
    region = memory.region_at(access.address)
    return access.region if region is None else region.name


def take_misuses(memory: GuardedMemory) -> list[Misuse]:
    """Arguments whose content breaks a rule of their kernel."""
    return memory.lanes.report.take_misuses()


def take_races(memory: GuardedMemory, pools: Pools) -> list[Race]:
    """Races between programs of one launch, without those that are allowed."""
    # Padded rows may all write to the reserved slot at once, whatever the order.
    shared = {id(memory.region_of(plane)) for plane in _planes(pools)}
    found = []
    for race in memory.lanes.report.take_races():
        region = memory.region_at(race.address)
        # The order of equal writes changes nothing.
        harmless = race.same_value and race.kind == "write and write"
        if not harmless and id(region) not in shared:
            found.append(race if region is None else replace(race, region=region.name))
    return found


def _planes(pools: Pools) -> Iterator[torch.Tensor]:
    yield from pools.all_planes
    yield from pools.states


def take_fallbacks(memory: GuardedMemory) -> dict[str, int]:
    """Kernel and reason -> launches that Triton's own interpreter ran."""
    fallbacks = memory.lanes.report.fallbacks
    found = {f"{kernel}: {reason}": count for (kernel, reason), count in fallbacks.items()}
    fallbacks.clear()
    return found


def take_unchecked(memory: GuardedMemory) -> dict[str, int]:
    """Why accesses and races of Triton kernels were not checked -> launches."""
    report = memory.lanes.report
    found = Counter(report.unchecked_launches)
    if report.compiled:
        found["the kernels are compiled"] = report.compiled.total()
    report.unchecked_launches.clear()
    report.compiled.clear()
    return dict(found)
