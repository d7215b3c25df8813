"""Python integers that differ between lanes: loop variables, mostly.

The interpreter gives a kernel plain integers for the variable of a `range`. Lanes that run the
same number of rounds from different starts stay together with a `LaneInt`. It does not derive from
`int`, so that no code can take one lane's number for that of all: what needs an `int` calls
`__index__`, which gives one or splits the lanes.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzzgraph.lanes.divergence import ActiveLanes, Divergence, current, uniform
from fuzzgraph.lanes.loop_index import tensor_of_number
from fuzzgraph.lanes.traced import traced

Lanes = npt.NDArray[np.int64]

# The interpreter gives integers below this bound int32 and others a wider type. Lanes on both sides
# would need two types, so they are split.
_LIMIT = 1 << 31


def _vector(operation: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    @traced
    def forward(self: LaneInt, other: object) -> Any:
        known = _plain(other)
        return NotImplemented if known is None else lane_int(operation(self.lanes, known))

    @traced
    def backward(self: LaneInt, other: object) -> Any:
        known = _plain(other)
        return NotImplemented if known is None else lane_int(operation(known, self.lanes))

    return forward, backward


def _compared(operation: Callable[[Any, Any], Any]) -> Any:
    @traced
    def compare(self: LaneInt, other: object) -> Any:
        # Lanes are within 32 bits, which float64 holds exactly.
        if isinstance(other, float):
            return bool(uniform(operation(self.lanes, other)))
        known = _comparable(other)
        return NotImplemented if known is None else bool(uniform(operation(self.lanes, known)))

    return compare


def _plain(value: object) -> Any:
    """int64 of a number that arithmetic over lanes is exact for, None for anything else."""
    if isinstance(value, LaneInt):
        return value.lanes
    if isinstance(value, int) and -_LIMIT <= value < _LIMIT:
        return np.int64(value)
    return None


def _comparable(value: object) -> Any:
    """int64 of a number to be compared with lanes."""
    # Clamped into int64: a number beyond the limit compares like one just beyond it.
    if isinstance(value, int):
        return np.int64(max(-2 * _LIMIT, min(value, 2 * _LIMIT)))
    return _plain(value)


def _collapsed(operation: Callable[..., Any]) -> tuple[Any, Any]:
    # Operations that kernels rarely use on loop variables: exact for one number, so lanes that
    # differ are split.
    @traced
    def forward(self: LaneInt, *others: Any) -> Any:
        return operation(int(self), *others)

    @traced
    def backward(self: LaneInt, other: Any) -> Any:
        return operation(other, int(self))

    return forward, backward


class LaneInt(numbers.Integral):
    """An integer with one value per lane; at least two lanes differ."""

    __slots__ = ("lanes",)

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes

    @traced
    def __index__(self) -> int:
        return int(uniform(self.lanes))

    __int__ = __index__

    @traced
    def __bool__(self) -> bool:
        return bool(uniform(self.lanes != 0))

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """A tensor of another type, as the compiler's loop variable can be cast."""
        return tensor_of_number(self).to(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(int(self))

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(int(self))

    __add__, __radd__ = _vector(np.add)
    __sub__, __rsub__ = _vector(np.subtract)
    __mul__, __rmul__ = _vector(np.multiply)
    __lt__ = _compared(np.less)
    __le__ = _compared(np.less_equal)
    __gt__ = _compared(np.greater)
    __ge__ = _compared(np.greater_equal)
    __eq__ = _compared(np.equal)
    __ne__ = _compared(np.not_equal)
    __floordiv__, __rfloordiv__ = _collapsed(operator.floordiv)
    __mod__, __rmod__ = _collapsed(operator.mod)
    __truediv__, __rtruediv__ = _collapsed(operator.truediv)
    __pow__, __rpow__ = _collapsed(pow)
    __lshift__, __rlshift__ = _collapsed(operator.lshift)
    __rshift__, __rrshift__ = _collapsed(operator.rshift)
    __and__, __rand__ = _collapsed(operator.and_)
    __xor__, __rxor__ = _collapsed(operator.xor)
    __or__, __ror__ = _collapsed(operator.or_)
    __neg__ = _collapsed(operator.neg)[0]
    __pos__ = _collapsed(operator.pos)[0]
    __abs__ = _collapsed(abs)[0]
    __invert__ = _collapsed(operator.invert)[0]
    __trunc__ = _collapsed(math.trunc)[0]
    __floor__ = _collapsed(math.floor)[0]
    __ceil__ = _collapsed(math.ceil)[0]
    __round__ = _collapsed(round)[0]


def lane_int(lanes: Any) -> Any:
    """The integer of these lanes: an `int` if all agree.

    Raises:
        Divergence: some are so large that the interpreter would give them another type.
    """
    first = lanes[0]
    if (lanes == first).all():
        return int(first)
    if (lanes < -_LIMIT).any() or (lanes >= _LIMIT).any():
        raise Divergence(lanes)
    return LaneInt(lanes)


def rounds(start: Lanes, stop: Lanes, step: int, *, tail: bool = False) -> Any:
    """`range(start, stop, step)` for each lane at once; lanes differ in start and stop.

    Args:
        start: int64 [lanes], or [1] where all agree; `stop` alike.
        tail: whether nothing comes after the loop, so that lanes with fewer rounds may be inactive
            in the last ones.

    Raises:
        Divergence: lanes run different numbers of rounds.
    """
    if len(start) == len(stop) == 1:
        return range(int(start[0]), int(stop[0]), step)
    if len(start) != len(stop):
        start, stop = np.broadcast_arrays(start, stop)
    if (start == start[0]).all() and (stop == stop[0]).all():
        return range(int(start[0]), int(stop[0]), step)
    if step == 0:
        return range(0, 0, step)  # the error of a plain range
    # The length of each lane's range: its span divided by the step, rounded up.
    span = stop - start if step > 0 else start - stop
    counts = np.maximum(0, -(-span // abs(step)))
    lanes = current()
    if tail and lanes is not None and len(counts) == lanes.lanes:
        return _sleeping(start, step, counts, lanes)
    return _each(start, step, int(uniform(counts)))


def _sleeping(start: Lanes, step: int, counts: Lanes, lanes: ActiveLanes) -> Iterator[Any]:
    """Every round that some lane runs; lanes that are done are inactive."""
    for index in range(int(counts.max())):
        if not lanes.continue_with(counts > index):
            break
        yield lane_int(start + index * step)
    lanes.continue_with_all()


def _each(start: Lanes, step: int, count: int) -> Iterator[Any]:
    for index in range(count):
        yield lane_int(start + index * step)
