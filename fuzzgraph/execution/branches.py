"""Which branches of the engine's own Python a case takes: what a corpus is thinned by.

A branch is a step from one line of a function to the line that ran next, or out of the function, as
coverage tools count them. Python's trace function tells them, on every Python alike; it makes the
engine several times slower, so that no campaign runs under it. Other threads and compiled code are
not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

from fuzzgraph.case import Case
from fuzzgraph.execution.execution import Execution
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.ports import Target, engine_packages
from fuzzgraph.run_spec import DEFAULT_SETUP, Setup

__all__ = ["BranchTrace", "TracedExecution"]

_Trace = Callable[[FrameType, str, Any], Any]

# Stands for the line after the last one of a call.
_OUT = 0


class BranchTrace:
    """Notes the branches that modules of some packages take while it is entered."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._packages = tuple(packages)
        self._known: dict[str, bool] = {}
        self._taken: set[tuple[str, int, int]] = set()
        self._before: Any = None

    def __enter__(self) -> BranchTrace:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def take(self) -> frozenset[str]:
        """The branches since the last call, as `module:line->line`."""
        taken, self._taken = self._taken, set()
        return frozenset(f"{module}:{here}->{there}" for module, here, there in taken)

    def _call(self, frame: FrameType, event: str, arg: Any) -> _Trace | None:
        module = frame.f_globals.get("__name__", "")
        if not self._is_engine(module):
            return None
        taken = self._taken
        here = frame.f_code.co_firstlineno

        def follow(frame: FrameType, event: str, arg: Any) -> _Trace:
            nonlocal here
            if event == "line":
                taken.add((module, here, frame.f_lineno))
                here = frame.f_lineno
            elif event == "return":
                taken.add((module, here, _OUT))
            return follow

        return follow

    def _is_engine(self, module: str) -> bool:
        known = self._known.get(module)
        if known is None:
            known = any(f"{module}.".startswith(f"{package}.") for package in self._packages)
            self._known[module] = known
        return known


class TracedExecution(Execution):
    """An execution whose verdicts name the engine's branches as well.

    Each case gets a fresh session, since a cached one does not capture again, and the first case
    runs once before it counts, or what happens once in a process would be put down to it.
    """

    def __init__(self, target: Target, setup: Setup = DEFAULT_SETUP) -> None:
        super().__init__(target, setup, cache_size=0)
        self._trace = BranchTrace(engine_packages(target))
        self._warm = False

    def run_case(self, case: Case) -> Verdict:
        if not self._warm:
            super().run_case(case)
            self._warm = True
        with self._trace:
            verdict = super().run_case(case)
        return replace(verdict, branches=self._trace.take())
