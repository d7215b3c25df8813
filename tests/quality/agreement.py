"""Runs cases on the recorder and on the emulated device, and compares the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from msgspec.structs import replace

from fuzzgraph.case import Case
from fuzzgraph.execution import Execution
from fuzzgraph.finding import FindingKey
from fuzzgraph.ports import Target
from fuzzgraph.run.spec import DEFAULT_SETUP, Graphs, Setup
from fuzzgraph.strategies import DEFAULT, cases, draw

_KINDS: tuple[Graphs, Graphs] = ("recorder", "emulated")
Seen = tuple[frozenset[FindingKey], int, str, bool]
"""Keys of the findings, steps that ran, why the case was skipped, whether a step differed from its
own repeat."""


@dataclass
class Agreement:
    """The verdicts of one target on some cases."""

    cases: int = 0
    accused: int = 0
    """Cases with a finding, on either of the two."""
    different: list[tuple[Case, Seen, Seen]] = field(default_factory=list)
    """With what the recorder and what the emulated device gave."""

    def compare(self, case: Case, one: Seen, two: Seen) -> None:
        """Count a case."""
        self.cases += 1
        self.accused += bool(one[0] or two[0])
        if one != two:
            self.different.append((case, one, two))


def both(
    open_it: Callable[[], Target], case: Case, setup: Setup = DEFAULT_SETUP
) -> tuple[Seen, Seen]:
    """What the recorder and what the emulated device give on one case, in fresh sessions."""
    seen = []
    for kind in _KINDS:
        with closing(Execution(open_it(), replace(setup, graphs=kind))) as execution:
            seen.append(_seen(execution, case))
    return seen[0], seen[1]


def on_drawn_cases(open_it: Callable[[], Target], seed: int, examples: int) -> Agreement:
    """The verdicts on drawn cases."""
    drawn: list[Case] = []
    agreement = Agreement()
    recorder, emulated = (Execution(open_it(), Setup(graphs=kind)) for kind in _KINDS)
    draw(cases(recorder.target.capabilities, DEFAULT), seed, examples, drawn.append)
    with closing(recorder), closing(emulated):
        for case in drawn:
            agreement.compare(case, _seen(recorder, case), _seen(emulated, case))
    return agreement


def _seen(execution: Execution, case: Case) -> Seen:
    verdict = execution.run_case(case)
    keys = frozenset(finding.key for finding in verdict.findings)
    return keys, verdict.steps, verdict.skipped, verdict.nondeterministic
