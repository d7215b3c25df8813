"""Runs a case under the tool, in a process of its own, and reads what it reports."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.accesses import KernelError, SanitizerTool
from fuzzgraph.case import Case
from fuzzgraph.errors import UNREADABLE, FuzzGraphError, OutOfTime
from fuzzgraph.process.interpreter import engine_environment, module_command
from fuzzgraph.run.spec import Setup
from fuzzgraph.strict_json import decode_json
from fuzzgraph.worker.messages import Failed, Open, Refused
from fuzzgraph.worker.output import Output
from fuzzgraph.worker.request import refusal
from fuzzgraph.worker.sanitizer.one_case import ANSWER, REQUEST, OneCase, Outcome, Ran
from fuzzgraph.worker.sanitizer.placing import Placed, placed
from fuzzgraph.worker.sanitizer.report import MOST_BYTES, Report, read_report, together
from fuzzgraph.worker.sanitizer.tool import require_tool, tool_command

_SECONDS = 1800
"""For one case: a kernel takes ten to a hundred times as long, an engine's imports as long as
ever."""
_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class SanitizerFailed(FuzzGraphError):
    """The tool gave no report that can be used, which says nothing about the engine."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What the tool says of one case."""

    found: tuple[Placed, ...] = ()
    """Errors of the engine's kernels."""
    ours: tuple[KernelError, ...] = ()
    """Errors in FuzzGraph's own work."""

    @property
    def errors(self) -> tuple[KernelError, ...]:
        """Of the engine, each name once."""
        return together(one.error for one in self.found)


class Sanitizer:
    """One of the tools, for cases on one setup.

    Args:
        setup: names the tool as `sanitizer`.
        paths: what goes first on the path of the process that is watched.

    Raises:
        AdapterUnavailable: the tool is not here.
    """

    def __init__(self, setup: Setup, paths: Sequence[Path] = ()) -> None:
        assert setup.sanitizer
        self._tool = setup.sanitizer
        self._binary = require_tool(self._tool)
        self._setup = setup
        self._opening = Open(setup=setup, paths=tuple(map(str, paths)))
        self._last_moment = math.inf

    def cut_off(self, moment: float) -> None:
        """A case that is still watched at this moment, by `time.monotonic`, ends with OutOfTime."""
        self._last_moment = moment

    def check(self, case: Case) -> Checked:
        """Run a case under the tool.

        Raises:
            SanitizerFailed: there is no report, or none that can be read. OutOfTime: it was cut
                off. UsageError, TargetFailed: as the case itself.
        """
        with tempfile.TemporaryDirectory(prefix="fuzzgraph-sanitizer-") as name:
            folder = Path(name)
            how = self._run(folder, case)
            report = _report_in(folder / "report.txt", self._tool)
            outcome = _outcome_in(folder)
            # Behind an error of a kernel the tool ends the device's context.
            if isinstance(outcome, Refused) and not report.errors:
                raise refusal(outcome)
            if report.total is None or report.unread:
                raise SanitizerFailed(self._said_nothing(report, how, folder))
            if isinstance(outcome, Failed) and not report.errors:
                raise SanitizerFailed(f"under {self._tool} the case failed: {outcome.error}")
            if outcome is None and not report.errors:
                raise SanitizerFailed(self._did_not_run(how, folder))
        return _checked(report, outcome if isinstance(outcome, Ran) else None)

    def _run(self, folder: Path, case: Case) -> str:
        """Run it to its end; how it ended."""
        log = folder / "report.txt"
        seconds = int(min(_SECONDS, max(1.0, self._last_moment - time.monotonic())))
        asked = OneCase(opening=self._opening, case=case, log=str(log), seconds=seconds + 10)
        (folder / REQUEST).write_bytes(msgspec.json.encode(asked))
        environment = self._environment()
        watched = module_command("fuzzgraph.worker.sanitizer.one_case", str(folder))
        command = tool_command(self._binary, self._tool, log, watched, environment)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a kill then takes what it started as well
            )
        except OSError as error:
            raise SanitizerFailed(f"{self._binary} cannot be run: {error.strerror}.") from None
        assert process.stdout is not None
        output = Output(os.dup(process.stdout.fileno()), folder / "output.log")
        process.stdout.close()
        try:
            return f"exit code {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            if time.monotonic() >= self._last_moment:
                raise OutOfTime(f"{self._tool} was cut off: the time is up") from None
            raise SanitizerFailed(
                f"{self._tool} did not end within {seconds} s. Take a smaller case."
            ) from None
        finally:
            _end(process)
            output.finish()

    def _environment(self) -> dict[str, str]:
        environment = engine_environment(self._setup.device)
        # With expandable segments the tool takes accesses for errors that are none
        # (pytorch issue 196209).
        for name in _ALLOCATORS:
            environment.pop(name, None)
        return environment

    def _did_not_run(self, how: str, folder: Path) -> str:
        said = "".join(f" It said last: {line}" for line in _last_line(folder / "output.log"))
        return (
            f"under {self._tool} the case's process ended with {how} before the case did, and no "
            f"error was reported.{said}"
        )

    def _said_nothing(self, report: Report, how: str, folder: Path) -> str:
        if report.unread:
            return (
                f"{self._binary} reports {report.unread} in a form that is not known here. Please "
                "report it, with the tool's own output."
            )
        last = report.others[-1:] or _last_line(folder / "output.log")
        said = f" It said last: {last[0]}" if last else ""
        return (
            f"{self._binary} ended with {how} and left no summary, so that nothing is known of the "
            f"kernels.{said}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _report_in(path: Path, tool: SanitizerTool) -> Report:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES)
    except OSError:
        text = b""
    return read_report(text, tool)


def _outcome_in(folder: Path) -> Outcome | None:
    """What the process left; None where it ended before that."""
    try:
        shape: Any = Outcome
        found: Outcome = decode_json((folder / ANSWER).read_bytes(), shape)
        return found
    except OSError:
        return None
    except UNREADABLE as error:
        raise SanitizerFailed(
            f"the process under the tool left an answer that cannot be read: {error}"
        ) from None


def _last_line(path: Path) -> list[str]:
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        return []
    return [" ".join(line.split())[:300] for line in lines if line.strip()][-1:]


def _checked(report: Report, ran: Ran | None) -> Checked:
    all_of_it = [placed(one, ran) for one in report.errors]
    return Checked(
        found=tuple(one for one in all_of_it if not one.ours),
        ours=together(one.error for one in all_of_it if one.ours),
    )
