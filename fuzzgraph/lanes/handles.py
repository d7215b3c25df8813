"""Tensor handles of the interpreter that remember from which argument a pointer came.

It needs Triton, so it is imported only once a kernel is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from triton.runtime.interpreter import TensorHandle

from fuzzgraph.lanes.argument_regions import View


class Tag:
    """Provenance of a pointer: the view it was derived from, and its grain.

    Args:
        view: of the argument.
        grain: a number of bytes that divides every offset from the start of the view. Pointer
            arithmetic in elements of 4 bytes keeps it a multiple of 4, so that alignment is known
            without looking at any address.
    """

    __slots__ = ("grain", "view")

    def __init__(self, view: View, grain: int) -> None:
        self.view = view
        self.grain = grain

    def reads(self, size: int) -> bool:
        """Whether accesses of this size are aligned elements of the view."""
        return self.grain % size == 0 and self.view.start % size == 0 and self.view.nbytes >= size


class Handle(TensorHandle):  # type: ignore[misc]
    """A tensor handle that may carry a pointer's provenance."""

    # The base class's `__init__` is not called: its checks cost as much as an addition.
    def __init__(self, data: Any, dtype: Any, tag: Tag | None = None) -> None:
        self.data = data
        self.dtype = dtype
        self.tag = tag

    def clone(self) -> Handle:
        return Handle(self.data.copy(), self.dtype, self.tag)

    def set_attr(self, key: Any, value: Any) -> None:
        """Hints on divisibility and the like mean nothing here."""


class LateHandle(TensorHandle):  # type: ignore[misc]
    """The old values that an atomic returned; reading them makes the order of programs matter."""

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


def pointed(kind: Any) -> Any:
    """The type of the elements that pointers of a type lead to, as a handle of them tells it."""
    return Handle(None, kind).get_element_ty()


def tag_of(handle: Any) -> Tag | None:
    """The provenance of a handle, None if it has none."""
    tag: Tag | None = getattr(handle, "tag", None)
    return tag
