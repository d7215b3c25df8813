"""Makes the reports of a run from its event logs, at its end or any time later.

It reads what lies in the folder of the run and beside it; how a report looks is `reporting`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from fuzzgraph import corpus
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.events import ExportKind, RunSummary, read_log
from fuzzgraph.reporting import joined
from fuzzgraph.reporting.formats import FORMATS, Format, report
from fuzzgraph.reporting.html import Material
from fuzzgraph.reporting.nights import nights
from fuzzgraph.reporting.rebuilding import summary_of
from fuzzgraph.repro.files import file_names

__all__ = ["gathered", "rebuilt", "write_reports"]

_TREND_RUNS = 60
"""Runs beside this one that are read for the trend, newest first."""


def rebuilt(folder: Path) -> RunSummary:
    """The summary of a run, from its event logs alone.

    Raises:
        UsageError: there is no log, or nothing in it tells of a run.
    """
    logs = sorted(folder.glob("events*.jsonl")) if folder.is_dir() else []
    if not logs:
        raise UsageError(
            f"{folder}: holds no events.jsonl. Name the folder of a run, as 'fuzzgraph run' prints."
        )
    summaries, bad = [], []
    for log in logs:
        events, damaged = read_log(log)
        bad += damaged
        summary = summary_of(events)
        if summary is not None:
            summaries.append(summary)
        else:
            bad.append(f"{log.name}: tells of no run; left out")
    if not summaries:
        raise UsageError(f"{folder}: {'; '.join(bad)}. Nothing of the run can be told.")
    whole = joined(summaries) if len(summaries) > 1 else summaries[0]
    return msgspec.structs.replace(whole, bad_entries=(*whole.bad_entries, *bad))


def gathered(folder: Path, summary: RunSummary, history: Path | None = None) -> Material:
    """What a report needs besides the summary: earlier nights and the texts of the repros."""
    earlier = _earlier(folder, history or folder.resolve().parent)
    return Material(nights=nights(summary, earlier), scripts=_scripts(folder, summary))


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
            found.append(msgspec.json.decode(path.read_bytes(), type=RunSummary))
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
