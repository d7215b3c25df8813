"""Turns an exception that comes out of a target into a finding, or into the end of the run.

Every exception out of a target's code passes `Border.judge`, `SystemExit` and the like included.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fuzzgraph.errors import (
    EngineError,
    FuzzGraphError,
    HarnessFailed,
    KernelNotCompiled,
    TargetFailed,
)
from fuzzgraph.execution.blame import Blame, frame_of, frames_of
from fuzzgraph.execution.undersized import undersized_buffer
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.observation import RunFailure, RunKind
from fuzzgraph.ports import Session, Target, defining_modules
from fuzzgraph.process.device_faults import fault_in
from fuzzgraph.process.interrupts import signal_may_have_raised


class SessionFailed(Exception):
    """The engine raised; carries what the survival oracle reports."""

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class Border:
    """Judges the exceptions of one target and, once it is open, of its session.

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
        """Raise the error that this exception stands for; return if it must go on unchanged.

        Raises:
            SessionFailed: the engine failed, which is a finding.
            KernelNotCompiled: the compiler of a device refused a kernel, which is none.
            TargetFailed, HarnessFailed: the target or FuzzGraph failed, which is not.
        """
        if _passes_unchanged(error):
            return
        if _is_refused_by_a_compiler(error):
            raise KernelNotCompiled(
                f"a kernel of the engine does not compile for this device: {printable_error(error)}"
            ) from error
        side = "engine" if _is_a_kernels(error, stage) else self._blame.side(error)
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
            f"{said}. This is FuzzGraph's own code, so it says nothing about the engine. Please "
            "report it with the traceback, the case and the versions from 'fuzzgraph doctor'."
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
            f"target {self._target.name!r}: {said}. This is the target's own code, so it says "
            "nothing about the engine. Fix it there, then run 'fuzzgraph check-target'. If "
            f"{modules} holds the engine itself, name that module in the target's engine_packages."
        )

    def _where(self, error: BaseException, side: str) -> str:
        """The innermost line of that side's code; the innermost line at all if it has none."""
        frames = frames_of(error)
        found = [frame for frame in frames if self._blame.side_of(frame) == side]
        return _printable(str((found or frames)[-1])) if frames else "?"


def _passes_unchanged(error: BaseException) -> bool:
    """Whether no code is at fault: a wrong call, a person's Ctrl-C, a test's time limit."""
    if isinstance(error, FuzzGraphError):
        return not isinstance(error, EngineError)
    if isinstance(error, KeyboardInterrupt):
        return signal_may_have_raised()
    # pytest-timeout raises this type in whatever code is running. Compared by name, so that pytest
    # need not be installed.
    kind = type(error)
    return (kind.__module__, kind.__name__) == ("_pytest.outcomes", "Failed")


def _is_a_kernels(error: BaseException, stage: str) -> bool:
    """Whether a device tells of a kernel that failed on it, which it does at whatever call comes
    next. What it was given before a run is waited for, and so is the run before it is looked at."""
    told = isinstance(error, RuntimeError) and fault_in(str(error)) is not None
    return told and stage != "check"


def _is_refused_by_a_compiler(error: BaseException) -> bool:
    """Whether Triton's compiler refuses a kernel: nothing has run, so nothing was replayed."""
    # By name, so that Triton need not be there; the interpreter raises none of these.
    kind = type(error)
    refusal = kind.__name__ in ("CompilationError", "OutOfResources", "PTXASError")
    return refusal and kind.__module__.partition(".")[0] == "triton"


def printable_error(error: BaseException) -> str:
    """Type and message of an error, in one line that every file and terminal can show."""
    return _printable(f"{type(error).__name__}: {_message(error)}")


def _message(error: BaseException) -> str:
    """Its message in one line of at most 300 characters."""
    try:
        return " ".join(str(error).split())[:300]
    except BaseException as inner:  # `__str__` is the engine's code and may raise anything
        return f"(no message: its __str__ raised {type(inner).__name__})"


def _printable(text: str) -> str:
    """The text with lone surrogates and control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
