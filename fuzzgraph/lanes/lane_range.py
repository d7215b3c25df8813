"""The `range` of kernels over lanes: its bounds may differ between lanes."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton.language as tl

from fuzzgraph.lanes.divergence import NotVectorizable, uniform
from fuzzgraph.lanes.integers import LaneInt, rounds
from fuzzgraph.lanes.loop_index import with_casts
from fuzzgraph.lanes.tail_loops import is_tail
from fuzzgraph.lanes.traced import recorder, traced

# Modules whose `range` is ours during this launch.
_CHANGED: dict[int, dict[str, Any]] = {}


def use_range(module: dict[str, Any], ours: Callable[..., Any]) -> None:
    """Let `range` in a kernel's module be ours until the launch is over."""
    # A kernel's `range` is a name of its module: there is no attribute of Triton to replace. A
    # module that defines a `range` of its own keeps it.
    if id(module) not in _CHANGED and "range" not in module:
        module["range"] = ours
        _CHANGED[id(module)] = module


# The kernel that runs.
_KERNEL: list[Any] = []
_END = "no more rounds"


@contextmanager
def restoring_range(kernel: Any) -> Iterator[None]:
    """Afterwards, no module has a `range` of ours any more."""
    _KERNEL.append(kernel)
    try:
        yield
    finally:
        _KERNEL.pop()
        while _CHANGED:
            _, module = _CHANGED.popitem()
            del module["range"]


def lane_range(first: Any, second: Any = None, step: Any = None, **kwargs: Any) -> Any:
    """Replaces `range`, `tl.range` and `tl.static_range`."""
    start, stop = (0, first) if second is None else (first, second)
    # The caller's frame is the kernel, or a device function that it called.
    frame = sys._getframe(1)
    tail = bool(_KERNEL) and is_tail(frame, _KERNEL[-1])
    found = _range(start, stop, 1 if step is None else step, tail)
    if not isinstance(found, builtins.range) and recorder() is not None:
        found = _each_of(found)
    return with_casts(found, frame)


def index_range(first: Any, second: Any = None, step: Any = None, **kwargs: Any) -> Any:
    """The same where programs run one by one."""
    start, stop = (0, first) if second is None else (first, second)
    return with_casts(builtins.range(start, stop, 1 if step is None else step), sys._getframe(1))


def _each_of(rounds: Iterator[Any]) -> Iterator[Any]:
    """The same, with each step an operation of its own."""
    while (number := _next_of(rounds)) is not _END:
        yield number


@traced
def _next_of(rounds: Iterator[Any]) -> Any:
    return next(rounds, _END)


@traced
def _range(start: Any, stop: Any, step: Any, tail: bool) -> Any:
    bounds = [_lanes_of(start), _lanes_of(stop)]
    if all(bound is None for bound in bounds):
        return builtins.range(start, stop, step)
    known = [
        np.array([int(end)], np.int64) if bound is None else bound
        for bound, end in zip(bounds, (start, stop), strict=True)
    ]
    # Not by `__index__` for a tensor, which has one only under the patched language.
    size = number_of(step) if isinstance(step, tl.tensor) else step.__index__()
    return rounds(known[0], known[1], size, tail=tail)


def _lanes_of(value: Any) -> Any:
    """int64 [lanes] of a bound that may differ between lanes, None for a plain number."""
    value = value.value if isinstance(value, tl.constexpr) else value
    if isinstance(value, LaneInt):
        return value.lanes
    if not isinstance(value, tl.tensor):
        return None
    values = per_lane(value)
    if values is None:
        raise NotVectorizable("range up to a tensor with several elements")
    # uint64 does not fit int64. For it, and for floats, the lanes have to agree.
    if values.dtype.kind not in "iub" or values.dtype == np.uint64:
        return np.array([int(uniform(values))], np.int64)
    return values.astype(np.int64)


def number_of(tensor: Any) -> int:
    """The integer of a tensor with one element, on which all lanes agree."""
    values = per_lane(tensor)
    if values is None:
        raise NotVectorizable("number of a tensor with several elements")
    return int(uniform(values))


def per_lane(tensor: Any) -> Any:
    """The values [lanes] of a tensor with one element; None for any other."""
    data = tensor.handle.data
    return data.reshape(-1) if data.size == len(data) else None
