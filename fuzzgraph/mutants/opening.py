"""Brings a target into the process of the host, and draws the cases that every child runs."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzgraph.case import Case
from fuzzgraph.errors import UsageError
from fuzzgraph.run.spec import Setup

if TYPE_CHECKING:
    from fuzzgraph.ports import Target


def load_target(setup: Setup, paths: Sequence[str]) -> Target:
    """The target of a setup, its engine imported from these folders.

    Raises:
        UsageError: the engine's import has started threads.
        AdapterUnavailable: there is no such engine.
    """
    from fuzzgraph.ports import load_engine
    from fuzzgraph.targets import open_target
    from fuzzgraph.worker.bytecode import import_engine_from

    import_engine_from(paths, setup)
    gc.disable()  # an engine's imports make half a million objects that stay
    try:
        target = open_target(setup.target)
        load_engine(target)
    finally:
        gc.enable()
    from fuzzgraph.execution.process import tune_process

    tune_process()
    _refuse_threads()
    return target


def draw_cases(target: Target, seed: int, count: int) -> list[Case]:
    """The first cases of a campaign with this seed."""
    from fuzzgraph.open_target import supports_of
    from fuzzgraph.run.spec import RunSpec
    from fuzzgraph.strategies import DEFAULT, block_size, cases, draw

    drawn: list[Case] = []
    block = 0
    spec = RunSpec(seed=seed)
    supports = supports_of(target)
    while len(drawn) < count:
        number = spec.block_seed(block)
        size = min(block_size(block), count - len(drawn))
        strategy = cases(target.capabilities, DEFAULT.at(number), supports=supports)
        draw(strategy, number, size, drawn.append)
        block += 1
    return drawn


def file_of(module: str) -> str | None:
    """The source of a module, imported or not; None where it has none."""
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        with suppress(ImportError, ValueError, AttributeError):
            spec = importlib.util.find_spec(module)
            path = spec.origin if spec is not None else None
    return path if path is not None and path.endswith(".py") else None


def _refuse_threads() -> None:
    """A fork copies only the thread that forks: a lock that another one holds stays locked.

    Raises:
        UsageError: the engine's import has started threads.
    """
    tasks = Path("/proc/self/task")
    if tasks.is_dir() and len(list(tasks.iterdir())) > 1:
        names = sorted((task / "comm").read_text().strip() for task in tasks.iterdir())
        raise UsageError(
            f"the engine's import starts threads ({', '.join(names)}), and mutants run in forks of "
            "the process that imports it. Start them when the target opens."
        )
