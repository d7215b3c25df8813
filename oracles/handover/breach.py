"""What the rules of handing over find, and the two runs that they compare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fuzzgraph.finding import Stage
from fuzzgraph.handover import HandoverRule, Part
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.rules import handover as rules


class Breach(NamedTuple):
    """One rule that one name breaks."""

    rule: HandoverRule
    name: str
    message: str
    stage: Stage | None = None
    address: int = 0
    """Of the tensor that is wrong; 0 where the breach is of another kind."""


class Pair(NamedTuple):
    """A replay and what it is held against."""

    step: StepRecord
    replay: Observation
    other: Observation
    called: str
    """What a message calls the other run."""
    plans: frozenset[int] = frozenset()
    """Where plans of kernels lie, which no rule compares entry by entry."""

    def plans_in(self, *parts: Part) -> bool:
        """Whether one of them is a plan, by whatever name it was handed over."""
        return any(part.address in self.plans for part in parts)


def missing_in(name: str, pair: Pair) -> Iterator[Breach]:
    for message in rules.is_there(name, False, other=pair.called):
        yield Breach("missing", name, message)
