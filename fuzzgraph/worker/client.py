"""The parent's side: runs cases in a child, and turns its death into a finding."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fuzzgraph.case import Case, EngineConfig, encode_case
from fuzzgraph.errors import DeviceUnavailable, FuzzGraphError, OutOfTime
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import EngineLine, Finding
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.run.environment import UNKNOWN
from fuzzgraph.run.spec import Device, Setup
from fuzzgraph.target_report import TargetReport
from fuzzgraph.worker.crash_findings import crash_finding
from fuzzgraph.worker.limits import Limits
from fuzzgraph.worker.messages import (
    Answer,
    AskServed,
    Confirm,
    Confirmed,
    ExportReply,
    ExportRequest,
    Inspect,
    Inspected,
    Locate,
    Located,
    Open,
    Ready,
    RunCase,
    Served,
)
from fuzzgraph.worker.pool import ChildPool
from fuzzgraph.worker.process import Ending
from fuzzgraph.worker.request import RequestSender, WorkerFailed
from fuzzgraph.worker.watched import Statements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["WorkerClient", "WorkerFailed", "open_client"]

_RESTARTS = 5
"""Starts in a row that may fail after a death: a device takes a moment to come back."""
_FIRST_PAUSE = 0.2
"""Seconds before the second of these; each further pause is twice as long."""

_TRIES = 4
"""Of a case whose child is killed from outside: after the last one the case is blamed."""


class WorkerClient:
    """A target in a child process. The child starts with the first call, and again after a death.

    Args:
        opening: what the child opens.
        folder: for the case that is being run and the log; a temporary one if None.
        limits: when the child counts as hanging, and how much memory it may take.
        pause: waits between two starts that fail.
    """

    def __init__(
        self,
        opening: Open,
        *,
        folder: Path | None = None,
        limits: Limits | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fuzzgraph-worker-"))
        self._limits = limits or Limits.on(opening.setup.device)
        self._pause = pause
        self._pool = ChildPool(self.folder, opening)
        self._sender = RequestSender(self._pool, self._limits)
        self._unserved: dict[EngineConfig, str] = {}
        self._was_ready = False
        self.environment = UNKNOWN
        """Of the child, as it says when its target is open."""
        self.reached: dict[str, set[int]] = {}
        """File -> first lines of the watched statements that were executed so far."""
        self.deaths = 0
        self.killed = 0
        """Children that somebody killed: a person, or a machine out of memory."""
        self.restarts = 0
        """Children that were ended because their device's context was lost."""

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the running child; None where there is none."""
        child = self._pool.child
        return child.pid if child else None

    @property
    def _target(self) -> str:
        return self._pool.opening.setup.target

    def cut_off(self, moment: float) -> None:
        """Whatever is still asked of a child at this moment, by `time.monotonic`, is cut off there:
        the child is ended and `OutOfTime` raised."""
        self._sender.last_moment = moment

    def start(self) -> None:
        """Start the child and open its target; does nothing where it runs.

        After a death a start that fails is tried again, later and later.

        Raises:
            UsageError: the child refuses, e.g. the engine is not there. WorkerFailed: it died.
        """
        if self._pool.child is not None:
            return
        tries = _RESTARTS if self._was_ready else 1
        for number in range(tries):
            if number:
                self._pause(_FIRST_PAUSE * 2 ** (number - 1))
            failure = self._start_once()
            if failure is None:
                self._was_ready = True
                return
        if isinstance(failure, DeviceUnavailable):
            raise failure
        assert failure is not None
        often = f" {tries} times in a row" if tries > 1 else ""
        raise WorkerFailed(
            f"the worker of target {self._target!r} {failure.how} while it opened{often}. "
            f"{self._log_end()}"
        ) from None

    def _start_once(self) -> Ending | DeviceUnavailable | None:
        """None once the target is open, else how the child ended, or why it has no device."""
        self._pool.start()
        try:
            ready = self._sender.ask(self._pool.opening, Ready, self._limits.opening_seconds)
            self.environment = ready.environment
            self._note(ready.reached)
        except Ending as ending:
            self._count(ending)
            return ending
        except DeviceUnavailable as unavailable:
            self._pool.kill()
            return unavailable
        except BaseException:
            self._pool.kill()
            raise
        if self.deaths or self.killed or self.restarts:
            self._pool.prestart()
        return None

    def retarget(self, target: str) -> None:
        """Open another target of the same engine; its imports are kept where the child runs.

        Raises:
            UsageError, WorkerFailed: as `start`.
        """
        self._pool.retarget(target)
        self._unserved.clear()
        if self._pool.child is None:
            self.start()
            return
        try:
            self._sender.ask(self._pool.opening, Ready, self._limits.opening_seconds)
        except Ending:
            self.start()

    def run_case(self, case: Case) -> Verdict:
        """The child's verdict; its death is a finding of the survival oracle.

        Raises:
            UsageError: the child refuses the case. WorkerFailed: the harness failed there.
            DeviceUnavailable: the device is lost and does not come back, which says nothing of the
                engine. OutOfTime: it was cut off.
        """
        try:
            answer = self._run_unless_killed(case)
        except Ending as ending:
            self.deaths += 1
            target = self._target
            entered = self._pool.last_entered
            found = crash_finding(self.folder, entered, target, case, ending)
            self._require_its_device(f"the engine's process {ending.how}")
            return Verdict(case, self._target, (found,))
        self._note(answer.reached)
        if answer.device_lost:
            self.restarts += 1
            self._pool.kill()
            self._require_its_device("its context was lost")
        return Verdict(
            case,
            self._target,
            answer.findings,
            answer.steps,
            skipped=answer.skipped,
            nondeterministic=answer.nondeterministic,
            fallbacks=answer.fallbacks,
            unchecked=answer.unchecked,
            unguarded=answer.unguarded,
            late_copies=answer.late_copies,
            unrepeatable=answer.unrepeatable,
            branches=answer.branches,
        )

    def _require_its_device(self, how: str) -> None:
        """The next child opens the device, or what the last one met was no fault of an engine's.

        Raises:
            DeviceUnavailable: the device does not come back.
        """
        if self._pool.opening.setup.device == "cpu":
            return
        try:
            self.start()
        except DeviceUnavailable as error:
            raise DeviceUnavailable(
                f"the device does not come back after a case in which {how}, so that this says "
                f"nothing about the engine: {error}"
            ) from None

    def _note(self, reached: Statements) -> None:
        for path, lines in reached.items():
            self.reached.setdefault(path, set()).update(lines)

    def _run_unless_killed(self, case: Case) -> Answer:
        """The answer. A case whose child is killed from outside, or loses a device that failed by
        itself, is tried again, later and later: it may be innocent.

        Raises:
            Ending: the child died of the case. DeviceUnavailable: its device failed each time.
        """
        for number in range(_TRIES):
            self._save(case)
            self.start()
            try:
                return self._sender.ask(RunCase(case=case), Answer, self._limits.case_seconds)
            except Ending as ending:
                if number == _TRIES - 1 and ending.unusable:
                    raise _lost_device(ending) from None
                if number == _TRIES - 1 or not ending.innocent:
                    raise
                self._count(ending)
            except DeviceUnavailable:
                self.restarts += 1
                self._pool.kill()
                if number == _TRIES - 1:
                    raise
            self._pause(_FIRST_PAUSE * 2**number)
        raise AssertionError("the last try returns or raises")

    def _count(self, ending: Ending) -> None:
        """Enter a child that was killed from outside, whatever it was asked."""
        self.killed += ending.kind == "SIGKILL"
        self.restarts += bool(ending.unusable)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        """The finding with its rate in fresh sessions; a deadly one gets a fresh child each time.

        Raises:
            UsageError, WorkerFailed: as `run_case`.
        """
        if finding.detail.get("child") is not None or finding.symptom == "device_fault":
            return self._confirm_by_restart(case, finding, times)
        self._save(case)
        self.start()
        try:
            message = Confirm(case=case, finding=finding, times=times)
            return self._sender.ask(message, Confirmed, self._limits.case_seconds * times).finding
        except Ending as ending:
            self._count(ending)
            return self._confirm_by_restart(case, finding, times)

    def unserved(self, config: EngineConfig) -> str:
        """Why no server of the engine has this config; '' where one may.

        Raises:
            TargetFailed, WorkerFailed: the target cannot say.
        """
        if config not in self._unserved:
            self._unserved[config] = self._ask_served(config)
        return self._unserved[config]

    def _ask_served(self, config: EngineConfig) -> str:
        for _ in range(_TRIES):
            self.start()
            try:
                message = AskServed(config=config)
                return self._sender.ask(message, Served, self._limits.case_seconds).unserved
            except Ending as ending:
                self._count(ending)
        raise WorkerFailed(
            f"target {self._target!r}: its process ended {_TRIES} times as it was asked whether a "
            f"server has a config. {self._log_end()}"
        )

    def inspect(self, cases: Sequence[Case]) -> TargetReport:
        """What the target shows on healthy cases, each run twice.

        Raises:
            UsageError, TargetFailed, WorkerFailed: as `run_case`.
        """
        self.start()
        message = Inspect(cases=tuple(cases))
        seconds = 2 * len(cases) * self._limits.case_seconds
        try:
            return self._sender.ask(message, Inspected, seconds).report
        except Ending as ending:
            return TargetReport(target=self._target, ended=ending.how)

    def standalone_script(self, case: Case, finding: Finding, device: Device = "cpu") -> str:
        """A script of the engine's recorded operations that shows the finding with torch alone.

        Args:
            device: where the script is to run; operations are recorded on a CPU in any case.

        Recording a case and printing it takes about as long as running it, and has its limit.

        Raises:
            NotStandalone: there is none; says why. OutOfTime: the client was cut off.
        """
        self._save(case)
        self.start()
        try:
            message = ExportRequest(case=case, finding=finding, device=device)
            answer = self._sender.ask(message, ExportReply, self._limits.case_seconds)
        except Ending as ending:
            self._count(ending)
            raise NotStandalone(
                f"the engine's process {ending.how} while it was recorded"
            ) from None
        except WorkerFailed as error:
            said = str(error).partition("\n")[0]
            raise NotStandalone(f"its operations could not be recorded: {said}") from None
        if answer.reason:
            raise NotStandalone(answer.reason)
        return answer.script

    def engine_lines(self, case: Case, finding: Finding) -> tuple[EngineLine, ...]:
        """The engine's lines that a finding is about; none for one that ends its process.

        Raises:
            OutOfTime: the client was cut off.
        """
        if finding.detail.get("child") is not None or finding.symptom == "device_fault":
            return ()
        self._save(case)
        self.start()
        message = Locate(case=case, finding=finding)
        try:
            return self._sender.ask(message, Located, 3 * self._limits.case_seconds).lines
        except Ending as ending:
            self._count(ending)
        except OutOfTime:
            raise
        except FuzzGraphError as error:  # of no report is this the end
            print(f"no line of the engine: {error}", file=sys.stderr)
        return ()

    def _confirm_by_restart(self, case: Case, finding: Finding, times: int) -> Finding:
        seen = 0
        for _ in range(times):
            self._pool.kill()
            seen += finding.key in {other.key for other in self.run_case(case).findings}
        why = self.unserved(case.config)
        return msgspec.structs.replace(finding, confirmed=f"{seen}/{times}", unserved=why)

    def close(self) -> None:
        """End the child; a temporary folder goes with it, unless a child died in it."""
        self._pool.close()
        if self._own_folder and not self.deaths:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _save(self, case: Case) -> None:
        """The case on disk before anybody runs it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "running.json").write_bytes(encode_case(case))

    def _log_end(self) -> str:
        try:
            lines = (self.folder / "worker.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"Its last words: {lines[-1]}" if lines else "It said nothing."


def _lost_device(ending: Ending) -> DeviceUnavailable:
    return DeviceUnavailable(
        f"the device failed by itself {_TRIES} times in one case: {ending.unusable}. This says "
        "nothing about the engine. Look after the device, then go on with 'fuzzgraph resume'."
    )


def open_client(
    setup: Setup,
    *,
    paths: Sequence[Path] = (),
    branches: bool = False,
    watched: Statements | None = None,
    folder: Path | None = None,
    limits: Limits | None = None,
) -> WorkerClient:
    """A worker for a setup, started, with `paths` (an unpacked release) first on its `sys.path`.

    Args:
        branches: whether verdicts name the engine's branches that a case took.
        watched: statements below `paths`; the worker tells which of them were executed.

    Raises:
        UsageError: unknown target; AdapterUnavailable: no engine.
    """
    opening = Open(
        setup=setup, paths=tuple(map(str, paths)), branches=branches, watched=dict(watched or {})
    )
    client = WorkerClient(opening, folder=folder, limits=limits)
    try:
        client.start()
    except BaseException:
        client.close()
        raise
    return client
