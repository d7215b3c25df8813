"""Progress of a run: one line that moves on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fuzzgraph.events import (
    CampaignStarted,
    Event,
    FindingNew,
    Progress,
    Shrunk,
)
from fuzzgraph.reporting.amounts import counted, short
from fuzzgraph.reporting.ending import setup_line
from fuzzgraph.reporting.wording import finding_head

__all__ = ["LiveProgress", "PlainProgress", "progress_line", "progress_on", "start_line"]

_PLAIN_SECONDS = 10.0


def start_line(event: CampaignStarted) -> str:
    """What is about to run."""
    begin = f"fuzzing {setup_line(event.setup)}; seed {event.seed}; "
    if event.examples == 0:
        return f"{begin}the corpus only, {event.corpus_cases} cases"
    limits = []
    if event.seconds is not None:
        limits.append(short(event.seconds))
    if event.examples is not None:
        limits.append(f"{event.examples} examples")
    if event.max_findings is not None:
        limits.append(f"{counted(event.max_findings, 'finding')} at most")
    budget = ", ".join(limits) or "no limit, Ctrl-C ends it"
    corpus = f", {event.corpus_cases} corpus cases first" if event.corpus_cases else ""
    return f"{begin}{budget}{corpus}"


def progress_line(event: Progress) -> str:
    """Rate, cases, time left, findings."""
    parts = [f"{short(event.seconds):>6}", f"{event.cases} cases", f"{event.rate:.0f}/s"]
    if event.seconds_left is not None:
        parts.append(f"{short(event.seconds_left)} left")
    if event.examples_left is not None:
        parts.append(f"{event.examples_left} examples left")
    parts.append(counted(event.findings, "finding"))
    if event.doing not in ("fuzzing", "done"):
        parts.append(event.doing)
    return "  ".join(parts)


class PlainProgress:
    """Lines for a log: the start, each finding, and the figures every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, CampaignStarted):
            self._say(start_line(event))
        elif isinstance(event, FindingNew):
            self._say(f"found {event.id}: {event.finding.message}")
        elif isinstance(event, Shrunk):
            self._say(
                f"shrunk {event.id} to {counted(event.steps, 'step')}, "
                f"{counted(event.requests, 'request')}"
            )
        elif isinstance(event, Progress) and self._due(event):
            self._told = event.seconds
            self._say(progress_line(event))

    def _due(self, event: Progress) -> bool:
        return event.doing != "done" and event.seconds - self._told >= _PLAIN_SECONDS

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to take down."""


class LiveProgress:
    """One line at the bottom of a terminal; findings scroll past above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, CampaignStarted):
            self._console.print(Text(start_line(event)))
            self._live.start()
        elif isinstance(event, FindingNew):
            head = finding_head(event.finding)
            self._console.print(Text("\n".join(head[:2]), style="bold red"))
        elif isinstance(event, Progress):
            self._live.update(Text(progress_line(event), style="cyan"), refresh=True)

    def close(self) -> None:
        """Take the line down."""
        self._live.stop()


def progress_on(stream: TextIO) -> PlainProgress | LiveProgress:
    """The progress that suits a stream."""
    if stream.isatty():
        return LiveProgress(Console(file=stream))
    return PlainProgress(stream)
