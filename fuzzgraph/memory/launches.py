"""Sees Triton kernel launches where Triton's interpreter runs them.

A launch writes memory by address, past every dispatch mode, so it needs a hook of its own. The
hook sits on the class that a `kernel[grid]` call ends in and is taken off afterwards. Compiled
kernels on a device are not seen here; a device graph captures those itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fuzzgraph.relays import relay

__all__ = ["Launch", "LaunchHook"]

Launch = Callable[..., Any]
"""The interpreter's own call: takes the executor, then the kernel's arguments."""


class LaunchHook:
    """Routes every interpreted launch through `seen(original, executor, args, kwargs)`."""

    def __init__(self) -> None:
        self._class: Any = None
        self._original: Launch | None = None

    def install(
        self,
        seen: Callable[[Launch, Any, tuple[Any, ...], dict[str, Any]], Any],
        launch: Launch | None = None,
    ) -> None:
        """Set the hook; does nothing while Triton has not been imported.

        Args:
            launch: runs launches instead of the interpreter's own call.
        """
        if "triton" not in sys.modules or self._class is not None:
            return
        from triton.runtime.interpreter import GridExecutor

        original = GridExecutor.__call__
        runs = launch or original

        @relay
        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            return seen(runs, executor, args, kwargs)

        self._class, self._original = GridExecutor, original
        GridExecutor.__call__ = call

    def remove(self) -> None:
        """Put the interpreter back as it was."""
        if self._class is not None:
            self._class.__call__ = self._original
            self._class = self._original = None
