"""Events on disk, one JSON line each, flushed as they come, so that a killed run keeps them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fuzzgraph.errors import UsageError
from fuzzgraph.run.events import Event, encode_event


class EventFile:
    """Appends events to a file; a line that a kill cut short ends before the first one."""

    def __init__(self, path: Path) -> None:
        try:
            self._broken = False
            cut = _cut_short(path)
            self._file = path.open("ab")
            if cut:
                self._file.write(b"\n")
        except OSError as error:
            raise _unwritable(path, error) from None
        self._path = path

    def __call__(self, event: Event) -> None:
        """Append an event.

        Raises:
            UsageError: it cannot be written, e.g. the disk is full; later events are then dropped.
        """
        if self._broken:
            return
        try:
            self._file.write(encode_event(event))
            self._file.flush()
        except OSError as error:
            self._broken = True
            raise _unwritable(self._path, error) from None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take
            self._file.close()


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: cannot be written ({error.strerror}). Make room, or name another folder."
    )


def _cut_short(path: Path) -> bool:
    """Whether the file ends within a line."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
