"""Classes of handles that tell the recorder when their values are read outside of an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.runtime.interpreter import TensorHandle

from fuzzgraph.lanes.handles import Handle, LateHandle
from fuzzgraph.lanes.integers import LaneInt
from fuzzgraph.lanes.traced import recorder


def _watched(kind: Any, read: Callable[[Any], Any], name: str) -> Any:
    """A class like `kind` that tells the recorder when its values are read or changed."""

    def get(self: Any) -> Any:
        recording = recorder()
        if recording is not None:
            recording.looked_at(self)
        return read(self)

    def put(self: Any, value: Any) -> None:
        recording = recorder()
        if recording is not None:
            recording.looked_at(self)
        vars(self)["_data" if kind is LateHandle else name] = value

    return type(f"Watched{kind.__name__}", (kind,), {"__slots__": (), name: property(get, put)})


def _plain_data(handle: Any) -> Any:
    return handle.__dict__["data"]


def _late_data(handle: Any) -> Any:
    return LateHandle.data.__get__(handle)


WATCHED: dict[Any, Any] = {
    TensorHandle: _watched(TensorHandle, _plain_data, "data"),
    Handle: _watched(Handle, _plain_data, "data"),
    LateHandle: _watched(LateHandle, _late_data, "data"),
    LaneInt: _watched(LaneInt, vars(LaneInt)["lanes"].__get__, "lanes"),
}
"""Class of a value -> the class that it has while it is recorded."""
UNWATCHED = {watched: kind for kind, watched in WATCHED.items()}
