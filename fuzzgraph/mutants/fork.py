"""Runs a function in a fork of this process, within the limits that a campaign's worker has."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

import msgspec

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.finding import Stage
from fuzzgraph.mutants.messages import FromChild, Refused
from fuzzgraph.worker.limits import Limits, Watch
from fuzzgraph.worker.messages import Channel, Entered, InvalidMessage
from fuzzgraph.worker.stages import Enter

Work = Callable[[Enter], "FromChild"]

SECONDS_IN_ALL = 600.0
"""For one child, which counts processor seconds itself."""


class Ended(Exception):
    """A child gave no answer; says how it ended and where."""

    def __init__(self, how: str, kind: str, stage: Stage, *, started: bool) -> None:
        super().__init__(how)
        self.how, self.kind, self.stage, self.started = how, kind, stage, started


class Fork:
    """One child at work."""

    def __init__(self, work: Work, log: int) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _be_child(work, theirs, log)
        theirs.close()
        self._socket = ours
        self._channel: Channel[FromChild] = Channel(ours, FromChild)
        self._watch = Watch(Limits(), self.pid, SECONDS_IN_ALL)
        self._entered = Entered()
        self._started = False
        """Whether it has come to the first step of a case."""

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def exceeded(self) -> Ended | None:
        """How it is ended now, since it is beyond a limit; None while it may go on."""
        limit = self._watch.exceeded()
        if limit is None:
            return None
        self._kill()
        return self._ended(limit.words, limit.kind)

    def take(self) -> FromChild | None:
        """What it says, once something can be read; None for a stage that it enters.

        Raises:
            Ended: it died, or said what is no message.
        """
        try:
            message = self._channel.receive()
        except EOFError:
            raise self._ended(*self._death()) from None
        except InvalidMessage as error:
            self._kill()
            raise self._ended(f"sent an invalid reply ({error})", "garbage") from None
        if isinstance(message, Entered):
            self._entered = message
            self._started |= message.step >= 0
            self._watch.enter(message)
            return None
        self._kill()  # it has said what it had to say
        return message

    def has_more(self) -> bool:
        """Whether another message is here already."""
        return self._channel.unasked()

    def answer(self) -> FromChild:
        """Its answer, waited for.

        Raises:
            Ended: it died, or exceeded a limit.
        """
        while True:
            while not self._channel.ready(0.1) and not self.has_more():
                ended = self.exceeded()
                if ended is not None:
                    raise ended
            message = self.take()
            if message is not None:
                return message

    def _death(self) -> tuple[str, str]:
        _, status = os.waitpid(self.pid, 0)
        self._channel.close()
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return f"the engine's process ended by {name}", name
        return f"the engine's process left with exit code {os.WEXITSTATUS(status)}", "exit"

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._channel.close()

    def stop(self) -> None:
        """End it, whatever it does."""
        self._kill()

    def _ended(self, how: str, kind: str) -> Ended:
        return Ended(how, kind, self._entered.stage, started=self._started)


def _be_child(work: Work, end: socket.socket, log: int) -> None:
    """The child's whole life; never returns into the parent's code."""
    code = 1
    try:
        os.setsid()  # a kill then takes what the engine started as well
        os.dup2(log, 1)
        os.dup2(log, 2)
        channel: Channel[object] = Channel(end, object)
        channel.send(_answer(work, channel))
        code = 0
    finally:
        os._exit(code)


def _answer(work: Work, channel: Channel[object]) -> msgspec.Struct:
    """What the work gives; an error of our own is told, so that it is not taken for a death."""
    try:
        return work(lambda stage, step: channel.send(Entered(stage=stage, step=step)))
    except FuzzGraphError as error:
        return Refused(kind=type(error).__name__, message=str(error))
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        return Refused(kind="HarnessFailed", message=f"{type(error).__name__}: {error}")
