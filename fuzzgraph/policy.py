"""How a finding counts: what the ledger tolerates or quarantines, and what the baseline has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Protocol

from fuzzgraph.baseline import Baseline, load_baseline
from fuzzgraph.case import Case, digest, load_case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.finding import Finding
from fuzzgraph.ledger import Ledger, Tolerated, load_ledger
from fuzzgraph.run.events import Status
from fuzzgraph.run.runner import Runner, VerdictLike

DEFAULT_LEDGER = Path("corpus/ledger.toml")
MENDED_RUNS = 3
"""Times the case of a tolerated entry has to pass before the entry counts as fixed."""


@dataclass(frozen=True, slots=True)
class FindingPolicy:
    """What is known of findings before they are found."""

    ledger: Ledger = field(default_factory=Ledger)
    baseline: Baseline = field(default_factory=lambda: Baseline({}))
    only_new: bool = False

    @property
    def bad_lines(self) -> tuple[str, ...]:
        return (*self.ledger.bad_lines, *self.baseline.bad_lines)

    def of(self, finding: Finding) -> tuple[Status, str]:
        """How a finding counts, and the issue that says so."""
        entry = self.ledger.tolerates(finding)
        if entry is not None:
            return "tolerated", entry.issue
        return ("known", "") if self.baseline.has(finding) else ("new", "")

    def counts(self, finding: Finding) -> bool:
        """Whether it decides the exit code."""
        status, _ = self.of(finding)
        return status == "new" or (status == "known" and not self.only_new)

    def tolerated_cases(self) -> Iterator[tuple[Tolerated, Case | str]]:
        """Entries that name a case, each with it, or with the reason why it cannot be read."""
        for entry in self.ledger.tolerated:
            if entry.case:
                try:
                    yield entry, load_case(self.ledger.folder / entry.case)
                except InvalidCase as error:
                    yield entry, str(error)


def load_policy(
    ledger: Path | None = None, baseline: Path | None = None, *, only_new: bool = False
) -> FindingPolicy:
    """Read both; without a name the ledger is `corpus/ledger.toml`, where that is here.

    Raises:
        UsageError: a named file cannot be read.
    """
    if ledger is None and DEFAULT_LEDGER.is_file():
        ledger = DEFAULT_LEDGER
    return FindingPolicy(
        load_ledger(ledger, _today()) if ledger is not None else Ledger(),
        load_baseline(baseline) if baseline is not None else Baseline({}),
        only_new,
    )


def _today() -> date:
    return datetime.now(timezone.utc).date()


class Note(Protocol):
    """Takes lines for the report of the run."""

    def __call__(self, *, mended: Iterable[str] = (), bad_entries: Iterable[str] = ()) -> None: ...


def run_tolerated(policy: FindingPolicy, run: Callable[[Case], VerdictLike], note: Note) -> None:
    """Run the cases of tolerated entries.

    Args:
        note: told each entry whose case passes every time, and each whose case cannot be read or
            does not fit into its pools.
    """
    for entry, case in policy.tolerated_cases():
        try:
            if isinstance(case, str):
                note(bad_entries=[f"ledger: {entry.name}: {case}"])
            elif _passes(entry, case, run):
                note(mended=[f"{entry.name}: its case passed {MENDED_RUNS} times"])
        except InvalidCase as error:
            note(bad_entries=[f"ledger: {entry.name}: {entry.case}: {error}"])


def _passes(entry: Tolerated, case: Case, run: Callable[[Case], VerdictLike]) -> bool:
    for _ in range(MENDED_RUNS):
        verdict = run(case)
        if verdict.skipped or any(map(entry.fits, verdict.findings)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class QuarantinedVerdict:
    """Stands for the verdict of a case that was never launched."""

    entry: str
    findings: tuple[Finding, ...] = ()
    steps: int = 0
    nondeterministic: bool = False
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    unchecked: Mapping[str, int] = field(default_factory=dict)
    unguarded: Mapping[str, int] = field(default_factory=dict)
    late_copies: Mapping[str, int] = field(default_factory=dict)
    unrepeatable: int = 0
    branches: frozenset[str] = frozenset()

    @property
    def skipped(self) -> str:
        return f"quarantined: {self.entry}"


class QuarantiningRunner:
    """Runs what the ledger does not keep out: in the search, while shrinking, while confirming.

    Args:
        quarantined: told the entry each time that one keeps a case from running.
    """

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        target: str,
        dimensions: Callable[[Case], Iterable[str]],
        quarantined: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._ledger = ledger
        self._target = target
        self._dimensions = dimensions
        self._quarantined = quarantined

    def run_case(self, case: Case) -> VerdictLike:
        entry = self._entry(case)
        if entry:
            self._quarantined(entry)
            return QuarantinedVerdict(entry)
        return self._runner.run_case(case)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        return finding if self._entry(case) else self._runner.confirm(case, finding, times)

    def keeps_out(self, verdict: VerdictLike) -> bool:
        """Whether a verdict is that of a case never launched."""
        return isinstance(verdict, QuarantinedVerdict)

    def _entry(self, case: Case) -> str:
        if not self._ledger.quarantined:
            return ""
        found = self._ledger.keeps_out(self._target, digest(case), self._dimensions(case))
        return found.name if found else ""
