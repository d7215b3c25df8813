"""Autotuned kernels in the interpreter: the smallest config that pruning leaves and that compiles.

To time configs means nothing there, and where no GPU is, Triton finds no driver to time them with.
On a device any of them may be chosen, and an interpreter computes all of a block, also what a mask
leaves out: small blocks take least time, and reach the rounds of a loop behind its first.
A config for which an assertion of the kernel's does not hold is passed over, as the tuner passes
over what fails to compile. Only assertions in the body of a kernel itself, in no branch, count.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from types import CodeType
from typing import Any

_FAILS = float("inf")


class SmallestConfig:
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
            # Quantiles of a time: the first config of those with the least is chosen.
            return (_size(config) if compiles else _FAILS,) * 3

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


def _size(config: Any) -> float:
    """Elements of a block with all the sizes that a config names."""
    return float(prod(value for value in config.kwargs.values() if type(value) is int and value))


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
