"""A case as people read it: one line per step, and the settings that are not the default."""

from __future__ import annotations

from collections.abc import Collection

from fuzzgraph.case import (
    BatchRow,
    Case,
    EngineConfig,
    ReplayStep,
    rank_sizes,
    raw_size,
    replayed_size,
)

_DEFAULT = EngineConfig()
_ROWS_SHOWN = 12


def case_table(case: Case, mark: int = -1) -> list[str]:
    """The cells of `case_cells` aligned, the step `mark` with an arrow."""
    rows = case_cells(case)
    marks = ["", *(">" if index == mark else "" for index in range(len(case.steps)))]
    cells = [(sign, *row) for sign, row in zip(marks, rows, strict=True)]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    return [
        " ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]])
        for row in cells
    ]


def case_cells(case: Case) -> list[tuple[str, str, str, str, str]]:
    """A header, then each step: mode, via, live and padded size, rows as request:length.

    `+n` are tokens computed in the step where it is not one, `enc n` encoder tokens.
    """
    cells = [("step", "mode", "via", "raw/padded", "rows (request:seq_len)")]
    for index, step in enumerate(case.steps):
        sizes, via = _sizes(case.config, step)
        later = {row.request for other in case.steps[index:] for row in other.rows}
        cells.append((str(index), step.mode, via, sizes, _rows(step, later)))
    return cells


def _sizes(config: EngineConfig, step: ReplayStep) -> tuple[str, str]:
    """Size over padded size, and how the step really runs."""
    if not any(rank_sizes(config, step)):
        return "0", step.via
    raw, padded = raw_size(step), replayed_size(config, step)
    unit = " tokens" if step.mode == "prefill" else ""
    if padded is None:
        return f"{raw}{unit}", "eager"
    return f"{raw}/{padded}{unit}", "graph"


def _rows(step: ReplayStep, later: Collection[int]) -> str:
    """Rows, and who left before; one that is named `later` comes back."""
    shown = " ".join(_row(step, row) for row in step.rows[:_ROWS_SHOWN])
    hidden = len(step.rows) - _ROWS_SHOWN
    parts = [shown or "-"]
    if hidden > 0:
        parts.append(f"... {hidden} more")
    for word, comes_back in (("finishing", False), ("preempting", True)):
        if gone := [str(name) for name in step.finish if (name in later) is comes_back]:
            parts.append(f"after {word} {','.join(gone)}")
    if step.other_ranks:
        prompts = " tokens of prompts" if step.others_prefill else ""
        parts.append(f"other ranks {','.join(map(str, step.other_ranks))}{prompts}")
    if step.mrope:
        parts.append("with mrope")
    return "  ".join(parts)


def _row(step: ReplayStep, row: BatchRow) -> str:
    computed = f"+{row.new_tokens}" if step.mode not in ("decode", "draft") else ""
    encoder = f" enc {row.encoder_len}" if row.encoder_len else ""
    adapter = f" lora {row.adapter}" if row.adapter else ""
    return f"{row.request}:{row.seq_len}{computed}{encoder}{adapter}"


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
