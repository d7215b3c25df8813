"""Progress of a run: a few lines that move on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

from typing import TextIO

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fuzzgraph.reporting.summary_text import setup_line
from fuzzgraph.run.events import (
    CampaignStarted,
    Event,
    FindingNew,
    Progress,
    Shrunk,
)
from fuzzgraph.run.settings_file import settings_words
from fuzzgraph.text.escaping import one_line
from fuzzgraph.text.finding_text import sentence
from fuzzgraph.text.numbers import counted, short

_PLAIN_SECONDS = 10.0
_BAR = 24
"""Width of the bar that shows how much of the budget is spent."""


def start_line(event: CampaignStarted) -> str:
    """What is about to run."""
    budget = event.spec.budget
    begin = f"fuzzing {setup_line(event.spec.setup)}; seed {event.spec.seed}; "
    if event.spec.settings:
        begin += f"{settings_words(event.spec.settings)}; "
    if budget.examples == 0:
        return f"{begin}the corpus only, {counted(event.corpus_cases, 'case')}"
    limits = []
    if budget.seconds is not None:
        limits.append(short(budget.seconds))
    if budget.examples is not None:
        limits.append(counted(budget.examples, "example"))
    if budget.findings is not None:
        limits.append(f"at most {counted(budget.findings, 'finding')}")
    limit = ", ".join(limits) or "no limit, Ctrl-C ends it"
    corpus = f", {counted(event.corpus_cases, 'corpus case')} first" if event.corpus_cases else ""
    return f"{begin}{limit}{corpus}"


def progress_line(event: Progress) -> str:
    """Rate, cases, time left, findings."""
    parts = [f"{short(event.seconds):>6}", counted(event.cases, "case"), f"{event.rate:.0f}/s"]
    if event.seconds_left is not None:
        parts.append(f"{short(event.seconds_left)} left")
    if event.examples_left is not None:
        parts.append(f"{counted(event.examples_left, 'example')} left")
    parts.append(counted(event.findings, "finding"))
    if event.pairs:
        parts.append(f"{event.pairs} pairs")
    if event.deaths:
        parts.append(counted(event.deaths, "engine death"))
    if event.killed:
        parts.append(f"{counted(event.killed, 'worker')} killed from outside")
    if event.doing not in ("fuzzing", "done"):
        parts.append(event.doing)
    return "  ".join(parts)


class PlainProgress:
    """Lines for a log: the start, each finding, what is done for it, and the figures every ten
    seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told = 0.0
        self._doing = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, CampaignStarted):
            self._say(start_line(event))
        elif isinstance(event, FindingNew):
            self._say(f"found {event.id}: {sentence(event.finding)}")
        elif isinstance(event, Shrunk):
            self._say(
                f"shrunk {event.id} to {counted(event.steps, 'step')}, "
                f"{counted(event.requests, 'request')}"
            )
        elif isinstance(event, Progress):
            self._tell(event)

    def _tell(self, event: Progress) -> None:
        """What is being done, as soon as it changes; the figures now and then."""
        changed = event.doing not in (self._doing, "fuzzing", "done")
        self._doing = event.doing
        if self._due(event):
            self._told = event.seconds
            self._say(progress_line(event))
        elif changed:
            self._say(f"{short(event.seconds):>6}  {event.doing}")

    def _due(self, event: Progress) -> bool:
        return event.doing != "done" and event.seconds - self._told >= _PLAIN_SECONDS

    def _say(self, line: str) -> None:
        print(one_line(line), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to take down."""


def _budget_used(event: Progress) -> float | None:
    """Share of the budget that is spent; None where there is no limit."""
    if event.seconds_left is not None:
        whole = event.seconds + event.seconds_left
        return event.seconds / whole if whole else 1.0
    if event.examples_left is not None:
        done = event.cases - event.corpus_cases
        return done / (done + event.examples_left) if done + event.examples_left else 1.0
    return None


class LiveProgress:
    """The figures, the budget and the coverage at the bottom of a terminal; findings scroll past
    above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._pairs = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, CampaignStarted):
            self._console.print(Text(one_line(start_line(event))))
            self._live.start()
        elif isinstance(event, FindingNew):
            # Its severity is known once its smallest case is.
            said = f"found {event.id}: {sentence(event.finding)}"
            self._console.print(Text(one_line(said), style="bold red"))
        elif isinstance(event, Progress):
            self._live.update(self._figures(event), refresh=True)

    def _figures(self, event: Progress) -> Group:
        told = one_line(progress_line(msgspec.structs.replace(event, pairs=0)))
        line = Text(told, style="cyan")
        below = Table.grid(padding=(0, 2))
        used = _budget_used(event)
        bar = "" if used is None else ProgressBar(total=1.0, completed=used, width=_BAR)
        below.add_row(bar, Text(self._coverage(event), style="dim"))
        return Group(line, below)

    def _coverage(self, event: Progress) -> str:
        fresh, self._pairs = event.pairs - self._pairs, event.pairs
        grown = f" (+{fresh})" if fresh > 0 else ""
        return f"{event.dimensions} dimension values, {event.pairs} pairs{grown}"

    def close(self) -> None:
        """Take the line down."""
        self._live.stop()


def progress_on(stream: TextIO) -> PlainProgress | LiveProgress:
    """The progress that suits a stream."""
    if stream.isatty():
        return LiveProgress(Console(file=stream))
    return PlainProgress(stream)
