"""The parent's side: runs cases in a child, and turns its death into a finding."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from fuzzgraph import errors
from fuzzgraph.case import Case, digest, encode_case
from fuzzgraph.errors import FuzzGraphError, UsageError
from fuzzgraph.execution.verdict import Verdict
from fuzzgraph.finding import Finding, Symptom
from fuzzgraph.worker.messages import (
    Answer,
    Confirm,
    Confirmed,
    Failed,
    FromChild,
    Open,
    Ready,
    Refused,
    RunCase,
    ToChild,
)
from fuzzgraph.worker.process import Child
from fuzzgraph.worker.stages import read_stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["WorkerClient", "WorkerFailed", "open_client"]

_OPENING_SECONDS = 120.0
"""For the imports of an engine: 5 to 10 s alone on a core, more on a busy one."""
_CASE_SECONDS = 120.0
"""For one case; the slowest seen took 10 s."""


class WorkerFailed(FuzzGraphError):
    """The harness itself failed in the child, which says nothing about the engine."""


class _Died(Exception):
    """The child gave no answer."""

    def __init__(self, symptom: Symptom, how: str) -> None:
        super().__init__(how)
        self.symptom: Symptom = symptom
        self.how = how


class WorkerClient:
    """A target in a child process. The child starts with the first call, and again after a death.

    Args:
        opening: what the child opens.
        folder: for the case that is being run, the stage and the log; a temporary one if None.
        case_seconds: after that long without a verdict the child counts as hanging.
        python: interpreter of the child, which has FuzzGraph and the engine's companions.
    """

    def __init__(
        self,
        opening: Open,
        *,
        folder: Path | None = None,
        case_seconds: float = _CASE_SECONDS,
        opening_seconds: float = _OPENING_SECONDS,
        python: str = sys.executable,
    ) -> None:
        self._opening = opening
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="fuzzgraph-worker-"))
        self._case_seconds = case_seconds
        self._opening_seconds = opening_seconds
        self._python = python
        self._child: Child | None = None
        self.deaths = 0

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
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the child and open its target; does nothing where it runs.

        Raises:
            UsageError: the child refuses, e.g. the engine is not there. WorkerFailed: it died.
        """
        if self._child is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._child = Child(self.folder, python=self._python, device=self._opening.device)
        try:
            answer = self._ask(self._opening, self._opening_seconds)
        except _Died as death:
            raise WorkerFailed(
                f"the worker of target {self._opening.target!r} {death.how} while it opened. "
                f"{self._log_end()}"
            ) from None
        except BaseException:
            self._drop()
            raise
        assert isinstance(answer, Ready)

    def retarget(self, target: str) -> None:
        """Open another target of the same engine; its imports are kept where the child runs.

        Raises:
            UsageError, WorkerFailed: as `start`.
        """
        self._opening = msgspec.structs.replace(self._opening, target=target)
        if self._child is None:
            self.start()
            return
        try:
            answer = self._ask(self._opening, self._opening_seconds)
        except _Died:
            self.start()
            return
        assert isinstance(answer, Ready)

    def run_case(self, case: Case) -> Verdict:
        """The child's verdict; its death is a finding of the survival oracle.

        Raises:
            UsageError: the child refuses the case. WorkerFailed: the harness failed there.
        """
        self._save(case)
        self.start()
        try:
            answer = self._ask(RunCase(case=case), self._case_seconds)
        except _Died as death:
            return Verdict(case, self._opening.target, (self._finding(case, death),))
        assert isinstance(answer, Answer)
        return Verdict(
            case,
            self._opening.target,
            answer.findings,
            answer.steps,
            answer.padded_steps,
            skipped=answer.skipped,
            nondeterministic=answer.nondeterministic,
        )

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        """The finding with its rate in fresh sessions; a deadly one gets a fresh child each time.

        Raises:
            UsageError, WorkerFailed: as `run_case`.
        """
        if finding.detail.get("child") is not None:
            return self._confirm_by_restart(case, finding, times)
        self._save(case)
        self.start()
        try:
            message = Confirm(case=case, finding=finding, times=times)
            answer = self._ask(message, self._case_seconds * times)
        except _Died:
            return self._confirm_by_restart(case, finding, times)
        assert isinstance(answer, Confirmed)
        return answer.finding

    def _confirm_by_restart(self, case: Case, finding: Finding, times: int) -> Finding:
        seen = 0
        for _ in range(times):
            self._drop()
            seen += finding.key in {other.key for other in self.run_case(case).findings}
        return msgspec.structs.replace(finding, confirmed=f"{seen}/{times}")

    def close(self) -> None:
        """End the child; a temporary folder goes with it, unless a child died in it."""
        if self._child is not None:
            self._child.leave()
            self._child = None
        if self._own_folder and not self.deaths:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _save(self, case: Case) -> None:
        """The case on disk before anybody runs it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "running.json").write_bytes(encode_case(case))

    def _ask(self, message: ToChild, seconds: float) -> FromChild:
        """The child's answer.

        Raises:
            _Died: it gave none; the child is gone. UsageError, WorkerFailed: it says so.
        """
        child = self._child
        assert child is not None, "the child is started before it is asked"
        try:
            child.channel.send(message)
            answer = child.channel.receive(seconds)
        except TimeoutError:
            self._drop()
            raise _Died("hang", f"gave no answer in {seconds:g} s") from None
        except (EOFError, BrokenPipeError):
            symptom, how = child.ending()
            self._drop()
            raise _Died(cast("Symptom", symptom), how) from None
        except BaseException:  # an interrupt here would leave an answer for the wrong question
            self._drop()
            raise
        if isinstance(answer, Refused):
            raise _refusal(answer)
        if isinstance(answer, Failed):
            raise WorkerFailed(f"the worker failed: {answer.error}\n{answer.traceback}")
        return answer

    def _drop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _finding(self, case: Case, death: _Died) -> Finding:
        self.deaths += 1
        name = digest(case)
        kept = self.folder / f"died-{name[:12]}.json"
        kept.write_bytes(encode_case(case))
        stage, step = read_stage(self.folder / "stage")
        mode = case.steps[step].mode if 0 <= step < len(case.steps) else case.steps[0].mode
        return Finding(
            oracle="survival",
            clause="survives",
            target=self._opening.target,
            step=step,
            mode=mode,
            buffer="",
            symptom=death.symptom,
            stage=stage,
            message=f"the engine's process {death.how} at stage {stage!r} of step {step}",
            detail={"child": death.how, "case": str(kept), "log": str(self.folder / "worker.log")},
        )

    def _log_end(self) -> str:
        try:
            lines = (self.folder / "worker.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"Its last words: {lines[-1]}" if lines else "It said nothing."


def _refusal(answer: Refused) -> UsageError:
    """The error that the child raised, by its class where it is one of ours."""
    kind = getattr(errors, answer.kind, UsageError)
    if not (isinstance(kind, type) and issubclass(kind, UsageError)):
        kind = UsageError
    return kind(answer.message)


def open_client(
    target: str,
    *,
    paths: Sequence[Path] = (),
    graphs: Literal["recorder", "device"] = "recorder",
    strict_nan: bool = False,
    second_opinion: bool = False,
    device: str = "cpu",
    folder: Path | None = None,
    case_seconds: float = _CASE_SECONDS,
) -> WorkerClient:
    """A worker for `target`, started, with `paths` (an unpacked release) first on its `sys.path`.

    Raises:
        UsageError: unknown target; AdapterUnavailable: no engine.
    """
    found = tuple(str(path) for path in paths)
    opening = Open(
        target=target,
        paths=found,
        graphs=graphs,
        device=device,
        strict_nan=strict_nan,
        second_opinion=second_opinion,
    )
    client = WorkerClient(opening, folder=folder, case_seconds=case_seconds)
    try:
        client.start()
    except BaseException:
        client.close()
        raise
    return client
