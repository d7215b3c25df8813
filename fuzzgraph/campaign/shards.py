"""Takes up a run of several processes on this machine: one process for each shard, one report."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.campaign.reports import rebuilt, write_reports
from fuzzgraph.campaign.resume import (
    Trusted,
    free_empty_claims,
    load_run_state,
    nothing_to_resume,
    resumed_spec,
)
from fuzzgraph.errors import UsageError
from fuzzgraph.process.interpreter import module_command
from fuzzgraph.process.interrupts import interruptible
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import CampaignStarted, RunSummary


def shards_of(out: Path) -> int:
    """Over how many processes the run in a folder was divided; 1 for a run of one."""
    if (out / "events.jsonl").is_file() or not out.is_dir():
        return 1
    for log in sorted(out.glob("events-*.jsonl")):
        for event in read_log(log)[0]:
            if isinstance(event, CampaignStarted):
                return event.spec.shards
    return 1


def resume_shards(
    out: Path,
    shards: int,
    seconds: float | None,
    command: Callable[[int], list[str]] | None = None,
    *,
    named: Trusted | None = None,
) -> RunSummary:
    """Resume every shard that is not done, side by side.

    A shard whose log contains no run had not started and has no findings: it is left out.

    Args:
        seconds: a new budget in all; None for the old one.
        command: what resumes one shard; None for this command line.
        named: what of the run the caller has named again.

    Raises:
        UsageError: every shard has come to its end.
    """
    named = named or Trusted()
    words = command or (lambda shard: [*_command(out, shard, seconds), *named.words()])
    with RunFolder(out).lock():
        free_empty_claims(RunFolder(out))
        open_shards = [shard for shard in range(shards) if _has_more(out, shard, shards, seconds)]
        if not open_shards:
            raise nothing_to_resume(out)
        for shard in open_shards:
            start = load_run_state(out, shard, shards).start
            named.check(out, start.spec)
        group = _Group([subprocess.Popen(words(shard)) for shard in open_shards])
        with interruptible(group):
            codes = group.wait()
        summary = rebuilt(out)
        RunFolder(out).finish_run(summary)
        write_reports(out, summary)
    if 2 in codes and not summary.error:
        raise UsageError(f"{out}: a shard could not be resumed; see its message above.")
    return summary


def _has_more(out: Path, shard: int, shards: int, seconds: float | None) -> bool:
    try:
        resumed_spec(load_run_state(out, shard, shards), out, seconds)
    except UsageError:
        return False
    return True


def _command(out: Path, shard: int, seconds: float | None) -> list[str]:
    words = module_command("fuzzgraph", "resume", str(out), "--shard", str(shard))
    return words if seconds is None else [*words, "--time", f"{seconds:f}s"]


class _Group:
    """The processes of the shards."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def wait(self) -> list[int]:
        return [process.wait() for process in self._processes]

    def interrupt(self) -> None:
        """Ctrl-C reaches them anyway; what only this process is sent does not."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
