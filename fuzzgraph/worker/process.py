"""Starts a child and ends it: its socket, its environment, its output and how it died."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from fuzzgraph.finding import Symptom
from fuzzgraph.process.device_faults import fault_in, unusable_in
from fuzzgraph.process.interpreter import engine_environment, module_command
from fuzzgraph.worker.messages import Channel, Entered, FromChild
from fuzzgraph.worker.output import Output

_PARTING_SECONDS = 5.0
"""Time for a child to leave by itself once the channel is closed."""


class Ending(Exception):
    """How a child ended that gave no answer: what is seen of it, apart from where it was."""

    def __init__(
        self, symptom: Symptom, how: str, kind: str, device_error: str = "", unusable: str = ""
    ) -> None:
        super().__init__(how)
        self.symptom: Symptom = symptom
        self.how = how
        """A clause that follows "the engine's process"."""
        self.kind = kind
        """A word or two, the same for every death of this kind: 'SIGSEGV', 'exit 7', 'hang'."""
        self.device_error = device_error
        """What the driver said, where a kernel made the device fail."""
        self.unusable = unusable
        """What it said where the device failed by itself."""

    @property
    def innocent(self) -> bool:
        """Whether what ended the child may be neither its engine nor its case."""
        return self.kind == "SIGKILL" or bool(self.unusable)


class Child:
    """One running child process."""

    def __init__(self, folder: Path, *, device: str) -> None:
        self.entered = Entered()
        """The last stage that it said it enters."""
        self._on_device = device != "cpu"
        self.opening = False
        """Whether it was sent what to open, and has not answered yet."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                module_command("fuzzgraph.worker", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=engine_environment(device),
                start_new_session=True,  # a kill then takes what the engine started as well
            )
        assert self._process.stdout is not None
        self.output = Output(os.dup(self._process.stdout.fileno()), folder / "worker.log")
        self._process.stdout.close()
        self.channel: Channel[FromChild] = Channel(ours, FromChild)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ending(self) -> Ending:
        """How a child ended that closed its channel by itself."""
        try:
            code = self._process.wait(_PARTING_SECONDS)
        except subprocess.TimeoutExpired:
            return Ending("hang", "closed its channel and stayed", "hang")
        self.output.finish()
        said = self.output.of_case()
        if self._on_device and (unusable := unusable_in(said)):
            return Ending("device_fault", "lost its device", "no device", unusable=unusable)
        fault = fault_in(said)
        if fault is not None:
            return Ending("device_fault", f"ended by {fault.name}", fault.name, fault.line)
        if code < 0:
            name = _signal_name(-code)
            return Ending("signal", f"ended by {name}{_HINTS.get(name, '')}", name)
        return Ending("exception", f"left with exit code {code}", f"exit {code}")

    def kill(self) -> None:
        """End the child and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.output.finish()
        self.channel.close()

    def leave(self) -> None:
        """Close the channel, which ends the child; kill it where that does not help."""
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PARTING_SECONDS)
        self.kill()


_HINTS = {"SIGKILL": " (from outside: the machine may be out of memory)"}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
