"""Graph engines: the recorder (no GPU needed) and the device graph (CUDA and HIP).

The recorder does not model streams and their order, asynchronous reuse of memory, or the driver's
own limits. Use the device graph where these matter. The emulated device is for tests of FuzzGraph
itself: it runs the device graph's code without a device.
"""

from __future__ import annotations

from typing import Literal

from fuzzgraph.errors import UsageError
from fuzzgraph.graphs.device import DeviceGraph, DeviceGraphs
from fuzzgraph.graphs.emulated import EmulatedDevice
from fuzzgraph.graphs.recorder import RecordedGraph, Recorder
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.memory.tracing import RecordedOp

__all__ = [
    "DeviceGraph",
    "DeviceGraphs",
    "EmulatedDevice",
    "GraphKind",
    "RecordedGraph",
    "RecordedOp",
    "Recorder",
    "open_engine",
]

GraphKind = Literal["recorder", "device", "emulated"]


def open_engine(kind: GraphKind, memory: GuardedMemory) -> Recorder | DeviceGraphs:
    """The graph engine of this kind, capturing into `memory`.

    Raises:
        UsageError: the kind is unknown.
        AdapterUnavailable: a device graph is asked for where there is no device.
    """
    if kind == "recorder":
        return Recorder(memory)
    if kind == "device":
        return DeviceGraphs(memory)
    if kind == "emulated":
        return DeviceGraphs(memory, EmulatedDevice(memory))
    raise UsageError(f"graph engine {kind!r} is unknown. Use 'recorder', 'device' or 'emulated'.")
