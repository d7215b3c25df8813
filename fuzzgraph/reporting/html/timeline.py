"""The history of a case as a picture: capture, then one column for each batch, time to the right.

A cell is one row of the batch: live ones carry their request and a bar as long as its sequence,
padded ones are hatched. The step that broke the law is framed.
"""

from __future__ import annotations

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, raw_size, replayed_size
from fuzzgraph.finding import Finding
from fuzzgraph.reporting.html.drawing import box, fitted, line, svg, text
from fuzzgraph.text.numbers import counted

_CELL = 140.0
_ROW = 26.0
_GAP = 22.0
_TOP = 66.0
_LEFT = 10.0
_CAPTURE = 92.0
_ROWS_SHOWN = 16
_HUES = 8


def timeline(case: Case, finding: Finding) -> str:
    """The steps of `case`; the one of `finding` is framed."""
    columns = [_rows_of(case.config, step) for step in case.steps]
    tallest = max([len(column) for column in columns] + [len(_ladder(case.config)), 1])
    height = _TOP + tallest * _ROW + 30
    parts = _capture(case.config, broken=finding.step < 0, tallest=tallest)
    parts += _flows(case.steps)
    for index, (step, column) in enumerate(zip(case.steps, columns, strict=True)):
        parts += _column(case.config, index, step, column, broken=index == finding.step)
    parts.append(_axis(len(case.steps), tallest))
    return svg(_x(len(case.steps)) - _GAP + 14, height, parts, _told(case, finding))


def _x(index: int) -> float:
    return _LEFT + _CAPTURE + _GAP + index * (_CELL + _GAP)


def _y(row: int) -> float:
    return _TOP + row * _ROW


def _ladder(config: EngineConfig) -> list[str]:
    sizes = [f"{size} rows" if size > 1 else "1 row" for size in reversed(config.capture_bs)]
    tokens = [f"{size} tokens" for size in reversed(config.capture_tokens)]
    ladder = sizes + tokens
    if len(ladder) > 6:
        ladder = [*ladder[:5], f"{len(ladder) - 5} more"]
    return ladder


def _capture(config: EngineConfig, *, broken: bool, tallest: int) -> list[str]:
    parts = [text(_LEFT, 18, "capture", "strong"), text(_LEFT, 34, "largest first", "soft")]
    for row, name in enumerate(_ladder(config)):
        parts.append(box(_LEFT, _y(row), _CAPTURE, _ROW - 5, "cell captured"))
        parts.append(text(_LEFT + 8, _y(row) + 15, name))
    if broken:
        parts += _frame(_LEFT, _CAPTURE, max(len(_ladder(config)), 1))
    return parts


Cell = tuple[BatchRow | None, str]
"""A live row with its words, or None and the words of a padded cell."""


def _rows_of(config: EngineConfig, step: ReplayStep) -> list[Cell]:
    """The cells of one column; what is more than fits is told in the last one."""
    cells: list[Cell] = [(row, _words(step, row)) for row in step.rows]
    padded = replayed_size(config, step)
    if step.mode == "prefill":
        if padded is not None and padded > (tokens := raw_size(step)):
            cells.append((None, counted(padded - tokens, "padded token")))
    elif padded is not None:
        cells += [(None, "padded")] * (padded - len(step.rows))
    if len(cells) > _ROWS_SHOWN:
        hidden = len(cells) - _ROWS_SHOWN + 1
        cells = [*cells[: _ROWS_SHOWN - 1], (None, f"{hidden} rows more")]
    return cells


def _words(step: ReplayStep, row: BatchRow) -> str:
    new = f" +{row.new_tokens}" if step.mode not in ("decode", "draft") else ""
    encoder = f" enc {row.encoder_len}" if row.encoder_len else ""
    adapter = f" lora {row.adapter}" if row.adapter else ""
    return f"len {row.seq_len}{new}{encoder}{adapter}"


def _sizes(config: EngineConfig, step: ReplayStep) -> str:
    raw, padded = raw_size(step), replayed_size(config, step)
    unit = "token" if step.mode == "prefill" else "row"
    if padded is None:
        return f"eager, {counted(raw, unit)}"
    return f"graph, {raw} of {counted(padded, unit)}"


def _column(
    config: EngineConfig, index: int, step: ReplayStep, column: list[Cell], *, broken: bool
) -> list[str]:
    x = _x(index)
    left = f"{', '.join(f'r{name}' for name in step.finish)} finished" if step.finish else ""
    extra = "with mrope" if step.mrope else ""
    parts = [
        text(x, 18, f"step {index}", "strong"),
        text(x + _CELL, 18, step.mode.replace("_", " "), "soft", anchor="end"),
        text(x, 34, _sizes(config, step), "soft"),
        text(x, 50, fitted(", ".join(filter(None, (left, extra))), _CELL), "soft event"),
    ]
    eager = replayed_size(config, step) is None
    for position, (row, words) in enumerate(column):
        parts += _cell(config, x, _y(position), row, words, eager=eager)
    if not column:
        parts.append(box(x, _y(0), _CELL, _ROW - 5, "cell idle"))
        parts.append(text(x + _CELL / 2, _y(0) + 15, "idle", "soft", anchor="middle"))
    if broken:
        parts += _frame(x, _CELL, max(len(column), 1))
    return parts


def _cell(
    config: EngineConfig, x: float, y: float, row: BatchRow | None, words: str, *, eager: bool
) -> list[str]:
    height = _ROW - 5
    if row is None:
        shape = box(x, y, _CELL, height, "cell padded")
        return [shape, text(x + 8, y + 15, words, "soft halo")]
    kind = f"cell live q{row.request % _HUES}{' eager' if eager else ''}"
    share = min(row.seq_len / config.max_context_len, 1.0)
    return [
        box(x, y, _CELL, height, kind),
        box(x, y + height - 3, max(_CELL * share, 2), 3, f"bar q{row.request % _HUES}", r=1),
        text(x + 8, y + 14, f"r{row.request}", "strong"),
        text(x + _CELL - 8, y + 14, words, anchor="end"),
    ]


def _frame(x: float, width: float, rows: int) -> list[str]:
    return [
        box(x - 6, _TOP - 7, width + 12, rows * _ROW + 9, "broken", r=6),
        text(x + width / 2, _y(rows) + 17, "breaks here", "alarm", anchor="middle"),
    ]


def _flows(steps: tuple[ReplayStep, ...]) -> list[str]:
    """Thin lines from a request to where it continues."""
    parts = []
    last: dict[int, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        for name in step.finish:
            last.pop(name, None)
        for position, row in enumerate(step.rows[: _ROWS_SHOWN - 1]):
            if row.request in last:
                column, before = last[row.request]
                start = _x(column) + _CELL, _y(before) + 10
                end = _x(index), _y(position) + 10
                parts.append(line(*start, *end, f"flow q{row.request % _HUES}"))
            last[row.request] = (index, position)
    return parts


def _axis(steps: int, tallest: int) -> str:
    return line(_LEFT, _TOP - 11, _x(steps) - _GAP, _TOP - 11, "axis")


def _told(case: Case, finding: Finding) -> str:
    count = len(case.steps)
    where = f"step {finding.step}" if finding.step >= 0 else "capture"
    return f"History of {count} step{'s' * (count != 1)} after capture; {where} breaks the law"
