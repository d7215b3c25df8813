"""The child's side: opens the target once, then answers case after case until the parent leaves."""

from __future__ import annotations

import importlib
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fuzzgraph.errors import UsageError
from fuzzgraph.worker.messages import (
    Answer,
    Channel,
    Confirm,
    Confirmed,
    Failed,
    FromChild,
    Open,
    Ready,
    Refused,
    ToChild,
)
from fuzzgraph.worker.stages import StagedTarget, StageFile

if TYPE_CHECKING:
    from fuzzgraph.execution import Execution
    from fuzzgraph.ports import Target

__all__ = ["serve"]


def serve(descriptor: int, stage_path: Path) -> None:
    """Answer on the socket `descriptor` until it is closed."""
    channel: Channel[ToChild] = Channel(socket.socket(fileno=descriptor), ToChild)
    desk = _Desk(StageFile(stage_path))
    try:
        while True:
            channel.send(desk.answer(channel.receive()))
    except (EOFError, BrokenPipeError):
        return  # the parent is done, or gone


class _Desk:
    """Takes one message after another; holds the opened target."""

    def __init__(self, stages: StageFile) -> None:
        self._stages = stages
        self._execution: Execution | None = None

    def answer(self, message: ToChild) -> FromChild:
        """The answer, or why there is none; only a dead process gives none."""
        try:
            return self._handle(message)
        except UsageError as error:
            return Refused(kind=type(error).__name__, message=str(error))
        except Exception as error:  # ours: execution turns the engine's errors into findings
            said = f"{type(error).__name__}: {error}"
            return Failed(error=said, traceback="".join(traceback.format_exc()))

    def _handle(self, message: ToChild) -> FromChild:
        if isinstance(message, Open):
            self._execution = _open(message, self._stages)
            return Ready()
        execution = self._execution
        assert execution is not None, "the parent opens before it asks"
        if isinstance(message, Confirm):
            found = execution.confirm(message.case, message.finding, message.times)
            return Confirmed(finding=found)
        verdict = execution.run_case(message.case)
        return Answer(
            findings=verdict.findings,
            steps=verdict.steps,
            padded_steps=verdict.padded_steps,
            skipped=verdict.skipped,
            nondeterministic=verdict.nondeterministic,
        )


def _open(message: Open, stages: StageFile) -> Execution:
    sys.path[:0] = message.paths
    from fuzzgraph.execution import Execution

    target = _target(message.target)
    load = getattr(target, "load", None)
    if load is not None:
        load()  # an engine's imports take seconds: before the first case's deadline runs
    staged = StagedTarget(target, stages)
    return Execution(
        staged,
        graphs=message.graphs,
        device=message.device,
        strict_nan=message.strict_nan,
        second_opinion=message.second_opinion,
    )


def _target(name: str) -> Target:
    module, colon, factory = name.partition(":")
    if not colon:
        from fuzzgraph.targets import open_target

        return open_target(name)
    try:
        return cast("Target", getattr(importlib.import_module(module), factory)())
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"target={name!r} cannot be opened ({error}). Write module:factory of a target, both "
            "importable here, or use a known name (see 'fuzzgraph targets')."
        ) from None
