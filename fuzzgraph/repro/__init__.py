"""Exports of one case with its finding: a script, a pytest file, an issue text.

A script is made of the engine's own recorded operations and needs torch alone; an engine that lives
in a process of its own is recorded there. What operations cannot show is run through FuzzGraph by a
script that says why. Where files go and what they are called is the caller's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fuzzgraph.errors import OutOfTime, UsageError
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.verify import shows, verify
from fuzzgraph.run.environment import UNKNOWN, Environment
from fuzzgraph.run.events import Setup

if TYPE_CHECKING:
    from fuzzgraph.case import Case
    from fuzzgraph.finding import EngineLine, Finding
    from fuzzgraph.ports import Target
    from fuzzgraph.run.spec import Device

__all__ = [
    "NotStandalone",
    "Recorder",
    "engine_lines",
    "export_issue",
    "export_pytest",
    "export_script",
    "standalone_script",
    "verify",
]

Recorder = Callable[["Case", "Finding"], str]
"""Writes a standalone script where the engine is.

Raises NotStandalone where there is none, OutOfTime where it was cut off.
"""


def export_script(
    case: Case,
    finding: Finding,
    on: Setup | Target,
    *,
    record: Recorder | None = None,
    recorded: bool = True,
    proven: bool = True,
    seconds: float = math.inf,
) -> str:
    """A Python script that exits with code 1 and prints the finding, or with 0 if it is gone.

    Args:
        case: the case, shrunk if possible: the script grows with it.
        finding: what it breaks.
        on: the setup it was seen on, or the target itself.
        record: records the case where the engine is; None for an engine of this process.
        recorded: run the case once more to record its operations. Switch it off where there is no
            time for it: the script runs the case through FuzzGraph then.
        proven: run the script once, and where it does not show the finding write one that runs the
            case through FuzzGraph. Switch it off to see what another engine makes of the case.
        seconds: what that run may take at most.

    Raises:
        UsageError: the setup names an unknown target or fault. OutOfTime: the run took longer.
    """
    from fuzzgraph.repro.fuzzgraph_script import fuzzgraph_script

    try:
        if not recorded:
            raise NotStandalone("there was no time to record its operations")
        text = _recorded(case, finding, on, record)
        text = f"{_engine_comment(_setup_of(on))}{text}"
        if proven and not shows(text, seconds=seconds):
            raise NotStandalone("the recorded operations alone did not show the finding when run")
    except NotStandalone as error:
        return fuzzgraph_script(case, finding, _setup_of(on), str(error))
    return text


def _engine_comment(setup: Setup) -> str:
    """Says which engine the operations are from, since a script of them needs none."""
    return f"# Recorded from {setup.target}, {setup.engine}.\n" if setup.engine else ""


def _recorded(case: Case, finding: Finding, on: Setup | Target, record: Recorder | None) -> str:
    if finding.detail.get("child") is not None:
        raise NotStandalone("the case ends the process that runs it")
    if record is None:
        return _recorded_here(case, finding, on)
    try:
        return record(case, finding)
    except OutOfTime:
        raise NotStandalone("there was no time to record its operations") from None


def standalone_script(case: Case, finding: Finding, target: Target, device: Device = "cpu") -> str:
    """A script of the operations that `target` runs here, in this process.

    Args:
        device: where the script runs.

    Raises:
        NotStandalone: operations alone cannot show this finding.
    """
    from fuzzgraph.repro.script import standalone_script

    return standalone_script(case, finding, target, device)


def engine_lines(
    case: Case, finding: Finding, target: Target, setup: Setup, below: str = ""
) -> tuple[EngineLine, ...]:
    """The engine's own lines that a finding is about, found by running its case here once more.

    Args:
        below: path of the engine's package below the root of its checkout; '' outside of one.
    """
    from fuzzgraph.repro.locating import engine_lines

    return engine_lines(case, finding, target, setup, below)


def _recorded_here(case: Case, finding: Finding, on: Setup | Target) -> str:
    from fuzzgraph.ports import is_isolated
    from fuzzgraph.repro.target import target_of

    if isinstance(on, Setup) and ":" in on.target and on.isolation != "off":
        raise NotStandalone("it runs the engine in a separate process")
    try:
        target = target_of(on) if isinstance(on, Setup) else on
    except UsageError:
        if ":" not in _setup_of(on).target:
            raise
        reason = "its target was made in a test and cannot be imported by name"
        raise NotStandalone(reason) from None
    if is_isolated(target):
        raise NotStandalone("it runs the engine in a separate process")
    return standalone_script(case, finding, target)


def export_pytest(case: Case, finding: Finding, on: Setup | Target) -> str:
    """A pytest file whose one test runs the case through FuzzGraph and fails with the finding."""
    from fuzzgraph.repro.fuzzgraph_script import pytest_file

    return pytest_file(case, finding, _setup_of(on))


def export_issue(
    case: Case, finding: Finding, on: Setup | Target, environment: Environment = UNKNOWN
) -> str:
    """Markdown to paste into an issue; it names script and test beside it.

    Args:
        environment: where the finding was seen.
    """
    from fuzzgraph.repro.issue_text import issue_text

    return issue_text(case, finding, _setup_of(on), environment)


def _setup_of(on: Setup | Target) -> Setup:
    return on if isinstance(on, Setup) else Setup(target=on.name)
