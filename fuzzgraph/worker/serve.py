"""The child's side: opens the target once, then answers case after case until the parent leaves."""

from __future__ import annotations

import contextlib
import gc
import importlib
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import msgspec

from fuzzgraph.errors import CaptureError, FuzzGraphError, HarnessFailed
from fuzzgraph.finding import Finding
from fuzzgraph.process.device_faults import fault_in
from fuzzgraph.process.devices import require_usable
from fuzzgraph.run.environment import UNKNOWN, read_environment
from fuzzgraph.run.spec import Setup
from fuzzgraph.worker.bytecode import import_engine_from
from fuzzgraph.worker.messages import (
    Answer,
    AskServed,
    Channel,
    Confirm,
    Confirmed,
    Entered,
    ExportReply,
    ExportRequest,
    Failed,
    FromChild,
    Inspect,
    Inspected,
    Locate,
    Located,
    Open,
    Ready,
    Refused,
    Served,
    ToChild,
)
from fuzzgraph.worker.stages import Enter, StagedTarget
from fuzzgraph.worker.watched import Watched

if TYPE_CHECKING:
    from fuzzgraph.execution import Execution
    from fuzzgraph.ports import Target


def serve(descriptor: int) -> None:
    """Answer on the socket `descriptor` until it is closed."""
    channel: Channel[ToChild] = Channel(socket.socket(fileno=descriptor), ToChild)
    handler = RequestHandler(lambda stage, step: channel.send(Entered(stage=stage, step=step)))
    try:
        while True:
            channel.send(handler.answer(channel.receive()))
    except (EOFError, BrokenPipeError, ConnectionError):
        return  # the parent is done, or gone


class RequestHandler:
    """Takes one message after another; holds the opened target."""

    def __init__(self, enter: Enter) -> None:
        self._enter = enter
        self._execution: Execution | None = None
        self._setup = Setup()
        self._environment = UNKNOWN
        self._watched = Watched({})
        self._probe: Callable[[], None] = lambda: None

    def answer(self, message: ToChild) -> FromChild:
        """The answer, or why there is none; only a dead process gives none."""
        try:
            return self._handle(message)
        except FuzzGraphError as error:
            if isinstance(error, HarnessFailed):
                traceback.print_exc()  # to the log
            return Refused(kind=type(error).__name__, message=str(error))
        except Exception as error:  # ours: execution turns the engine's errors into findings
            said = f"{type(error).__name__}: {error}"
            return Failed(error=said, traceback="".join(traceback.format_exc()))

    def _handle(self, message: ToChild) -> FromChild:
        if isinstance(message, Open):
            self._watched = Watched(message.watched)
            with _without_collections():
                target = loaded_target(message, self._watched)
            from fuzzgraph.ports import engine_packages, probe_of

            self._probe = probe_of(target) or _device_probe(message.setup.device)
            self._execution = _executed(message, target, self._enter)
            self._setup = message.setup
            packages = engine_packages(target)
            self._environment = read_environment(packages, message.setup.device)
            return Ready(environment=self._environment, reached=self._watched.fresh())
        execution = self._execution
        assert execution is not None, "the parent opens before it asks"
        if isinstance(message, Inspect):
            from fuzzgraph.execution.inspection import inspect_target

            return Inspected(report=inspect_target(execution.target, message.cases, self._setup))
        if isinstance(message, ExportRequest):
            return _exported(execution.target, message)
        if isinstance(message, Locate):
            return self._located(execution.target, message)
        if isinstance(message, Confirm):
            found = execution.confirm(message.case, message.finding, message.times)
            return Confirmed(finding=found)
        if isinstance(message, AskServed):
            return Served(unserved=execution.unserved(message.config))
        verdict = execution.run_case(message.case)
        findings = tuple(map(_named_fault, verdict.findings))
        return Answer(
            device_lost=self._device_lost(findings),
            findings=findings,
            steps=verdict.steps,
            skipped=verdict.skipped,
            nondeterministic=verdict.nondeterministic,
            fallbacks=dict(verdict.fallbacks),
            unchecked=dict(verdict.unchecked),
            unguarded=dict(verdict.unguarded),
            late_copies=dict(verdict.late_copies),
            unrepeatable=verdict.unrepeatable,
            branches=verdict.branches,
            reached=self._watched.fresh(),
        )

    def _located(self, target: Target, message: Locate) -> Located:
        from fuzzgraph.repro import engine_lines

        below = self._environment.engine_below
        lines = engine_lines(message.case, message.finding, target, self._setup, below)
        return Located(lines=lines)

    def _device_lost(self, findings: tuple[Finding, ...]) -> bool:
        """Whether this process is of no more use: behind a fault every later call of the device
        fails, and behind a refused capture torch's memory pool is in a capture that never ended."""
        errors = [str(each.detail.get("error")) for each in findings if each.oracle == "survival"]
        if not errors:
            return False
        if self._setup.device != "cpu" and any(map(_is_refused_capture, errors)):
            return True
        try:
            self._probe()
        except Exception as error:
            print(f"the device does not answer: {error}", file=sys.stderr)
            return True
        return False


def _is_refused_capture(error: str) -> bool:
    return error.startswith(f"{CaptureError.__name__}:")


def _named_fault(finding: Finding) -> Finding:
    """An exception in which the driver reports a fault is a fault of the device."""
    if finding.oracle != "survival" or finding.symptom != "exception":
        return finding
    fault = fault_in(str(finding.detail.get("error", finding.message)))
    if fault is None:
        return finding
    detail = {**finding.detail, "device_error": fault.line}
    return msgspec.structs.replace(finding, symptom="device_fault", detail=detail)


def _device_probe(device: str) -> Callable[[], None]:
    """A call that fails once the context is lost; for the CPU, which has none, one that passes."""

    def probe() -> None:
        import torch

        torch.zeros(1, device=device).add_(1).item()

    return probe if device != "cpu" else lambda: None


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """An engine's imports make half a million objects that stay: collecting finds nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def loaded_target(message: Open, watched: Watched) -> Target:
    from fuzzgraph.ports import load_engine, use_device
    from fuzzgraph.targets import open_target

    setup = message.setup
    import_engine_from(message.paths, setup, watched)
    require_usable(setup.device)  # an engine that is imported without one says less clearly why
    target = _faulty(setup.fault) if setup.fault else open_target(setup.target)
    use_device(target, setup.device)
    load_engine(target)
    return target


def _faulty(fault: str) -> Target:
    """By name: the catalogue of faults lies on this floor and is none of the worker's business."""
    return cast("Target", importlib.import_module("fuzzgraph.faults").open_fault(fault))


def _exported(target: Target, message: ExportRequest) -> ExportReply:
    from fuzzgraph.repro import NotStandalone, standalone_script

    try:
        script = standalone_script(message.case, message.finding, target, message.device)
        return ExportReply(script=script)
    except NotStandalone as error:
        return ExportReply(reason=str(error))


def _executed(message: Open, target: Target, enter: Enter) -> Execution:
    from fuzzgraph.execution import Execution
    from fuzzgraph.execution.branches import TracedExecution

    staged = StagedTarget(target, enter)
    kind = TracedExecution if message.branches else Execution
    return kind(staged, message.setup)
