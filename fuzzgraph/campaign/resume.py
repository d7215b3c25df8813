"""Resumes an interrupted run, from its event log and the files of its folder.

Nothing that was seen is lost: a finding is in the log before it is worked on, one that waits for
another is in the log too, and the case at hand was on disk before it was run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from fuzzgraph.campaign.folder import RunFolder, refuse_links, unlogged_findings
from fuzzgraph.case import Case, digest, load_case
from fuzzgraph.errors import InvalidCase, UsageError
from fuzzgraph.run.events import Noted
from fuzzgraph.run.spec import RunSpec
from fuzzgraph.run.state import RunState


def load_run_state(out: Path, shard: int = 0, shards: int = 1) -> RunState:
    """What the run in this folder had done, or one shard of it, with the case at hand.

    Raises:
        UsageError: the folder holds no run.
    """
    refuse_links(out)
    folder = RunFolder(out, shard, shards)
    if not folder.events.is_file():
        raise UsageError(
            f"{out}: holds no {folder.events.name}, so it cannot be resumed. Name the folder of a "
            "run."
        )
    state = RunState.load(folder.events)
    if not state.begun:
        raise UsageError(f"{folder.events}: contains no run. Start a new one with 'fuzzgraph run'.")
    state.at_hand = _at_hand(folder, state)
    if folder.whole:  # another shard's may be a moment old
        free_empty_claims(folder)
        found, damage = unlogged_findings(out, state.findings)
        for reported in found:
            state.adopt(reported)
        state.apply(Noted(damaged=tuple(damage)))
    return state


def _at_hand(folder: RunFolder, state: RunState) -> Case | None:
    """The case that had not come back; None where there is none or it was not even written."""
    try:
        case = load_case(folder.running)
    except InvalidCase:
        return None
    return None if digest(case) in state.corpus_ran else case


def free_empty_claims(folder: RunFolder) -> None:
    """Remove claims without a case: the run was killed before the finding was in the log."""
    for claim in folder.findings.glob("*"):
        if claim.is_dir() and not any(claim.iterdir()):
            claim.rmdir()


def nothing_to_resume(out: Path, seconds: float | None = None) -> UsageError:
    """The error for a resume of a run that is complete."""
    after = "" if seconds is None else f" after {seconds:.0f} s"
    return UsageError(
        f"{out}: the run is complete{after}. Give it more time with --time, or start a new one."
    )


def resumed_spec(state: RunState, out: Path, seconds: float | None = None) -> RunSpec:
    """The spec of a resumed run: the old one, with what is left of its budget.

    Without a new budget a complete run does not search any more: it only finishes what it had no
    time for, however long that takes.

    Args:
        seconds: a new budget in all, those already spent included; None for the old one.

    Raises:
        UsageError: the run is complete, nothing is left undone, and no new budget is given.
    """
    over = state.finished and (seconds is None or seconds <= state.progress.seconds)
    if over and not state.left:
        raise nothing_to_resume(out, state.progress.seconds)
    spec = state.start.spec
    limit = None if over else seconds or spec.budget.seconds
    budget = replace(spec.budget, seconds=limit)
    return replace(spec, out=str(out), budget=budget, finish_only=over)


@dataclass(frozen=True, slots=True)
class Trusted:
    """What the caller of a resume has named again; None for what they have not.

    The folder of a run may come from anybody, so its log does not decide by itself which module is
    imported and which database is written to.
    """

    target: str | None = None
    database: str | None = None

    def words(self) -> list[str]:
        """The same as options of a command line."""
        given = (("--target", self.target), ("--database", self.database))
        return [word for option, value in given if value is not None for word in (option, value)]

    def check(self, out: Path, spec: RunSpec) -> None:
        """Refuse what the log of the run asks for and the caller has not named.

        Raises:
            UsageError: a module:factory or a database that is not named, or another one is.
        """
        target, database = spec.setup.target, spec.database
        code = target if ":" in target else ""
        self._check(out, "--target", self.target, target, code, "is code to import and run")
        self._check(out, "--database", self.database, database, database, "is written to")

    def _check(
        self, out: Path, option: str, named: str | None, told: str, risky: str, why: str
    ) -> None:
        if named is not None and named != told:
            raise UsageError(
                f"{option}={named!r}: the run in {out} has {told!r}. Name that, or leave it out."
            )
        if named is None and risky:
            raise UsageError(
                f"{out}: its log asks for {told!r}, which {why}. If you trust it, name it again: "
                f"{option} {shlex.quote(told)}"
            )
