"""How a finding and a case read: clause and buffer first, then the case as a table."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, raw_size, replayed_size
from fuzzgraph.escaping import one_line
from fuzzgraph.events import Export, ReportedFinding
from fuzzgraph.finding import CLAUSES, Finding
from fuzzgraph.format_numbers import counted
from fuzzgraph.reporting.skipped import undone_text

__all__ = ["as_json", "case_table", "config_line", "finding_head", "finding_text"]

_DEFAULT = EngineConfig()
_ROWS_SHOWN = 12


def finding_text(reported: ReportedFinding) -> str:
    """The finding as a person reads it, without a line of the harness."""
    lines = finding_head(reported.finding)
    if reported.status != "new":
        lines.append(f"  {reported.status}, does not count as new {reported.issue}".rstrip())
    lines.append("")
    lines += _indented(case_table(reported.case, mark=reported.finding.step))
    lines += ["", f"  config: {config_line(reported.case.config)}"]
    if reported.also:
        lines += ["  the same case also breaks:"]
        lines += [f"    {_broken(other)} ({other.oracle})" for other in reported.also]
    lines += ["", *_indented(_whereabouts(reported))]
    return "\n".join(map(one_line, lines))


def finding_head(finding: Finding) -> list[str]:
    """Broken clause and buffer, what was seen, and how sure that is."""
    lines = [
        f"BROKEN {_broken(finding)}",
        f"  {finding.oracle}: {finding.message}",
        f"  step {finding.step} ({finding.mode}) at stage {finding.stage}, target {finding.target}"
        + _confirmation(finding.confirmed),
    ]
    if finding.severity == "nan":
        lines.append("  severity nan: NaN in memory that no mask lets through changed the result")
    return [one_line(line) for line in lines]


def _broken(finding: Finding) -> str:
    where = f": {finding.buffer}" if finding.buffer else ""
    return f'"{CLAUSES[finding.clause]}"{where}'


def _confirmation(rate: str) -> str:
    if not rate:
        return ""
    hits, _, times = rate.partition("/")
    word = "confirmed" if hits == times else "FLAKY, seen"
    return f"; {word} {rate} in fresh sessions"


def case_table(case: Case, mark: int = -1) -> list[str]:
    """One line per step: mode, via, live and padded size, and each row as request:length.

    `+n` are tokens computed in the step where it is not one, `enc n` encoder tokens.
    """
    cells = [("", "step", "mode", "via", "raw/padded", "rows (request:seq_len)")]
    for index, step in enumerate(case.steps):
        sizes, via = _sizes(case.config, step)
        marked = ">" if index == mark else ""
        cells.append((marked, str(index), step.mode, via, sizes, _rows(step)))
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    return [
        " ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]])
        for row in cells
    ]


def _sizes(config: EngineConfig, step: ReplayStep) -> tuple[str, str]:
    """Size over padded size, and how the step really runs."""
    if step.mode == "idle":
        return "0", step.via
    raw, padded = raw_size(step), replayed_size(config, step)
    unit = " tokens" if step.mode == "prefill" else ""
    if padded is None:
        return f"{raw}{unit}", "eager"
    return f"{raw}/{padded}{unit}", "graph"


def _rows(step: ReplayStep) -> str:
    shown = " ".join(_row(step, row) for row in step.rows[:_ROWS_SHOWN])
    hidden = len(step.rows) - _ROWS_SHOWN
    parts = [shown or "-"]
    if hidden > 0:
        parts.append(f"... {hidden} more")
    if step.finish:
        parts.append(f"after finishing {','.join(map(str, step.finish))}")
    if step.mrope:
        parts.append("with mrope")
    return "  ".join(parts)


def _row(step: ReplayStep, row: BatchRow) -> str:
    computed = f"+{row.new_tokens}" if step.mode not in ("decode", "draft") else ""
    encoder = f" enc {row.encoder_len}" if row.encoder_len else ""
    return f"{row.request}:{row.seq_len}{computed}{encoder}"


def config_line(config: EngineConfig) -> str:
    """Capture sizes, page size, and whatever else is not the simplest value."""
    always = ("capture_bs", "page_size")
    shown = [
        f"{name}={_plain(getattr(config, name))}"
        for name in config.__struct_fields__
        if name in always or getattr(config, name) != getattr(_DEFAULT, name)
    ]
    return " ".join(shown)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value)


def _whereabouts(reported: ReportedFinding) -> list[str]:
    lines = []
    how = []
    if reported.after_cases:
        how.append(f"after {counted(reported.after_cases, 'case')}, {reported.after_seconds:.1f} s")
    if reported.shrink_tries:
        how.append(
            f"shrunk in {counted(reported.shrink_tries, 'try')}, {reported.shrink_seconds:.1f} s"
        )
    if how:
        lines.append(f"found   {'; '.join(how)}")
    if reported.case_path:
        lines.append(f"case    {reported.case_path}")
    for export in reported.exports:
        lines.append(f"{export.kind:<7} {_exported(export)}")
    if reported.left:
        lines.append(f"left    for lack of time: {undone_text(reported)}")
    if reported.replay:
        lines.append(f"replay  {reported.replay}")
    return lines


def _exported(export: Export) -> str:
    if export.error:
        return f"{export.path} ({export.error})" if export.path else f"none: {export.error}"
    if export.rate:
        return f"{export.path} (fails {export.rate})"
    return f"{export.path} (not executed yet)" if export.kind == "script" else export.path


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}".rstrip() for line in lines]


def as_json(value: object) -> str:
    """Indented JSON of a record."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
