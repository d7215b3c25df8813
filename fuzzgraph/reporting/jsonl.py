"""Events on disk, one JSON line each, flushed as they come, so that a killed run keeps them."""

from __future__ import annotations

import os
from pathlib import Path

from fuzzgraph.errors import UsageError
from fuzzgraph.events import Event, encode_event

__all__ = ["EventFile"]


class EventFile:
    """Appends events to a file; a line that a kill cut short ends before the first one."""

    def __init__(self, path: Path) -> None:
        try:
            cut = _cut_short(path)
            self._file = path.open("ab")
            if cut:
                self._file.write(b"\n")
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written ({error.strerror}). Name another folder with --out."
            ) from None

    def __call__(self, event: Event) -> None:
        self._file.write(encode_event(event))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _cut_short(path: Path) -> bool:
    """Whether the file ends within a line."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
