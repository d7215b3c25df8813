"""What becomes of an exception that comes out of a target: a finding, or the end of the run.

The border between harness and target is crossed in one way, `Border.judge`. It takes every way out
of an engine's code, `SystemExit` and its like included.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fuzzgraph.errors import EngineError, FuzzGraphError, HarnessFailed, TargetFailed
from fuzzgraph.execution.blame import Blame, frame_of, frames_of
from fuzzgraph.execution.undersized import undersized_buffer
from fuzzgraph.interrupts import signal_may_have_raised
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.observation import RunFailure, RunKind
from fuzzgraph.ports import Session, Target, defining_modules

__all__ = ["Border", "SessionFailed", "printable_error"]


class SessionFailed(Exception):
    """The engine raised; carries what the survival oracle reports."""

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class Border:
    """Judges what comes out of one target, and of its session once there is one.

    Args:
        session: None while the target opens it.
        memory: what the target allocates in, which knows the line of each allocation.
    """

    def __init__(
        self,
        target: Target,
        session: Session | None = None,
        memory: GuardedMemory | None = None,
    ) -> None:
        self._target = target
        self._memory = memory
        self._blame = Blame(target, session)

    def judge(self, error: BaseException, stage: str, run: RunKind = "replay") -> None:
        """Raise what the exception amounts to; return where it has to go on as it is.

        Raises:
            SessionFailed: the engine's; it is a finding. TargetFailed, HarnessFailed: it is not.
        """
        if _goes_on(error):
            return
        side = self._blame.side(error)
        if side == "engine":
            where = self._where(error, "engine")
            small, line = self._too_small(error)
            text = printable_error(error)
            failure = RunFailure(run, stage, "exception", text, where, small, line)
            raise SessionFailed(failure) from error
        said = f"{stage} raised {printable_error(error)} at {self._where(error, side)}"
        if side == "target":
            raise TargetFailed(self._target_failed(said)) from error
        raise HarnessFailed(
            f"{said}. This is FuzzGraph's own code, so nothing is said about the engine. Please "
            "report it with the traceback, the case and the versions that 'fuzzgraph doctor' names."
        ) from error

    @contextmanager
    def crossing(self, stage: str, run: RunKind = "replay") -> Iterator[None]:
        """Judge whatever is raised inside.

        Raises:
            SessionFailed, TargetFailed, HarnessFailed: as `judge`.
        """
        try:
            yield
        except BaseException as error:
            self.judge(error, stage, run)
            raise

    def _too_small(self, error: BaseException) -> tuple[str, str]:
        """The buffer that an index error is about and the line that allocated it; '' if unknown."""
        steps = [
            (frame, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if self._blame.side_of(frame_of(frame, line)) == "engine"
        ]
        found = undersized_buffer(_message(error), *steps[-1]) if steps else None
        if found is None:
            return "", ""
        name, tensor = found
        region = self._memory.region_of(tensor) if self._memory is not None else None
        return name, region.allocated_at if region is not None else ""

    def _target_failed(self, said: str) -> str:
        modules = " or ".join(sorted({*defining_modules(self._target)}))
        return (
            f"target {self._target.name!r}: {said}. This is the target's own code, so nothing is "
            "said about the engine. Mend it there, then check it with 'fuzzgraph check-target'. "
            f"Where the engine itself lies in {modules}, name that module in the target's "
            "engine_packages."
        )

    def _where(self, error: BaseException, side: str) -> str:
        """The innermost line on that side; of no side's where it has none there."""
        frames = frames_of(error)
        found = [frame for frame in frames if self._blame.side_of(frame) == side]
        return _printable(str((found or frames)[-1])) if frames else "?"


def _goes_on(error: BaseException) -> bool:
    """Whether it is nobody's fault: a wrong call, a person's Ctrl-C, a test's time limit."""
    if isinstance(error, FuzzGraphError):
        return not isinstance(error, EngineError)
    if isinstance(error, KeyboardInterrupt):
        return signal_may_have_raised()
    kind = type(error)  # what pytest-timeout raises in whatever code runs
    return (kind.__module__, kind.__name__) == ("_pytest.outcomes", "Failed")


def printable_error(error: BaseException) -> str:
    """Type and message of an error, in one line that any file and terminal takes."""
    return _printable(f"{type(error).__name__}: {_message(error)}")


def _message(error: BaseException) -> str:
    """Its message in one line of 300 characters; the engine's own `__str__` may raise as well."""
    try:
        return " ".join(str(error).split())[:300]
    except BaseException as unspeakable:
        return f"(no message: its __str__ raised {type(unspeakable).__name__})"


def _printable(text: str) -> str:
    """Text that any file and terminal takes: lone surrogates and control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
