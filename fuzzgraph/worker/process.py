"""Starts a child and ends it: its socket, its environment, its log and how it died."""

from __future__ import annotations

import contextlib
import os
import signal
import site
import socket
import subprocess
import sys
from pathlib import Path

import fuzzgraph
from fuzzgraph.worker.messages import Channel, FromChild

__all__ = ["Child"]

_PARTING_SECONDS = 5.0
"""Time for a child to leave by itself once the channel is closed."""


class Child:
    """One running child process."""

    def __init__(self, folder: Path, *, python: str, device: str) -> None:
        self.stage_path = folder / "stage"
        self.stage_path.unlink(missing_ok=True)
        ours, theirs = socket.socketpair()
        with theirs, (folder / "worker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [python, "-m", "fuzzgraph.worker", str(theirs.fileno()), str(self.stage_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env=_environment(device),
                start_new_session=True,  # a kill then takes what the engine started as well
            )
        self.channel: Channel[FromChild] = Channel(ours, FromChild)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ending(self) -> tuple[str, str]:
        """Symptom and wording of a child that closed its channel by itself."""
        try:
            code = self._process.wait(_PARTING_SECONDS)
        except subprocess.TimeoutExpired:
            return "hang", "closed its channel and stayed"
        if code < 0:
            return "signal", f"ended by {_signal_name(-code)}"
        return "exception", f"left with exit code {code}"

    def kill(self) -> None:
        """End the child and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.channel.close()

    def leave(self) -> None:
        """Close the channel, which ends the child; kill it where that does not help."""
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PARTING_SECONDS)
        self.kill()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _environment(device: str) -> dict[str, str]:
    """The parent's, one thread, Triton's interpreter without a GPU, and FuzzGraph importable."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1")
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    root = str(Path(fuzzgraph.__file__).parent.parent)
    if root not in site.getsitepackages() and root not in sys.prefix:
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, known)))
    return environment
