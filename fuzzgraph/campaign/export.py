"""Writes the repro of a finding beside its case, and runs it before it is called verified."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzgraph.campaign.budget import Allowance, Effort
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import NotExecuted, OutOfTime, RunsCutOff, UsageError
from fuzzgraph.repro.files import file_names
from fuzzgraph.run.environment import UNKNOWN, Environment
from fuzzgraph.run.events import Export, ExportKind, ReportedFinding, Setup

if TYPE_CHECKING:
    from fuzzgraph.campaign.triage import Say
    from fuzzgraph.case import Case
    from fuzzgraph.finding import Finding
    from fuzzgraph.repro import Recorder

UNLIMITED = Allowance(Effort.RUN, math.inf)


def export_text(
    kind: ExportKind,
    case: Case,
    finding: Finding,
    setup: Setup,
    *,
    record: Recorder | None = None,
    allowance: Allowance = UNLIMITED,
    environment: Environment = UNKNOWN,
) -> str:
    """The export of one kind.

    Args:
        record: writes a standalone script where the engine is; None for an engine in this process.
        allowance: whether a script's operations are recorded, and whether it is proven by running
            it, in so many seconds.
        environment: where the finding was seen.

    Raises:
        UsageError: the target has no export of that kind. OutOfTime: proving it took too long.
    """
    from fuzzgraph import repro

    if kind == "script":
        return repro.export_script(
            case,
            finding,
            setup,
            record=record,
            recorded=allowance.effort is not Effort.SKIP,
            proven=allowance.effort is Effort.RUN,
            seconds=allowance.seconds,
        )
    if kind == "pytest":
        return repro.export_pytest(case, finding, setup)
    return repro.export_issue(case, finding, setup, environment)


def verified_rate(
    kind: ExportKind,
    path: Path,
    times: int = 3,
    *,
    seconds: float = math.inf,
    running: Callable[[int, int], object] = lambda number, times: None,
) -> str:
    """How often the export failed when it was executed, e.g. '3/3'; '' for text.

    Args:
        running: called with the number of each run and how many there are.

    Raises:
        NotExecuted: it came to no verdict. RunsCutOff: it took longer than `seconds` in all.
    """
    if kind == "issue":
        return ""
    from fuzzgraph import repro

    return str(repro.verify(path, times=times, seconds=seconds, running=running))


class Exporting:
    """The exporter of a run: every kind beside the case, the script executed."""

    def __init__(
        self,
        setup: Setup,
        record: Recorder | None = None,
        environment: Environment = UNKNOWN,
    ) -> None:
        self._setup = setup
        self._record = record
        self._environment = environment

    def __call__(
        self, reported: ReportedFinding, folder: RunFolder, allowance: Allowance, say: Say
    ) -> tuple[Export, ...]:
        return tuple(
            self._one(kind, reported, folder.of(reported.id) / name, allowance, say)
            for kind, name in file_names(reported.id).items()
        )

    def _one(
        self,
        kind: ExportKind,
        reported: ReportedFinding,
        path: Path,
        allowance: Allowance,
        say: Say,
    ) -> Export:
        end = time.monotonic() + allowance.seconds
        runs = kind == "script" and allowance.effort is Effort.RUN
        say(f"writing {path.name}{' and running it once' if runs else ''} for {reported.id}")
        rate, cut_off = "", False
        try:
            write_atomically(path, self._text(kind, reported, allowance).encode())
            left = end - time.monotonic()
            execute = runs and reported.status == "new"
            cut_off = execute and left <= 0.0
            if execute and not cut_off:
                running = partial(_running, say, path, reported.id)
                rate = verified_rate(kind, path, seconds=left, running=running)
        except UsageError:
            raise
        except RunsCutOff as late:
            rate, cut_off = late.rate, True
        except NotExecuted as error:
            return Export(kind=kind, path=str(path), error=str(error))
        except Exception as error:  # a night of fuzzing must not end over one repro
            return Export(kind=kind, path="", error=f"{type(error).__name__}: {error}")
        return Export(kind=kind, path=str(path), rate=rate, cut_off=cut_off)

    def _text(self, kind: ExportKind, reported: ReportedFinding, allowance: Allowance) -> str:
        """The export; a script that there is no time to prove is written as it is."""
        write = partial(
            export_text,
            kind,
            reported.case,
            reported.finding,
            self._setup,
            record=self._record,
            environment=self._environment,
        )
        try:
            return write(allowance=allowance)
        except OutOfTime:
            return write(allowance=Allowance(Effort.WRITE_ONLY))


def _running(say: Say, path: Path, finding: str, number: int, times: int) -> None:
    say(f"running {path.name} {number}/{times} for {finding}")


def no_export(
    reported: ReportedFinding, folder: RunFolder, allowance: Allowance, say: Say
) -> tuple[Export, ...]:
    """The exporter of runs that need no repro on disk."""
    return ()
