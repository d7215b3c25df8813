"""What a child does: runs the same cases on the engine as it is there, changed or not."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.errors import EngineError, FuzzGraphError, InvalidCase
from fuzzgraph.execution import Execution, Verdict
from fuzzgraph.finding import Finding
from fuzzgraph.mutants.executed import ExecutedLines
from fuzzgraph.mutants.messages import Lines, Quiet
from fuzzgraph.mutants.records import Ground, Mutant, Result
from fuzzgraph.ports import GraphEngine, Session, Target, engine_packages, unwrapped
from fuzzgraph.run.events import finding_id
from fuzzgraph.run.spec import Setup
from fuzzgraph.worker.stages import Enter, StagedTarget

_STARTING = ("open", "warmup", "capture")
CONFIGS_TO_START = 6
"""Configs that all have to fail before a mutant counts as one that does not start."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the unchanged engine shows, case by case.

    Args:
        shown_by: id of a finding -> numbers of the cases that showed it.
        tried: how many cases were run for it, the first ones.
    """

    shown_by: Mapping[str, Set[int]] = field(default_factory=dict)
    tried: int = 0

    @classmethod
    def of(cls, ground: Ground) -> Known:
        """What a measurement began with; older logs do not tell cases apart."""
        return cls(
            {one: frozenset(ground.shown_by.get(one, ())) for one in ground.findings}, ground.tried
        )

    def by(self, number: int) -> frozenset[str]:
        """Ids that find no mutant in a case: what it shows of the unchanged engine; where that was
        not asked, all that it shows anywhere."""
        if number >= self.tried:
            return frozenset(self.shown_by)
        return frozenset(name for name, cases in self.shown_by.items() if number in cases)


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to run the cases.

    Args:
        target: the engine, imported.
        cases: what to run, in this order.
        enter: told each stage before it is entered.
    """

    target: Target
    setup: Setup
    cases: Sequence[Case]
    enter: Enter

    def traced(self, seconds: float) -> Lines:
        """Run the unchanged engine under a trace for so many processor seconds."""
        known = frozenset(sys.modules)
        lines = ExecutedLines(engine_packages(self.target))

        def enter(stage: Any, step: int) -> None:
            lines.stop()
            self.enter(stage, step)
            lines.enter(stage, step)

        execution = Execution(_TracedTarget(self.target, enter, lines), self.setup)
        ran = 0
        for case in self.cases:
            if time.process_time() > seconds:
                break
            ran += not self._verdict(execution, case).skipped
        lines.stop()
        return Lines(
            lines={module: tuple(sorted(found)) for module, found in lines.lines.items()},
            cases=ran,
            seconds=time.process_time(),
            imported=tuple(sorted(frozenset(sys.modules) - known)),
        )

    def quiet(self, seconds: float) -> Quiet:
        """Run the unchanged engine for so many processor seconds, and keep what it shows.

        Raises:
            FuzzGraphError: it runs no case, so that no mutant could be told from it.
        """
        execution = self._execution()
        ran = tried = 0
        left_out = ""
        shown: dict[str, str] = {}
        shown_by: dict[str, tuple[int, ...]] = {}
        for case in self.cases:
            if time.process_time() > seconds:
                break
            verdict = self._verdict(execution, case)
            for name, one in {identity(one): one for one in verdict.findings}.items():
                shown.setdefault(name, _in_a_line(one))
                shown_by[name] = (*shown_by.get(name, ()), tried)
            tried += 1
            ran += not verdict.skipped
            left_out = left_out or verdict.skipped
        if not ran:
            raise FuzzGraphError(
                f"the unchanged engine ran no case in {seconds:g} s of its time"
                f" ({left_out or 'none came to its end'}), so that no mutant can be told from it."
                " Give --seconds more, or name another target."
            )
        return Quiet(
            cases=ran, tried=tried, seconds=time.process_time(), findings=shown, shown_by=shown_by
        )

    def judged(self, mutant: Mutant, seconds: float, known: Known) -> Result:
        """Run the changed engine until it shows what the unchanged one does not, or time is up."""
        execution = self._execution()
        lost = _Lost()
        ran = 0
        left_out = ""
        for number, case in enumerate(self.cases):
            if time.process_time() > seconds:
                break
            try:
                verdict = self._verdict(execution, case)
            except FuzzGraphError as error:
                said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
                return _result(mutant, "failed", ran + 1, said=said)
            left_out = left_out or verdict.skipped
            if verdict.skipped:
                continue
            ran += 1
            findings = verdict.findings
            shown = known.by(number)
            new = [one for one in findings if identity(one) not in shown]
            if lost.outside(case.config, findings, new):
                if lost.hopeless:
                    break
                continue
            new = new or lost.findings
            if new:
                return found(mutant, new[0], ran)
        if lost.findings and not lost.started:
            return _result(mutant, "does_not_start", ran, said=lost.findings[0].message)
        if not ran and left_out:
            return _result(mutant, "failed", ran, said=f"no case was judged: {left_out}"[:400])
        return _result(mutant, "survived", ran)

    def _verdict(self, execution: Execution, case: Case) -> Verdict:
        try:
            return execution.run_case(case)
        except InvalidCase as error:  # the pools are too small for it
            return Verdict(case, self.target.name, skipped=str(error))

    def _execution(self) -> Execution:
        return Execution(StagedTarget(self.target, self.enter), self.setup)


def _in_a_line(finding: Finding) -> str:
    where = ", ".join(filter(None, (finding.buffer, finding.mode)))
    return f"{finding.oracle} ({where}): {finding.message[:200]}"


class _TracedTarget(StagedTarget):
    """A target whose own methods, and whose sessions', are not taken for the engine's."""

    def __init__(self, target: Target, enter: Enter, lines: ExecutedLines) -> None:
        super().__init__(target, enter)
        self._lines = lines
        lines.leave_out(unwrapped(target))

    def open(self, config: EngineConfig, graphs: GraphEngine) -> Session:
        session = super().open(config, graphs)
        self._lines.leave_out(unwrapped(session))
        return session


class _Lost:
    """Keeps apart an engine that never starts from one that fails to start with some configs."""

    def __init__(self) -> None:
        self._configs: set[EngineConfig] = set()
        self.started = False
        self.findings: list[Finding] = []
        """Of configs that did not start."""

    @property
    def hopeless(self) -> bool:
        """Whether it has failed often enough."""
        return not self.started and len(self._configs) >= CONFIGS_TO_START

    def outside(
        self, config: EngineConfig, findings: Sequence[Finding], new: Sequence[Finding]
    ) -> bool:
        """Whether the engine raised before the first step, so that this case judged nothing.

        Args:
            new: those of `findings` that the unchanged engine does not show.
        """
        lost = [one for one in findings if is_start(one)]
        if not lost:
            self.started = True
            return False
        self._configs.add(config)
        self.findings += [one for one in lost if one in new]
        return not self.started


def identity(finding: Finding) -> str:
    """What makes two findings the same here: of errors also their type and where they were raised.

    Else one error that the unchanged engine raises at capture would hide all others.
    """
    error = str(finding.detail.get("error", "")).partition(":")[0]
    where = re.sub(r":[0-9]+", "", str(finding.detail.get("where", "")))  # a mutant moves no file
    return " ".join(filter(None, (finding_id(finding.key), error, where)))


def is_start(finding: Finding) -> bool:
    """Whether the engine itself raised before the first step.

    What a kernel's model or a recorder refuses is their verdict on an engine that would go on.
    """
    if finding.oracle != "survival" or finding.step >= 0 or finding.stage not in _STARTING:
        return False
    raised = str(finding.detail.get("error", "")).partition(":")[0]
    return raised not in _names_of(EngineError)


def _names_of(kind: type) -> set[str]:
    return {kind.__name__}.union(*map(_names_of, kind.__subclasses__()))


def found(mutant: Mutant, finding: Finding, cases: int) -> Result:
    """A mutant that a finding gives away."""
    return _result(
        mutant,
        "found",
        cases,
        oracle=finding.oracle,
        clause=finding.clause,
        buffer=finding.buffer,
        said=finding.message[:400],
    )


def _result(mutant: Mutant, outcome: Any, cases: int, **said: str) -> Result:
    seconds = round(time.process_time(), 2)
    return Result(mutant=mutant, outcome=outcome, cases=cases, seconds=seconds, **said)
