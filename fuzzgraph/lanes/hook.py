"""Replaces the interpreter's launch method, and knows the original.

Hooks nest: guarded memory sets one, lanes inside it another. Launches of compiled kernels take
another path; these are only counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.lanes.autotuning import SmallestConfig
from fuzzgraph.lanes.small_floats import round_small_floats

Launch = Callable[..., Any]
"""The interpreter's own call: takes the executor, then the kernel's arguments."""

_STANDS_FOR = "_fuzzgraph_stands_for"
# The original launch, once for each hook that is set now. Each hook also carries the original as an
# attribute: other code that patches the same method may put a hook back after it was removed.
_STOCK: list[Launch] = []


def stock_launch() -> Launch:
    """The launch without any hook of ours."""
    if _STOCK:
        return _STOCK[0]
    from triton.runtime.interpreter import GridExecutor

    found: Launch = GridExecutor.__call__
    while hasattr(found, _STANDS_FOR):
        found = getattr(found, _STANDS_FOR)
    return found


class ExecutorHook:
    """One hook; may be set again once it was removed."""

    def __init__(self) -> None:
        self._class: Any = None
        self._before: Launch | None = None
        self._smallest_config = SmallestConfig()

    def set(self, launch: Launch) -> None:
        """Let `launch` run every interpreted launch from now on; imports Triton's interpreter, and
        has it round as devices do."""
        from triton.runtime.interpreter import GridExecutor

        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            return launch(executor, *args, **kwargs)

        round_small_floats()
        stock = stock_launch()
        setattr(call, _STANDS_FOR, stock)
        _STOCK.append(stock)
        self._class, self._before = GridExecutor, GridExecutor.__call__
        GridExecutor.__call__ = call
        self._smallest_config.set()

    def remove(self) -> None:
        """Put the method back as it was before; does nothing if the hook is not set."""
        if self._class is not None:
            self._smallest_config.remove()
            self._class.__call__ = self._before
            self._class = self._before = None
            _STOCK.pop()


class CompiledWatch:
    """Reports every completed launch of a compiled kernel.

    Args:
        seen: called with the name of the kernel.
    """

    def __init__(self, seen: Callable[[str], None]) -> None:
        self._seen = seen
        self._depth = 0
        self._before: Launch | None = None

    def set(self) -> None:
        """Watch from now on; imports Triton. Has to be removed as often as it was set."""
        self._depth += 1
        if self._depth > 1:
            return
        from triton.runtime.jit import JITFunction

        before = self._before = JITFunction.run

        def run(function: Any, *args: Any, **kwargs: Any) -> Any:
            result = before(function, *args, **kwargs)
            # A warm-up compiles and launches nothing.
            if not kwargs.get("warmup"):
                self._seen(getattr(function, "__name__", str(function)))
            return result

        JITFunction.run = run

    def remove(self) -> None:
        """Put the method back, once it was called as often as `set`; else do nothing."""
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._before is not None:
            from triton.runtime.jit import JITFunction

            JITFunction.run = self._before
            self._before = None
