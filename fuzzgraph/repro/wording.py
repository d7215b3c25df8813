"""Headline, case table and summary of a finding, shared by all exports."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from fuzzgraph.case import digest, raw_size, replayed_size
from fuzzgraph.finding import CLAUSES, Finding

if TYPE_CHECKING:
    from fuzzgraph.case import BatchRow, Case, EngineConfig

__all__ = [
    "case_table",
    "config_text",
    "docstring",
    "headline",
    "law",
    "opening",
    "plain",
]


def law(finding: Finding) -> str:
    """The sentence that every replay must obey, and the clause of it that was broken."""
    return (
        "The law: a replay of a captured graph reads only what its batch names, writes only what"
        " its batch owns, and computes what attention defines, whatever was replayed before it."
        f" Broken here: {CLAUSES[finding.clause]}."
    )


def plain(text: str) -> str:
    """Text of a case or an engine as one printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def headline(finding: Finding) -> str:
    """The finding in one line: clause, buffer, where."""
    where = f"{finding.mode}, step {finding.step}" if finding.step >= 0 else finding.stage
    buffer = f" {plain(finding.buffer)}" if finding.buffer else ""
    return f"FINDING {finding.clause} [{plain(finding.oracle)}]:{buffer} ({where})"


def config_text(config: EngineConfig) -> str:
    """What differs from the defaults of a config, and the captured sizes."""
    given = msgspec.to_builtins(config)
    shown = {"capture_bs": list(config.capture_bs), "page_size": config.page_size, **given}
    return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def case_table(case: Case) -> list[str]:
    """The steps as an aligned text table, header first."""
    rows = [("step", "mode", "via", "padding", "rows: request (seq_len, new tokens)")]
    for index, step in enumerate(case.steps):
        size, padded = raw_size(step), replayed_size(case.config, step)
        axis = "tokens" if step.mode == "prefill" else "raw_bs"
        listed = [_row_text(row) for row in step.rows[:16]]
        listed += [f"... {len(step.rows) - 16} more"] if len(step.rows) > 16 else []
        left = [f"r{request} left" for request in step.finish]
        rows.append(
            (
                str(index),
                step.mode,
                step.via if padded is not None or step.via == "eager" else "eager (above ladder)",
                f"{axis} {size} -> {padded}" if padded is not None else f"{axis} {size}",
                ", ".join(listed + left) or "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]


def _row_text(row: BatchRow) -> str:
    encoder = f", encoder {row.encoder_len}" if row.encoder_len else ""
    return f"r{row.request} ({row.seq_len}, {row.new_tokens}{encoder})"


def opening(case: Case, finding: Finding) -> list[str]:
    """How every export begins: the finding, the law it broke, the engine and the steps."""
    return [
        headline(finding),
        "",
        plain(finding.message),
        "",
        law(finding),
        "",
        f"Engine config: {config_text(case.config)}",
        f"Case {digest(case)[:12]}:",
        "",
        *(f"    {line}" for line in case_table(case)),
        "",
    ]


def docstring(lines: Iterable[str], width: int = 98) -> str:
    """A module docstring of these lines; lines of an indented table are not wrapped."""
    found: list[str] = []
    for line in lines:
        short = line.startswith("    ") or len(line) <= width
        found += [line] if short else textwrap.wrap(line, width, break_long_words=False)
    text = "\n".join(found).replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""'
