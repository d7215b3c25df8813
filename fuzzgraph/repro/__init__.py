"""Exports of one case with its finding: a script, a pytest file, an issue text.

A script of an engine in this process is made of the engine's own recorded operations and needs
torch alone. Where these cannot show the finding, and for engines that live in a process of their
own, it runs the case through FuzzGraph and says so. Where files go and what they are called is the
caller's business.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fuzzgraph.environment import UNKNOWN, Environment
from fuzzgraph.errors import UsageError
from fuzzgraph.events import Setup
from fuzzgraph.repro.verify import shows, verify

if TYPE_CHECKING:
    from fuzzgraph.case import Case
    from fuzzgraph.finding import Finding
    from fuzzgraph.ports import Target

__all__ = ["export_issue", "export_pytest", "export_script", "verify"]


def export_script(
    case: Case,
    finding: Finding,
    on: Setup | Target,
    *,
    recorded: bool = True,
    proven: bool = True,
    seconds: float = math.inf,
) -> str:
    """A Python script that exits with code 1 and prints the finding, or with 0 if it is gone.

    Args:
        case: the case, shrunk if possible: the script grows with it.
        finding: what it breaks.
        on: the setup it was seen on, or the target itself.
        recorded: run the case once more to record its operations. Switch it off where there is no
            time for it: the script runs the case through FuzzGraph then.
        proven: run the script once, and where it does not show the finding write one that runs the
            case through FuzzGraph. Switch it off to see what another engine makes of the case.
        seconds: what that run may take at most.

    Raises:
        UsageError: the setup names an unknown target or fault. OutOfTime: the run took longer.
    """
    from fuzzgraph.ports import is_isolated
    from fuzzgraph.repro.fuzzgraph_script import through_script
    from fuzzgraph.repro.not_standalone import NotStandalone
    from fuzzgraph.repro.script import standalone_script
    from fuzzgraph.repro.target import target_of

    setup = _setup_of(on)
    if not recorded:
        return through_script(case, finding, setup, "there was no time to record its operations")
    if isinstance(on, Setup) and ":" in on.target and on.isolation != "off":
        return through_script(case, finding, setup, "it runs the engine in its own process")
    try:
        target = target_of(on) if isinstance(on, Setup) else on
    except UsageError:
        if ":" not in setup.target:
            raise
        reason = "its target was made in a test and cannot be imported by name"
        return through_script(case, finding, setup, reason)
    if is_isolated(target):
        return through_script(case, finding, setup, "it runs the real engine in its own process")
    if finding.detail.get("child") is not None:
        return through_script(case, finding, setup, "the case ends the process that runs it")
    try:
        text = standalone_script(case, finding, target)
    except NotStandalone as error:
        return through_script(case, finding, setup, str(error))
    if not proven or shows(text, seconds=seconds):
        return text
    reason = "the recorded operations alone did not show the finding when they were run"
    return through_script(case, finding, setup, reason)


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
