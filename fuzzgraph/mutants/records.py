"""What is asked, what is changed and what came of it: plain records, also as lines of a log."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from fuzzgraph.run.spec import Setup

Outcome = Literal["found", "survived", "does_not_start", "failed"]
"""failed: the target's or FuzzGraph's own code failed over the change, which finds nothing."""
Verdict = Literal["equivalent", "unreachable", "hole", "unjudged"]
"""Of a survivor: it behaves alike in all that a caller may rely on; no case that the target can
draw shows it; a case may show it and nobody looks; nobody has judged it."""


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Tagged with its class name; an unknown field or tag is refused."""


class Sought(_Record, frozen=True):
    """What is asked of one measurement; the first line of its log."""

    setup: Setup
    seed: int
    sample: int
    """Mutants to run that start."""
    seconds: float
    """Processor seconds for each."""
    operators: tuple[str, ...] = ()
    """() for all."""
    modules: tuple[str, ...] = ()
    """Packages and modules of the engine in which lines are changed; () for all."""
    fuzzgraph: str = ""
    """Version that began the log."""


class Ground(_Record, frozen=True):
    """What the unchanged engine gave: the ground on which mutants are judged."""

    lines: int
    """Of the engine's functions, executed while it captured and prepared replays."""
    candidates: int
    """One-line changes of these lines."""
    traced_cases: int
    cases: int
    """That the unchanged engine ran; mutants run the same ones, in this order."""
    seconds: float
    """Processor seconds that it took for them."""
    findings: tuple[str, ...] = ()
    """Ids of what it showed: no mutant is found by these in a case that showed them."""
    tried: int = 0
    """Of the drawn cases, the first so many; in those behind, `findings` find no mutant at all."""
    shown_by: dict[str, tuple[int, ...]] = {}
    """Id of each finding -> numbers of the cases that showed it."""
    shown: tuple[str, ...] = ()
    """The same for a reader, one line each."""
    engine_version: str = ""
    executed: dict[str, tuple[int, ...]] = {}
    """Module -> the lines; a resumed measurement draws from the same ones."""


class Mutant(_Record, frozen=True):
    """One change of one line."""

    id: str
    module: str
    function: str
    """Qualified name within the module."""
    line: int
    operator: str
    before: str
    """The line, or the lines of the statement, without common indentation."""
    after: str


class Result(_Record, frozen=True):
    """What became of one mutant."""

    mutant: Mutant
    outcome: Outcome
    cases: int = 0
    """Until it was found, or in all."""
    seconds: float = 0.0
    """Processor seconds."""
    oracle: str = ""
    clause: str = ""
    buffer: str = ""
    said: str = ""
    """Message of the finding, or why it does not start or failed."""


class Done(_Record, frozen=True):
    """Nothing is left to run for this sample: enough have started, or there are no more."""

    sample: int


LogLine: TypeAlias = Sought | Ground | Result | Done


class Judgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says of a survivor."""

    judgement: Verdict = "unjudged"
    dimension: str = ""
    """Of an unreachable one: what cases would have to vary."""
    why: str = ""
    mutant: str = ""
    """Where it is, for the reader; not read back."""
