"""One request to a child at a time: its answer within its limits, or why there is none."""

from __future__ import annotations

import math
import time
from typing import Literal, TypeVar

from fuzzgraph import errors
from fuzzgraph.errors import FuzzGraphError, OutOfTime, UsageError
from fuzzgraph.worker.crash_findings import invalid_response
from fuzzgraph.worker.limits import Limits, Watch
from fuzzgraph.worker.messages import Entered, Failed, FromChild, InvalidMessage, Refused, ToChild
from fuzzgraph.worker.pool import ChildPool
from fuzzgraph.worker.process import Child, Ending

Reply = TypeVar("Reply", bound=FromChild)


class WorkerFailed(FuzzGraphError):
    """The harness itself failed in the child, which says nothing about the engine."""


class RequestSender:
    """Sends requests to the active child; one that gives no valid answer is killed."""

    def __init__(self, pool: ChildPool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self.last_moment = math.inf
        """By `time.monotonic`: whatever is still asked then is cut off with `OutOfTime`."""

    @property
    def _target(self) -> str:
        return self._pool.opening.setup.target

    def ask(self, message: ToChild, wanted: type[Reply], seconds: float) -> Reply:
        """The child's answer, which is of the type that is wanted.

        Raises:
            Ending: it gave none; the child is gone. UsageError, WorkerFailed: it says so.
        """
        child = self._pool.child
        assert child is not None, "the child is started before it is asked"
        try:
            answer = self._answer(child, message, seconds)
        except BaseException:  # also an interrupt: it would leave an answer for the wrong question
            self._pool.kill()
            raise
        if isinstance(answer, Refused):
            raise refusal(answer)
        if isinstance(answer, Failed):
            raise WorkerFailed(f"the worker failed: {answer.error}\n{answer.traceback}")
        if isinstance(answer, wanted) and not child.channel.unasked():
            return answer
        self._pool.kill()
        raise invalid_response(f"{type(answer).__name__} where {wanted.__name__} was asked for")

    def _answer(self, child: Child, message: ToChild, seconds: float) -> FromChild:
        """Whatever the child says; Ending where it says nothing that can be understood."""
        watch = Watch(self._limits, child.pid, seconds)
        child.output.begin_case()

        def look() -> None:
            if time.monotonic() > self.last_moment:
                raise OutOfTime(f"target {self._target!r} was cut off: the time is up")
            over = watch.exceeded()
            if over is not None:
                symptom: Literal["hang", "signal"] = "hang" if over.kind == "hang" else "signal"
                raise Ending(symptom, f"{over.words} and was killed", over.kind)

        try:
            if not (child.opening and message is self._pool.opening):
                if child.channel.unasked():
                    raise InvalidMessage("something came that was not asked for")
                child.channel.send(message)
            child.opening = False
            while isinstance(answer := child.channel.receive(look), Entered):
                child.entered = answer
                watch.enter(answer)
            return answer
        except InvalidMessage as error:
            raise invalid_response(str(error)) from None
        except (EOFError, BrokenPipeError, ConnectionError):
            raise child.ending() from None


def refusal(answer: Refused) -> FuzzGraphError:
    """The error that the child raised, by its class where it is one of ours."""
    kind = getattr(errors, answer.kind, UsageError)
    if not (isinstance(kind, type) and issubclass(kind, FuzzGraphError)):
        kind = UsageError
    error: FuzzGraphError = kind(answer.message)
    return error
