"""A run's events on disk, read back: with what a kill cut short and what is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.run.events import Event, parse_event
from fuzzgraph.strict_json import decode_json

_OPENING = b'{"event":"'
_RESUMED = _OPENING + b"campaign_started"


class Log(NamedTuple):
    """What a file of events tells."""

    events: list[Event]
    damaged: list[str]
    """One line about each line that cannot be read."""
    cut: list[str]
    """The same about each line that a kill cut short: the last one, or the last before a resume.
    The resumed run does that work again, so that nothing is lost."""


def read_log(path: Path) -> Log:
    """The events of a log, and what of it cannot be read.

    Raises:
        UsageError: it cannot be read at all.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}). Name the folder of a run."
        ) from None
    log = Log([], [], [])
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            log.events.append(parse_event(line))
        except UNREADABLE as error:
            _refuse_older(path, line)
            where = f"{path.name}:{number}: not an event"
            if _is_cut(line, b"".join(lines[number : number + 1])):
                log.cut.append(f"{where} (cut short); left out")
            else:
                log.damaged.append(f"{where} ({error}); left out")
    return log


def _refuse_older(path: Path, line: bytes) -> None:
    """Refuse the start of a run that was written before a start carried the whole `RunSpec`.

    Everything else of such a log hangs on it, so that one line says more than a list of damage.
    """
    if not line.startswith(_RESUMED):
        return
    try:
        start = decode_json(line)
    except UNREADABLE:
        return
    if "setup" in start and "spec" not in start:
        version = start.get("fuzzgraph") or "unknown version"
        raise UsageError(
            f"{path}: was written by an older FuzzGraph ({version}), whose logs this one cannot "
            "read. Use that FuzzGraph on it, or start a new run."
        )


def _is_cut(line: bytes, after: bytes) -> bool:
    """Whether a kill explains a line that is no event: it begins like one, and nothing follows it
    but the start of a resumed run."""
    begun = _OPENING.startswith(line.rstrip(b"\n")) or line.startswith(_OPENING)
    return begun and (not line.endswith(b"\n") or after.startswith(_RESUMED))
