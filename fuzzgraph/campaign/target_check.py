"""Checks a target on cases drawn for it, in the process in which it would be fuzzed."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

from fuzzgraph.campaign.opening import open_setup, strategy_of
from fuzzgraph.case import Case
from fuzzgraph.events import Setup
from fuzzgraph.strategies import draw
from fuzzgraph.target_report import TargetReport
from fuzzgraph.worker import WorkerClient

__all__ = ["check_target"]


def check_target(setup: Setup, examples: int, seed: int) -> TargetReport:
    """What the target of a setup shows on so many generated cases.

    Raises:
        UsageError: it cannot be opened. TargetFailed: the target itself is at fault.
    """
    with closing(open_setup(setup)) as opened:
        cases: list[Case] = []
        draw(strategy_of(opened, "ci")(0), seed, examples, cases.append)
        if isinstance(opened.runner, WorkerClient):
            return opened.runner.inspect(cases)
        from fuzzgraph.execution.inspection import inspect_target

        return inspect_target(
            cast(Any, opened.target),
            cases,
            graphs=cast(Any, setup.graphs),
            device=setup.device,
            lanes=not setup.stock_kernels,
        )
