"""The operations of a running kernel that a trace is made of, and the recorder that sees them.

Every function that looks at the values of a tensor is `traced`, and a kernel that is recorded calls
the builder through `recorder`. `trace` defines recorders; nothing here imports Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class Recorder(Protocol):
    """Takes down the operations of one run."""

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call the function, and take the call down."""

    def enter(self, function: Any) -> None:
        """Note that the kernel called this device function."""

    def looked_at(self, handle: Any) -> None:
        """Note that a handle's values are read."""


_RECORDERS: list[Recorder] = []


def recorder() -> Recorder | None:
    """The recorder of the kernel that runs now; None if it is not recorded."""
    return _RECORDERS[-1] if _RECORDERS else None


def set_recorder(one: Recorder | None) -> None:
    """Record the kernel that runs next, or none any more."""
    _RECORDERS[:] = [] if one is None else [one]


def traced(function: Function) -> Function:
    """A function that looks at tensors' values: one operation of a trace, whatever it calls."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _RECORDERS:
            return function(*args, **kwargs)
        return _RECORDERS[-1].run(function, args, kwargs)

    return call  # type: ignore[return-value]
