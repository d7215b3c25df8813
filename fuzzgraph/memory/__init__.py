"""Guarded memory: one arena per session, red zones, typed poison, named regions, worlds."""

from fuzzgraph.memory.arena import capacities
from fuzzgraph.memory.crossings import Crossings
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.memory.image import Image, Room
from fuzzgraph.memory.listener import Listener
from fuzzgraph.memory.poison import NAN_HOME, NAN_WORLD, poison_value
from fuzzgraph.memory.python_state import (
    PythonState,
    restore_attributes,
    snapshot_attributes,
)
from fuzzgraph.memory.python_state_watch import Bindings, PythonStateWatch
from fuzzgraph.memory.regions import Region, Segment
from fuzzgraph.memory.unguarded import UnguardedBytes
from fuzzgraph.memory.worlds import Perturbation

__all__ = [
    "NAN_HOME",
    "NAN_WORLD",
    "PythonState",
    "PythonStateWatch",
    "Bindings",
    "Crossings",
    "GuardedMemory",
    "Image",
    "Listener",
    "Perturbation",
    "Region",
    "Room",
    "Segment",
    "UnguardedBytes",
    "capacities",
    "poison_value",
    "restore_attributes",
    "snapshot_attributes",
]
