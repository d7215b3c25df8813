"""How findings stand before a run: the ledger's word, and what the baseline already has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path

from fuzzgraph.baseline import Baseline, load_baseline
from fuzzgraph.case import Case, digest, load_case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.events import Status
from fuzzgraph.finding import Finding
from fuzzgraph.ledger import Ledger, Tolerated, load_ledger
from fuzzgraph.runner import Runner, VerdictLike

__all__ = [
    "DEFAULT_LEDGER",
    "QuarantiningRunner",
    "FindingPolicy",
    "load_policy",
    "run_tolerated",
]

DEFAULT_LEDGER = Path("corpus/ledger.toml")
MENDED_RUNS = 3
"""Times the case of a tolerated entry has to pass before the entry counts as mended."""


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


def run_tolerated(
    standing: FindingPolicy, run: Callable[[Case], VerdictLike], mended: list[str], bad: list[str]
) -> None:
    """Run the cases of tolerated entries.

    Args:
        mended: gets a line for each entry whose case passes every time.
        bad: gets one for each whose case cannot be read, or does not fit into its pools.
    """
    for entry, case in standing.tolerated_cases():
        try:
            if isinstance(case, str):
                bad.append(f"ledger: {entry.name}: {case}")
            elif _passes(entry, case, run):
                mended.append(f"{entry.name}: its case passed {MENDED_RUNS} times")
        except InvalidCase as error:
            bad.append(f"ledger: {entry.name}: {entry.case}: {error}")


def _passes(entry: Tolerated, case: Case, run: Callable[[Case], VerdictLike]) -> bool:
    for _ in range(MENDED_RUNS):
        verdict = run(case)
        if verdict.skipped or any(map(entry.fits, verdict.findings)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _KeptOut:
    """Stands for the verdict of a case that was never launched."""

    entry: str
    findings: tuple[Finding, ...] = ()
    steps: int = 0
    nondeterministic: bool = False
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    unchecked: Mapping[str, int] = field(default_factory=dict)
    branches: frozenset[str] = frozenset()

    @property
    def skipped(self) -> str:
        return f"quarantined: {self.entry}"


class QuarantiningRunner:
    """Runs what the ledger does not keep out: in the search, while shrinking, while confirming."""

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        target: str,
        dimensions: Callable[[Case], Iterable[str]],
    ) -> None:
        self._runner = runner
        self._ledger = ledger
        self._target = target
        self._dimensions = dimensions
        self.kept_out: Counter[str] = Counter()
        """Ledger entry -> cases that it kept from running."""

    def run_case(self, case: Case) -> VerdictLike:
        entry = self._entry(case)
        if entry:
            self.kept_out[entry] += 1
            return _KeptOut(entry)
        return self._runner.run_case(case)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        return finding if self._entry(case) else self._runner.confirm(case, finding, times)

    def keeps_out(self, verdict: VerdictLike) -> bool:
        """Whether a verdict is that of a case never launched."""
        return isinstance(verdict, _KeptOut)

    def _entry(self, case: Case) -> str:
        if not self._ledger.quarantined:
            return ""
        found = self._ledger.keeps_out(self._target, digest(case), self._dimensions(case))
        return found.name if found else ""
