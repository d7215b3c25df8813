"""Makes the reports of a run from its event logs, at its end or any time later.

It reads the folder of the run and those beside it; `reporting` decides how a report looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from fuzzgraph import corpus
from fuzzgraph.campaign.folder import refuse_links, unlogged_findings
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.reporting.formats import FORMATS, Format, report
from fuzzgraph.reporting.html import Material
from fuzzgraph.reporting.trend import trend
from fuzzgraph.repro.files import file_names
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import ExportKind, ReportedFinding, RunSummary, Setup
from fuzzgraph.run.state import RunState, join_summaries
from fuzzgraph.run_options import replay_command
from fuzzgraph.strict_json import decode_json

_TREND_RUNS = 60
"""Runs beside this one that are read for the trend, newest first."""


def rebuilt(folder: Path) -> RunSummary:
    """The summary of a run, from its event logs; what they have lost and its findings' own records
    still tell is put in, and the damage is named.

    Raises:
        UsageError: there is no log, or it does not contain the start of a run.
    """
    refuse_links(folder)
    logs = sorted(folder.glob("events*.jsonl")) if folder.is_dir() else []
    if not logs:
        raise UsageError(
            f"{folder}: holds no events.jsonl. Name the folder of a run, as 'fuzzgraph run' prints."
        )
    read = _Read()
    for log in logs:
        read.take(log)
    if not read.summaries:
        read.take_summary(folder / "summary.json")
    if not read.summaries:
        why = "; ".join(read.damaged + read.cut)
        raise UsageError(f"{folder}: {why}. The run cannot be reported.")
    whole = join_summaries(read.summaries) if len(read.summaries) > 1 else read.summaries[0]
    found, damage = unlogged_findings(folder, {reported.id for reported in whole.findings})
    return msgspec.structs.replace(
        whole,
        findings=tuple(_with_command(one, whole.setup) for one in (*whole.findings, *found)),
        bad_entries=tuple(dict.fromkeys((*whole.bad_entries, *read.cut))),
        damaged=tuple(dict.fromkeys((*whole.damaged, *read.damaged, *damage))),
    )


def _with_command(reported: ReportedFinding, setup: Setup) -> ReportedFinding:
    """The finding with a replay command made here: one from a foreign log could run anything."""
    command = replay_command(reported.case_path, setup) if reported.replay else ""
    return msgspec.structs.replace(reported, replay=command)


class _Read:
    """What the logs of a run tell, and why some of them tell nothing."""

    def __init__(self) -> None:
        self.summaries: list[RunSummary] = []
        self.cut: list[str] = []
        self.damaged: list[str] = []

    def take(self, path: Path) -> None:
        log = read_log(path)
        state = RunState.of(log)
        if state.begun:
            self.summaries.append(state.summary())
            return
        self.cut += log.cut
        self.damaged += log.damaged
        if log.events or log.damaged:
            self.damaged.append(f"{path.name}: the start of the run is lost")
        else:  # killed before it began
            self.cut.append(f"{path.name}: contains no run; skipped")

    def take_summary(self, path: Path) -> None:
        """The record that the run left at its end, where its log tells nothing."""
        if path.is_file():
            try:
                self.summaries.append(decode_json(path.read_bytes(), RunSummary))
            except UNREADABLE as error:
                self.damaged.append(f"{path.name}: not a summary ({error})")


def gathered(folder: Path, summary: RunSummary, history: Path | None = None) -> Material:
    """What a report needs besides the summary: earlier nights and the texts of the repros."""
    earlier = _earlier(folder, history or folder.resolve().parent)
    return Material(trend=trend(summary, earlier), scripts=_scripts(folder, summary))


def write_reports(
    folder: Path,
    summary: RunSummary,
    *,
    kinds: Iterable[Format] = FORMATS,
    history: Path | None = None,
) -> list[Path]:
    """Write the reports into the folder of the run; their paths.

    Raises:
        UsageError: the folder cannot be written.
    """
    material = gathered(folder, summary, history)
    paths = []
    for kind in kinds:
        path = folder / FORMATS[kind]
        corpus.write_atomically(path, report(kind, summary, material))
        paths.append(path)
    return paths


def _earlier(folder: Path, history: Path) -> list[RunSummary]:
    """Finished runs beside this one; a file that is none is passed over."""
    here = folder.resolve()
    found: list[RunSummary] = []
    for path in sorted(history.glob("*/summary.json"), reverse=True):
        if path.parent.resolve() == here or len(found) == _TREND_RUNS:
            continue
        try:
            found.append(decode_json(path.read_bytes(), RunSummary))
        except (OSError, *UNREADABLE):
            continue
    return found


def _scripts(folder: Path, summary: RunSummary) -> dict[str, dict[ExportKind, str]]:
    """Texts of the repros that are on disk, whatever the paths in the log once were."""
    texts: dict[str, dict[ExportKind, str]] = {}
    for reported in summary.findings:
        for kind, name in file_names(reported.id).items():
            try:
                text = (folder / "findings" / reported.id / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            texts.setdefault(reported.id, {})[kind] = text
    return texts
