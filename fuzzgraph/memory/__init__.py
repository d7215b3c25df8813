"""Guarded memory: one arena per session, red zones, typed poison, named regions, worlds."""

from fuzzgraph.memory.arena import ROOMY_CAPACITY
from fuzzgraph.memory.attributes import (
    AttributeSnapshot,
    restore_attributes,
    snapshot_attributes,
)
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.memory.image import Image
from fuzzgraph.memory.interception import Listener
from fuzzgraph.memory.poison import NAN_WORLD, poison_value
from fuzzgraph.memory.regions import Region, Segment
from fuzzgraph.memory.watch import AttributeWatch, Bindings
from fuzzgraph.memory.worlds import Perturbation

__all__ = [
    "NAN_WORLD",
    "ROOMY_CAPACITY",
    "AttributeSnapshot",
    "AttributeWatch",
    "Bindings",
    "GuardedMemory",
    "Image",
    "Listener",
    "Perturbation",
    "Region",
    "Segment",
    "poison_value",
    "restore_attributes",
    "snapshot_attributes",
]
