"""What a child prints: kept in a log of bounded size, whatever it prints and how much.

A thread empties the child's pipe, so that a child that floods it neither blocks nor fills the disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

_FILE_BYTES = 1 << 20
"""When the log is this long it becomes `worker.log.1`, in place of the one before."""
_TAIL_BYTES = 1 << 16
"""What is remembered of one case, from its begin and from its end."""
_PATIENCE = 1.0
"""Seconds for what is left in the pipe of a dead child; its own children may hold the other end."""


class Output:
    """Reads one child's stdout and stderr until both are closed."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._lock = threading.Lock()
        self._head = b""
        self._tail = b""
        self._thread = threading.Thread(target=self._pump, name="worker output", daemon=True)
        self._thread.start()

    def begin_case(self) -> None:
        """Forget what was printed so far: what comes now belongs to the next case."""
        with self._lock:
            self._head = self._tail = b""

    def of_case(self) -> str:
        """What was printed since `begin_case`: its begin and its end, with a mark in between."""
        with self._lock:
            head, tail = self._head, self._tail
        between = b"\n[...]\n" if len(tail) == _TAIL_BYTES else b""
        return (head + between + tail).decode(errors="replace")

    def finish(self) -> None:
        """Take in what a dead child had still printed."""
        self._thread.join(_PATIENCE)

    def _pump(self) -> None:
        with contextlib.suppress(OSError), open(self._descriptor, "rb", buffering=0) as pipe:
            while part := pipe.read(1 << 16):
                self._remember(part)
                self._keep(part)

    def _remember(self, part: bytes) -> None:
        with self._lock:
            room = _TAIL_BYTES - len(self._head)
            self._head += part[:room]
            self._tail = (self._tail + part[room:] if room > 0 else self._tail + part)[
                -_TAIL_BYTES:
            ]

    def _keep(self, part: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk costs the log, not the run
            if self._path.exists() and self._path.stat().st_size + len(part) > _FILE_BYTES:
                os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
            with self._path.open("ab") as log:
                log.write(part)
