"""Events on disk, one JSON line each, flushed as they come, so that a killed run keeps them."""

from __future__ import annotations

from pathlib import Path

from fuzzgraph.errors import UsageError
from fuzzgraph.events import Event, encode_event

__all__ = ["EventFile"]


class EventFile:
    """Appends events to a file."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written ({error.strerror}). Name another folder with --out."
            ) from None

    def __call__(self, event: Event) -> None:
        self._file.write(encode_event(event))
        self._file.flush()

    def close(self) -> None:
        self._file.close()
