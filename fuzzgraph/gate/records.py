"""What a gate is asked, and what it came to."""

from __future__ import annotations

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import ReportedFinding, RunSummary, is_full_rate

CUT = ("interrupted", "killed", "failed")
"""Reasons for which a search ended before it had looked: what it did not find says nothing."""


class GateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pull request, or one working tree, against its base."""

    source: str
    base: str
    """A ref; the tree is compared with the commit where it left it."""
    targets: tuple[str, ...] = ()
    """() for those that execute what changed."""
    among: tuple[str, ...] = ()
    """What those are chosen from; () for all of the engine's."""
    seconds: float
    """Of search, over all targets."""
    examples: int | None = None
    """Generated cases of each target, at most."""
    seed: int
    jobs: int
    corpus: str = ""
    ledger: str = ""
    out: str = ""
    settings: str = ""
    """File of settings that had a part in it; '' for none."""


class StandingFinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding of the tree that is not blamed on the change: the base shows it as well."""

    id: str
    finding: Finding
    case_path: str
    """Of the first case that shows it, below the folder of the gate; not shrunk."""
    cases: int
    was: str = ""
    """Id that it has on the base, where something was renamed."""


class MendedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of the base that the tree does not show on the same case."""

    id: str
    finding: Finding
    case: Case
    case_path: str
    confirmed: str
    """Fresh sessions of the base that show it."""
    on_head: str
    """Fresh sessions of the tree that show it."""


class GateTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One target of a gate."""

    target: str
    touched: tuple[str, ...] = ()
    """Functions of the change that it executes; () where it was named."""
    seconds: float = 0.0
    folder: str = ""
    """Folder of its run, below that of the gate."""
    summary: RunSummary | None = None
    """Of what the tree alone shows; None where it did not run."""
    standing: tuple[StandingFinding, ...] = ()
    uncovered: tuple[StandingFinding, ...] = ()
    """Shown by the tree only where the base failed in a way that is mended, which may have hidden
    it: not blamed on the change."""
    mended: tuple[MendedFinding, ...] = ()
    why: str = ""
    """Why it did not run."""


class GateSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a change breaks and mends."""

    fuzzgraph: str
    package: str
    base: str
    """Commit."""
    head: str
    """Identity of the tree."""
    branch: str = ""
    spec: GateSpec
    touched: tuple[str, ...] = ()
    """Python files of the package that run differently."""
    same: tuple[str, ...] = ()
    """Files whose text differs and whose code does not."""
    other: tuple[str, ...] = ()
    """Files that are no Python: no target runs them."""
    targets: tuple[GateTarget, ...] = ()
    left_out: tuple[str, ...] = ()
    """Targets that execute what changed, for which the budget is too small."""
    never_ran: dict[str, tuple[int, ...]] = {}
    """File -> first lines of the tree's changed statements that no case executed."""
    never_ran_on_base: dict[str, tuple[int, ...]] = {}
    """The same of the statements that the change takes away or replaces, in the base's file."""
    entered: tuple[str, ...] = ()
    """Files of which some changed statement was executed, at import or later."""
    statements: int = 0
    """All statements that changed, of both trees; those of Triton kernels are not counted."""
    kernels: tuple[str, ...] = ()
    """Files in which the change touches Triton kernels, whose lines are not followed."""
    not_driven: dict[str, str] = {}
    """Target -> why it does not run on this engine, so that nobody knows what it executes."""
    seconds: float = 0.0
    first_case_seconds: float = 0.0
    """From the start to the first case."""
    exit_code: int = 0

    @property
    def new(self) -> list[ReportedFinding]:
        """What the change brings: fresh sessions of the tree all show it, none of the base."""
        return [one for one in self._reported() if is_full_rate(one.finding.confirmed)]

    @property
    def doubtful(self) -> list[ReportedFinding]:
        """What came up on the tree alone, and not in every fresh session, or on the base once."""
        return [one for one in self._reported() if not is_full_rate(one.finding.confirmed)]

    def _reported(self) -> list[ReportedFinding]:
        return [
            reported
            for one in self.targets
            if one.summary is not None
            for reported in one.summary.findings
            if one.summary.counts(reported)
        ]
