"""Reports each launch of a Triton kernel that Triton's interpreter runs.

A launch writes memory by address and passes no dispatch mode, so it needs a hook of its own. The
hook sits on the class that every `kernel[grid]` call ends in. Compiled kernels on a device are not
seen here; a device graph captures those itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from fuzzgraph.lanes.hook import ExecutorHook, Launch
from fuzzgraph.relays import relay

__all__ = ["Launch", "LaunchHook"]

Seen = Callable[[Launch, Any, tuple[Any, ...], dict[str, Any]], Any]


class LaunchHook:
    """Routes every interpreted launch through `seen(launch, executor, args, kwargs)`."""

    def __init__(self) -> None:
        self._hook = ExecutorHook()

    def install(self, seen: Seen, launch: Launch | None = None) -> None:
        """Set the hook; does nothing while Triton has not been imported.

        Args:
            launch: runs launches; None leaves them to the interpreter's present method.
        """
        if "triton" in sys.modules:
            from triton.runtime.interpreter import GridExecutor

            self._hook.set(partial(_routed, seen, launch or GridExecutor.__call__))

    def remove(self) -> None:
        """Put the interpreter back as it was."""
        self._hook.remove()


@relay
def _routed(seen: Seen, launch: Launch, executor: Any, *args: Any, **kwargs: Any) -> Any:
    return seen(launch, executor, args, kwargs)
