"""Autotuned kernels in the interpreter: the first config that pruning leaves.

To time configs means nothing there, and where no GPU is, Triton finds no driver to time them with.
"""

from __future__ import annotations

from typing import Any

_ALIKE = (0.0, 0.0, 0.0)
"""Quantiles of the time that a config takes: the first of the least is chosen."""


class FirstConfig:
    """While it is set, autotuners of interpreted kernels run none of their configs to time it."""

    def __init__(self) -> None:
        self._class: Any = None
        self._before: Any = None

    def set(self) -> None:
        """From now on; imports Triton."""
        from triton.runtime.autotuner import Autotuner

        before = self._before = Autotuner._bench

        def bench(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            return _ALIKE if _interpreted(tuner.fn) else before(tuner, *args, **kwargs)

        self._class = Autotuner
        Autotuner._bench = bench

    def remove(self) -> None:
        """As it was before; does nothing if it is not set."""
        if self._class is not None:
            self._class._bench = self._before
            self._class = self._before = None


def _interpreted(kernel: Any) -> bool:
    """Whether the interpreter runs what heuristics and the like wrap."""
    from triton.runtime.interpreter import InterpretedFunction

    while not isinstance(kernel, InterpretedFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return isinstance(kernel, InterpretedFunction)
