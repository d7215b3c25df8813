"""Records which branches of the engine's own Python a case takes, to thin out a corpus.

A branch is a step from one line of a function to the line that ran next, as `coverage` counts them
(`coverage` is an optional package). It makes the engine several times slower, so that no campaign
runs under it. Compiled code is not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fuzzgraph.case import Case
from fuzzgraph.errors import UsageError
from fuzzgraph.execution.execution import Execution
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.ports import Target, engine_packages
from fuzzgraph.run.spec import DEFAULT_SETUP, Setup

_WARNINGS = ["module-not-imported", "module-not-measured", "no-data-collected", "already-imported"]
"""A case may well run no line of some package of the engine, and the engine is loaded before it."""


class BranchTrace:
    """Notes the branches that modules of some packages take while it is entered.

    Raises:
        UsageError: the package `coverage` is not installed.
    """

    def __init__(self, packages: Iterable[str]) -> None:
        try:
            import coverage
        except ImportError:
            raise UsageError(
                "--branches needs the package coverage. Install it: pip install coverage."
            ) from None
        # No file of its own and none of the user's settings: these would select other modules.
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, branch=True, source_pkgs=list(packages)
        )
        self._coverage.set_option("run:disable_warnings", _WARNINGS)

    def __enter__(self) -> BranchTrace:
        self._coverage.erase()
        self._coverage.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._coverage.stop()

    def taken(self) -> frozenset[str]:
        """The branches since it was last entered, as `module:line->line`."""
        data = self._coverage.get_data()
        modules = _modules()
        return frozenset(
            f"{modules.get(file, file)}:{here}->{there}"
            for file in data.measured_files()
            for here, there in data.arcs(file) or ()
        )


def _modules() -> dict[str, str]:
    """File -> name of the module: the same in another process, and wherever the engine lies."""
    loaded: list[tuple[str, Any]] = list(sys.modules.items())
    return {getattr(module, "__file__", None) or name: name for name, module in loaded}


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
        return replace(verdict, branches=self._trace.taken())
