"""Handles of tensors in the interpreter that remember where a pointer came from.

Only `builder` and what belongs to it import this module: it needs Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.runtime.interpreter import TensorHandle

from fuzzgraph.lanes.argument_regions import View

__all__ = ["Handle", "LateHandle", "Tag", "tag_of"]


class Tag:
    """Provenance of a pointer: the view it was derived from, and its grain.

    Args:
        view: of the argument.
        grain: bytes that divide every offset from the start of the view.
    """

    __slots__ = ("grain", "view")

    def __init__(self, view: View, grain: int) -> None:
        self.view = view
        self.grain = grain

    def reads(self, size: int) -> bool:
        """Whether accesses of this size are aligned elements of the view."""
        return self.grain % size == 0 and self.view.start % size == 0 and self.view.nbytes >= size


class Handle(TensorHandle):  # type: ignore[misc]
    """A tensor handle made without the checks of its base class, which cost as much as an add."""

    def __init__(self, data: Any, dtype: Any, tag: Tag | None = None) -> None:
        self.data = data
        self.dtype = dtype
        self.tag = tag

    def clone(self) -> Handle:
        return Handle(self.data.copy(), self.dtype, self.tag)

    def set_attr(self, key: Any, value: Any) -> None:
        """Hints on divisibility and the like mean nothing here."""


class LateHandle(TensorHandle):  # type: ignore[misc]
    """Old values that an atomic returned; asking for them is what makes the order matter."""

    def __init__(self, data: Any, dtype: Any, asked: Callable[[], None]) -> None:
        self._data = data
        self._asked = asked
        self.dtype = dtype

    @property
    def data(self) -> Any:
        self._asked()
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._data = value

    def set_attr(self, key: Any, value: Any) -> None:
        """Hints on divisibility and the like mean nothing here."""


def tag_of(handle: Any) -> Tag | None:
    """The provenance of a handle, None if it has none."""
    tag: Tag | None = getattr(handle, "tag", None)
    return tag
