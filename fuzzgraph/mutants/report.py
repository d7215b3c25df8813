"""A measurement as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.corpus import write_atomically
from fuzzgraph.mutants.records import Mutant, Result
from fuzzgraph.mutants.score import Score, Survivor
from fuzzgraph.reporting import as_json
from fuzzgraph.text.escaping import visible

_SECTIONS = (
    ("hole", "Holes: nobody looks"),
    ("unjudged", "Not judged yet"),
    ("unreachable", "Unreachable: no case of this target shows it"),
    ("equivalent", "Equivalent"),
)


def headline(score: Score) -> str:
    """One line with the figures."""
    return (
        f"{score.found} of {score.counted} found ({score.percent:.0f}%); {score.started} started, "
        f"{score.equivalent} equivalent, {score.unreachable} unreachable "
        f"({score.unreachable_percent:.0f}%), {score.holes} holes, {score.unjudged} unjudged"
    )


def write(folder: Path, score: Score) -> None:
    """Write `report.md` and `report.json` into the folder."""
    write_atomically(folder / "report.md", markdown(score).encode())
    write_atomically(folder / "report.json", as_json(record(score)).encode())


def record(score: Score) -> dict[str, Any]:
    """The score with its computed figures."""
    return {
        **msgspec.to_builtins(score),
        "started": score.started,
        "counted": score.counted,
        "percent": round(score.percent, 1),
        "unreachable_percent": round(score.unreachable_percent, 1),
    }


def markdown(score: Score) -> str:
    """The whole report."""
    setup = score.sought.setup
    engine = f", {setup.engine}" if setup.engine else ""
    ground = score.ground
    parts = [
        f"# Mutants of {visible(setup.target)}{engine}",
        f"{headline(score)}.",
        f"Seed {score.sought.seed}, {score.sought.seconds:g} processor seconds for each mutant. "
        f"Drawn from {ground.candidates} changes of {ground.lines} lines that the target executes "
        f"while it captures and prepares replays ({ground.traced_cases} cases traced). The "
        f"unchanged engine ran {ground.cases} cases and showed {len(ground.findings)} findings, "
        f"which find no mutant. {score.does_not_start} more mutants did not start and count as "
        "nothing.",
        *([_list("The unchanged engine shows", ground.shown)] if ground.shown else []),
        _table(
            ("change", "started", "found"),
            [(row.operator, row.started, row.found) for row in score.operators],
        ),
        _table(("first oracle", "found"), list(score.oracles.items())),
    ]
    if score.dimensions:
        parts.append(_table(("missing dimension", "mutants"), list(score.dimensions.items())))
    for judgement, title in _SECTIONS:
        chosen = [one for one in score.survivors if one.judgement == judgement]
        if chosen:
            parts += [f"## {title}", *map(_survivor, chosen)]
    found = [one for one in score.results if one.outcome == "found"]
    if found:
        rows = [(_place(one.mutant), one.mutant.operator, one.oracle, one.buffer, one.cases)
                for one in found]  # fmt: skip
        header = ("found", "change", "oracle", "buffer", "cases")
        parts += ["## Found", _table(header, rows)]
    lost = [one for one in score.results if one.outcome == "does_not_start"]
    if lost:
        rows_lost = [(_place(one.mutant), one.mutant.operator, one.said) for one in lost]
        parts += ["## Did not start", _table(("line", "change", "why"), rows_lost)]
    return "\n\n".join(parts) + "\n"


def _place(mutant: Mutant) -> str:
    return f"{mutant.module}:{mutant.line}"


def _survivor(one: Survivor) -> str:
    result: Result = one.result
    mutant = result.mutant
    said = "; ".join(filter(None, (one.dimension, one.why, _failed(result))))
    lines = [f"-{line}" for line in mutant.before.splitlines()]
    lines += [f"+{line}" for line in mutant.after.splitlines()]
    text = "\n".join(visible(line) for line in lines)
    fence = "```" if "```" not in text else "`````"
    head = f"`{mutant.id}` {_place(mutant)} in `{mutant.function}` ({mutant.operator})"
    return f"{head}\n\n{fence}diff\n{text}\n{fence}" + (f"\n\n{_cell(said)}" if said else "")


def _failed(result: Result) -> str:
    return f"not judged by any oracle: {result.said}" if result.outcome == "failed" else ""


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(str(cell)) for cell in row) + " |" for row in lines)


def _list(title: str, lines: Iterable[str]) -> str:
    return f"{title}:\n\n" + "\n".join(f"- {_cell(line)}" for line in lines)


def _cell(text: str) -> str:
    """One line that no Markdown in it can break out of a cell."""
    safe = visible(" ".join(text.split()))
    for letter in "\\|<>[]`*_":
        safe = safe.replace(letter, f"\\{letter}")
    return safe
