"""`pytest --fuzz` fuzzes, `pytest` runs the corpus where one is configured; otherwise nothing, but
that the repros of earlier runs are not taken for tests of the project.

Loaded into every pytest of an environment that has FuzzGraph, so it imports next to nothing
until it is asked for something.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fuzzgraph.pytest_plugin.fixture import fuzz_engine
from fuzzgraph.pytest_plugin.options import OPTIONS_KEY, WORKER_KEY, add_options, options_of

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter  # pytest 8 has no public name for it

    from fuzzgraph.pytest_plugin.suite import Suite

__all__ = ["fuzz_engine"]

_SUITE: pytest.StashKey[Suite] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    options = options_of(config)
    if options is None:
        return
    from fuzzgraph.pytest_plugin.suite import Suite

    config.stash[OPTIONS_KEY] = options
    config.stash[_SUITE] = Suite(config, options)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """xdist: what a worker must know, so that all of them work on one run."""
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    suite = config.stash.get(_SUITE, None)
    if suite is not None:
        node.workerinput[WORKER_KEY] = suite.for_workers()  # type: ignore[attr-defined]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Pass over the findings of a run: each holds a test that fails on purpose.

    pytest does not ask about what is named on its command line.
    """
    return True if _holds_findings(collection_path) else None


def _holds_findings(folder: Path) -> bool:
    """Whether a run left its findings in the folder: its log lies beside them, a case in each."""
    return (
        folder.name == "findings"
        and any(folder.parent.glob("events*.jsonl"))
        and any(folder.glob("*/found.json"))
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    suite = config.stash.get(_SUITE, None)
    if suite is not None:
        suite.add_items(session, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    suite = session.config.stash.get(_SUITE, None)
    if suite is not None:
        suite.make_ready(session.items)


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    suite = config.stash.get(_SUITE, None)
    if suite is not None:
        suite.write_end(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    suite = config.stash.get(_SUITE, None)
    if suite is not None:
        suite.close()
