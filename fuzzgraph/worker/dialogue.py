"""One question to a child at a time: what it answers, or why it does not, within its limits."""

from __future__ import annotations

import math
import time
from typing import Literal, TypeVar

from fuzzgraph import errors
from fuzzgraph.errors import FuzzGraphError, OutOfTime, UsageError
from fuzzgraph.worker.deaths import garbage
from fuzzgraph.worker.limits import Limits, Watch
from fuzzgraph.worker.messages import Failed, FromChild, Garbage, Refused, ToChild
from fuzzgraph.worker.nursery import Nursery
from fuzzgraph.worker.process import Child, Ending

__all__ = ["Dialogue", "WorkerFailed"]

Told = TypeVar("Told", bound=FromChild)


class WorkerFailed(FuzzGraphError):
    """The harness itself failed in the child, which says nothing about the engine."""


class Dialogue:
    """Asks whichever child the nursery has; one that gives no good answer is ended."""

    def __init__(self, nursery: Nursery, limits: Limits) -> None:
        self._nursery = nursery
        self._limits = limits
        self.last_moment = math.inf
        """By `time.monotonic`: whatever is still asked then is cut off with `OutOfTime`."""

    def ask(self, message: ToChild, wanted: type[Told], seconds: float) -> Told:
        """The child's answer, which is of the type that is wanted.

        Raises:
            Ending: it gave none; the child is gone. UsageError, WorkerFailed: it says so.
        """
        child = self._nursery.child
        assert child is not None, "the child is started before it is asked"
        try:
            answer = self._answer(child, message, seconds)
        except BaseException:  # also an interrupt: it would leave an answer for the wrong question
            self._nursery.drop()
            raise
        if isinstance(answer, Refused):
            raise _refusal(answer)
        if isinstance(answer, Failed):
            raise WorkerFailed(f"the worker failed: {answer.error}\n{answer.traceback}")
        if isinstance(answer, wanted) and not child.channel.unasked():
            return answer
        self._nursery.drop()
        raise garbage(f"{type(answer).__name__} where {wanted.__name__} was asked for")

    def _answer(self, child: Child, message: ToChild, seconds: float) -> FromChild:
        """Whatever the child says; Ending where it says nothing that can be understood."""
        watch = Watch(self._limits, child.pid, child.stage_path, seconds)
        child.output.begin_case()

        def look() -> None:
            if time.monotonic() > self.last_moment:
                raise OutOfTime(
                    f"target {self._nursery.opening.setup.target!r} was cut off: the time is up"
                )
            excess = watch.excess()
            if excess is not None:
                symptom: Literal["hang", "signal"] = "hang" if excess.kind == "hang" else "signal"
                raise Ending(symptom, f"{excess.words} and was ended", excess.kind)

        try:
            if not (child.told and message is self._nursery.opening):
                if child.channel.unasked():
                    raise Garbage("something came that was not asked for")
                child.channel.send(message)
            child.told = False
            return child.channel.receive(look)
        except Garbage as error:
            raise garbage(str(error)) from None
        except (EOFError, BrokenPipeError, ConnectionError):
            raise child.ending() from None


def _refusal(answer: Refused) -> FuzzGraphError:
    """The error that the child raised, by its class where it is one of ours."""
    kind = getattr(errors, answer.kind, UsageError)
    if not (isinstance(kind, type) and issubclass(kind, FuzzGraphError)):
        kind = UsageError
    error: FuzzGraphError = kind(answer.message)
    return error
