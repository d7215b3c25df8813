"""The items of the ready-made suite. A failure reads as the finding, without our frames."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from fuzzgraph.campaign import run_campaign
from fuzzgraph.campaign.effect import with_effects
from fuzzgraph.case import digest
from fuzzgraph.corpus import Entry
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.reporting import finding_text, progress_line, run_text, start_line
from fuzzgraph.run.events import (
    CampaignStarted,
    Event,
    FindingNew,
    Progress,
    ReportedFinding,
    finding_id,
)
from fuzzgraph.run_options import replay_command
from fuzzgraph.text.finding_text import sentence

if TYPE_CHECKING:
    from fuzzgraph.pytest_plugin.suite import Suite

_PROGRESS_SECONDS = 10.0


class _Found(Exception):
    """Carries the text of a failure past the test protocol."""


class SuiteNode(pytest.Collector):
    """Parent of the items; it stands for no file."""

    def collect(self) -> Iterable[pytest.Item]:
        return []


class _SuiteItem(pytest.Item):
    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, None, f"fuzzgraph::{self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, _Found | FuzzGraphError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class BadEntryItem(_SuiteItem):
    """A corpus entry that cannot be read fails under its own name."""

    def __init__(self, message: str, **rest: Any) -> None:
        super().__init__(**rest)
        self._message = message

    def runtest(self) -> None:
        raise _Found(self._message)


class CorpusItem(_SuiteItem):
    """Replays one saved case."""

    def __init__(self, entry: Entry, suite: Suite, **rest: Any) -> None:
        super().__init__(**rest)
        self._entry = entry
        self._suite = suite

    def runtest(self) -> None:
        from fuzzgraph.coverage_values import coverage_values

        case = self._entry.case
        ledger = self._suite.standing.ledger
        out = ledger.keeps_out(self._suite.setup.target, self._entry.digest, coverage_values(case))
        if out is not None:
            pytest.skip(f"quarantined: {out.name}")
        opened = self._suite.opened()
        verdict = opened.runner.run_case(case)
        if verdict.skipped:
            pytest.skip(f"target {opened.setup.target}: {verdict.skipped}")
        tolerated = [entry for one in verdict.findings if (entry := ledger.tolerates(one))]
        if tolerated:
            pytest.xfail(f"tolerated: {tolerated[0].name}")
        if verdict.findings:
            worst, *also = with_effects(case, verdict.findings, opened.runner)
            first = opened.located(case, opened.runner.confirm(case, worst))
            reported = ReportedFinding(
                id=finding_id(first.key),
                finding=first,
                case=case,
                digest=digest(case),
                also=tuple(also),
                source="corpus",
                case_path=str(self._entry.path),
                replay=replay_command(str(self._entry.path), opened.setup),
            )
            raise _Found(finding_text(reported, opened.environment))


class FuzzItem(_SuiteItem):
    """One campaign, or one shard of it."""

    def __init__(self, shard: int, suite: Suite, **rest: Any) -> None:
        super().__init__(**rest)
        self._shard = shard
        self._suite = suite
        self._told = 0.0
        if self.config.pluginmanager.hasplugin("timeout"):
            self.add_marker(pytest.mark.timeout(0))  # the budget ends it

    def runtest(self) -> None:
        suite = self._suite
        summary = run_campaign(
            suite.spec(self._shard), self._show, opened=suite.opened(), policy=suite.standing
        )
        suite.summary = None if suite.in_worker else summary
        figures = {"seed": summary.seed, "cases": summary.cases, "rate": summary.rate}
        self.user_properties += [(f"fuzzgraph_{name}", value) for name, value in figures.items()]
        if summary.reason == "interrupted":
            self.session.shouldstop = "Ctrl-C ended the fuzzing"
        if summary.exit_code:
            raise _Found(run_text(summary))

    def _show(self, event: Event) -> None:
        """Lines above pytest's own, every ten seconds; a process of xdist has no terminal."""
        line = self._line(event)
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if line is None or reporter is None or self.config.get_verbosity() < 0:
            return
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            reporter.write_line(line)
            return
        with capture.global_and_fixture_disabled():
            reporter.write_line(line)

    def _line(self, event: Event) -> str | None:
        if isinstance(event, CampaignStarted):
            return f"\n{start_line(event)}"
        if isinstance(event, FindingNew):
            return f"found {event.id}: {sentence(event.finding)}"
        if isinstance(event, Progress) and event.seconds - self._told >= _PROGRESS_SECONDS:
            self._told = event.seconds
            return progress_line(event)
        return None
