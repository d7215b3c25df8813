"""Loads and stores of lanes: checked, logged for races, and recorded for an undo.

Arrays have the lane axis first, of length 1 where all lanes agree. An access is checked by one
comparison of the largest offset; only if that fails is it checked element by element. An access
outside its view but inside known memory is carried out, as on a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fuzzgraph.accesses import Access
from fuzzgraph.lanes.access_log import SHIFTS, AccessLog, Event, spread
from fuzzgraph.lanes.argument_regions import View
from fuzzgraph.lanes.bounds_check import BoundsChecker
from fuzzgraph.lanes.divergence import ActiveLanes
from fuzzgraph.lanes.handles import Tag
from fuzzgraph.lanes.journal import Journal

Array = npt.NDArray[Any]
_GREATEST = np.maximum.reduce
_ZERO = np.uint64(0)


class LaneMemory:
    """The memory of one launch, as the programs of the current group see it.

    Args:
        views: of the arguments; one that `keeps_loads` has its loads logged for the race check.
        bounds: looks closely at what is not plainly inside.
    """

    def __init__(self, views: Sequence[View], bounds: BoundsChecker) -> None:
        self.bounds = bounds
        self.journal = Journal()
        self.log = AccessLog(views)
        self.found: list[Access] = []
        self.programs: Array = np.zeros(1, dtype=np.int32)
        """int32 [lanes]: the programs of the group, ascending."""
        self.active_lanes = ActiveLanes(1)
        """Which lanes of the group go on."""
        self.alone = False
        """Whether no race is possible: the launch has one program, or they run one by one."""

    # ---- undoing a group of lanes

    def mark(self) -> tuple[int, int, int, int]:
        return self.journal.mark(), len(self.log.events), len(self.found), self.bounds.unchecked

    def rollback(self, mark: tuple[int, int, int, int]) -> None:
        self.journal.rollback(mark[0])
        del self.log.events[mark[1] :]
        del self.found[mark[2] :]
        self.bounds.unchecked = mark[3]

    # ---- loads

    def load(
        self, tag: Tag | None, pointers: Array, mask: Array | None, other: Any, dtype: Any
    ) -> Array:
        """Values at `pointers`, those of `other` (0 where None) where the mask is off.

        Returns:
            C-contiguous, like a load of the stock interpreter: reductions depend on it.
        """
        lanes = len(pointers)
        for each in (mask, other):
            if each is not None and len(each) > lanes:
                lanes = len(each)
        mask = self.active_only(mask, lanes, pointers.ndim)
        if len(pointers) != lanes:
            pointers = np.broadcast_to(pointers, (lanes, *pointers.shape[1:]))
        size = dtype.itemsize
        if tag is not None and tag.reads(size):
            view = tag.view
            offsets = pointers - np.uint64(view.start)
            if _inside(offsets, mask, view.nbytes - size):
                np.right_shift(offsets, SHIFTS[size], out=offsets)
                # Inside the view, so the offsets are small and int64 holds the same numbers.
                # Elements whose mask is off may lie anywhere: "clip" reads some element for them,
                # which `_fill` replaces.
                index = offsets.view(np.int64)
                memory = view.array(size)
                if not view.is_patchy or self._plain(view, memory, index, mask):
                    result = memory.take(index, mode="clip")
                    if mask is not None:
                        _fill(result, mask, other, dtype)
                    self._log_load(view, pointers, mask, size)
                    return result.view(dtype)
        return self._careful_load(tag, pointers, mask, other, dtype)

    @overload
    def active_only(self, mask: Array, lanes: int, rank: int) -> Array: ...

    @overload
    def active_only(self, mask: Array | None, lanes: int, rank: int) -> Array | None: ...

    def active_only(self, mask: Array | None, lanes: int, rank: int) -> Array | None:
        """The mask without lanes that were set aside: their pointers mean nothing any more."""
        alive = self.active_lanes.active
        if alive is None or lanes == 1:
            return mask
        column: Array = alive.reshape((-1,) + (1,) * (rank - 1))
        return column if mask is None else mask & column

    def _plain(self, view: View, memory: Array, index: Array, mask: Array | None) -> bool:
        """Whether an access inside the extent hits neither a gap nor unwritten memory."""
        for table in (view.allowed, view.written):
            if table is not None:
                # The access is of another size than the view's elements: left to the slow check.
                if len(table) != len(memory):
                    return False
                fine = table.take(index, mode="clip")
                if not fine.all() and (mask is None or not (fine | ~mask).all()):
                    return False
        return True

    def _careful_load(
        self, tag: Tag | None, pointers: Array, mask: Array | None, other: Any, dtype: Any
    ) -> Array:
        active = np.ones(pointers.shape, np.bool_) if mask is None else mask
        active = np.broadcast_to(active, pointers.shape)
        view = None if tag is None else tag.view
        reachable = self.bounds.check(self, "read", view, pointers, active, dtype.itemsize)
        result = np.zeros(pointers.shape, dtype)
        if mask is not None:
            _fill(result.view(f"u{dtype.itemsize}"), mask, other, dtype)
        result = self.bounds.fetch(pointers, reachable, result)
        self._log(False, pointers, reachable, dtype.itemsize, view)
        return result

    def _log_load(self, view: View, pointers: Array, mask: Array | None, size: int) -> None:
        """Log a load, or only that there was one, if the kernel is not known to write there."""
        if self.alone:
            return
        if view.keeps_loads:
            self._log(False, pointers, mask, size, view)
        else:
            view.unlogged = True

    # ---- stores

    def store(self, tag: Tag | None, pointers: Array, values: Array, mask: Array | None) -> None:
        """Write `values` where the mask is on; of equal places the last lane's value stays."""
        # Programs are ascending in a group, so the last lane is the last program, as in the stock
        # interpreter.
        lanes = len(self.programs)
        shape = (lanes, *pointers.shape[1:])
        pointers, values = spread(pointers, shape), spread(values, shape)
        mask = self.active_only(mask, lanes, len(shape))
        if mask is not None:
            mask = spread(mask, shape)
        self.active_lanes.stored = True
        size = values.dtype.itemsize
        view = None if tag is None else tag.view
        where = pointers.ravel() if mask is None else pointers[mask]
        what = (values.ravel() if mask is None else values[mask]).view(f"u{size}")
        if tag is not None and tag.reads(size) and self._store_inside(tag.view, where, what):
            self._log(True, pointers, mask, size, view, what)
            return
        active = np.ones(shape, np.bool_) if mask is None else mask
        reachable = self.bounds.check(self, "write", view, pointers, active, size)
        self._save(pointers, reachable, values.dtype)
        self.bounds.put(pointers, values, reachable)
        self._log(True, pointers, reachable, size, view)

    def _store_inside(self, view: View, where: Array, what: Array) -> bool:
        size = what.dtype.itemsize
        offsets = where - np.uint64(view.start)
        if not _inside(offsets, None, view.nbytes - size):
            return False
        if not where.size:
            return True
        index = (offsets >> SHIFTS[size]).view(np.int64)
        memory = view.array(size)
        allowed = view.allowed
        if allowed is not None and (len(allowed) != len(memory) or not allowed[index].all()):
            return False
        if view.written is not None:
            if len(view.written) != len(memory):
                return False
            self.journal.save(view.written, index)
            view.written[index] = True
        # The journal first: rollback has to bring back what was there before.
        self.journal.save(memory, index)
        memory[index] = what
        return True

    def _save(self, pointers: Array, reachable: Array, dtype: Any) -> None:
        """Save for an undo what a store that is not plainly inside will overwrite."""
        if not reachable.any():
            return
        places = np.ascontiguousarray(pointers)
        kept = np.ascontiguousarray(reachable)
        old = self.bounds.fetch(places, kept, np.zeros(places.shape, dtype))
        self.journal.add(lambda: self.bounds.put(places, old, kept))

    # ---- the log for the race check

    def _log(
        self,
        writes: bool,
        pointers: Array,
        mask: Array | None,
        size: int,
        view: View | None,
        values: Array | None = None,
    ) -> Event | None:
        if self.alone:
            return None
        return self.log.add(self.programs, writes, pointers, mask, size, view, values)

    def log_atomic(
        self, view: View | None, pointers: Array, mask: Array, size: int, name: str, free: bool
    ) -> Event | None:
        """Log an atomic operation that is about to run."""
        event = self._log(True, pointers, mask, size, view)
        if event is not None:
            event.atomic, event.order_free = name, free
        return event


def _inside(offsets: Array, mask: Array | None, last: int) -> bool:
    """Whether every active offset is in [0, last]; as uint64, a negative one is huge."""
    # A view smaller than one access: no active offset can be inside.
    if last < 0:
        return not (offsets.size if mask is None else mask.any())
    # By the ufunc: an array's own `max` goes through a layer of Python, at each access.
    if not offsets.size or _GREATEST(offsets, axis=None) <= last:
        return True
    if mask is None:
        return False
    # Element by element rather than by index: no array of the active ones has to be gathered.
    return bool(_GREATEST(np.where(mask, offsets, _ZERO), axis=None) <= last)


def _fill(result: Array, mask: Array, other: Any, dtype: Any) -> None:
    """Put `other` where the mask is off; `result` holds unsigned integers."""
    # 0, as in the stock interpreter. On a device such an element is undefined.
    if other is None:
        np.copyto(result, 0, where=~mask)
    else:
        np.copyto(result, other.astype(dtype, copy=False).view(result.dtype), where=~mask)
