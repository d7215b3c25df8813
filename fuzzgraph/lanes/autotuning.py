"""Autotuned kernels in the interpreter: the first config that pruning leaves and that compiles.

To time configs means nothing there, and where no GPU is, Triton finds no driver to time them with.
A config for which an assertion of the kernel's does not hold is passed over, as the tuner passes
over what fails to compile. Only assertions in the body of a kernel itself, in no branch, count.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

_ALIKE = (0.0, 0.0, 0.0)
_FAILS = (float("inf"),) * 3
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
            function = _interpreted(tuner.fn)
            if function is None:
                return before(tuner, *args, **kwargs)
            config, meta = kwargs["config"], {**tuner.nargs, **kwargs}
            compiles = _assertions_hold(function, {**meta, **config.all_kwargs()})
            return _ALIKE if compiles else _FAILS

        self._class = Autotuner
        Autotuner._bench = bench

    def remove(self) -> None:
        """As it was before; does nothing if it is not set."""
        if self._class is not None:
            self._class._bench = self._before
            self._class = self._before = None


def _interpreted(kernel: Any) -> Any:
    """The function that the interpreter runs, within what heuristics and the like wrap; None for a
    kernel that it does not run."""
    from triton.runtime.interpreter import InterpretedFunction

    while not isinstance(kernel, InterpretedFunction) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel.fn if isinstance(kernel, InterpretedFunction) else None


def _assertions_hold(function: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether all static assertions of a kernel hold, as far as arguments tell."""
    for condition in _assertions(function):
        try:
            if not eval(condition, function.__globals__, dict(arguments)):
                return False
        except (NameError, TypeError):  # of names that the kernel binds, or numbers at run time
            continue
    return True


@lru_cache(maxsize=1024)
def _assertions(function: Any) -> tuple[CodeType, ...]:
    """Conditions of the static assertions that stand in the body of a kernel, in no branch."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (kernel,) = (each for each in tree.body if isinstance(each, ast.FunctionDef))
    calls = [each.value for each in kernel.body if isinstance(each, ast.Expr)]
    conditions = [
        each.args[0]
        for each in calls
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr == "static_assert"
    ]
    file = function.__code__.co_filename
    return tuple(compile(ast.Expression(each), file, "eval") for each in conditions)
