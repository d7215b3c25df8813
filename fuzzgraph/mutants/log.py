"""The log of one measurement: a strict JSON line for the question, the ground and each mutant.

A line that a kill cut short is left out, and its mutant is run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.mutants.records import Done, Ground, LogLine, Result, Sought
from fuzzgraph.strict_json import decode_json

NAME = "mutants.jsonl"
_LINE: Any = LogLine


@dataclass(slots=True)
class Log:
    """What a file tells."""

    sought: Sought | None = None
    ground: Ground | None = None
    results: dict[str, Result] = field(default_factory=dict)
    """By the mutant's id, in the order in which they were run."""
    done: int = 0
    """Sample for which nothing is left to run."""

    def add(self, line: LogLine) -> None:
        if isinstance(line, Sought):
            self.sought = line
        elif isinstance(line, Ground):
            self.ground = line
        elif isinstance(line, Done):
            self.done = line.sample
        else:
            self.results[line.mutant.id] = line


def read(path: Path) -> Log:
    """The log of a file; an empty one where there is none.

    Raises:
        UsageError: it cannot be read, or a line is damaged that no kill explains.
    """
    log = Log()
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return log
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}). Name another --out."
        ) from None
    for number, line in enumerate(lines, start=1):
        try:
            read_line: LogLine = decode_json(line, _LINE)
            log.add(read_line)
        except UNREADABLE as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break  # a kill cut it short
            raise UsageError(
                f"{path}:{number}: no line of a log of mutants ({error}). Mend or remove it, or "
                "name another --out."
            ) from None
    return log


class Writer:
    """Appends lines, each whole before the next begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        _cut_off_torn(path)

    def write(self, lines: Iterable[LogLine]) -> None:
        with self._path.open("ab") as file:
            for line in lines:
                file.write(msgspec.json.encode(line) + b"\n")


def _cut_off_torn(path: Path) -> None:
    """Drop a last line without an end, so that the next one begins on a line of its own."""
    if not path.exists():
        return
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        path.write_bytes(whole)
