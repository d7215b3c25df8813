"""What a planted fault is: a small patch on the healthy engine, and its model in the wild."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from fuzzgraph.finding import Clause
from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.metadata.builder import BuilderComponents
from fuzzgraph.targets.builtin.overlap import Overlap

Kind = Literal[
    "padded row stale",
    "stale plan",
    "reallocated buffer",
    "freed memory",
    "baked scalar",
    "undersized buffer",
    "length edge",
    "sentinel or null slot",
    "metadata upgrade missing",
    "metadata built before padding",
    "spec-decode shape",
    "capture and replay disagree",
    "order",
    "narrow integer",
    "recurrent state",
    "local counts",
    "uninitialised memory",
    "encoder-decoder",
    "empty batch",
    "aliased outputs",
    "page granularity",
    "sliding window",
    "wrong graph dispatched",
    "graph runtime",
    "shape or dtype",
    "padded outputs",
    "KV cache groups",
    "late copies",
    "stream order",
]
"""Classes of historical bugs; every one has a fault."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which graph replay of attention has gone wrong in a serving engine."""

    name: str
    """Project and thread it is modelled on, then what it does."""
    source: str
    """Thread, and what was wrong there."""
    kind: Kind
    clause: Clause
    """Clause of the law that the original broke."""
    trigger: str
    """What a case must contain for the fault to act."""
    components: Components
    """The engine with the fault in it."""
    overlap: Overlap = ""
    """Of the healthy engine that it is planted in; where there is some, it shows with `--overlap`
    alone."""
    recorded: bool = False
    """Whether only a recorded graph shows it."""
    checked: bool = False
    """Whether only kernels show it whose accesses are checked: those that a CPU interprets."""
    needs: str = ""
    """Why the trigger takes more than three steps or requests; '' where it does not."""


def engine(**changes: Any) -> Components:
    """The engine with some of its classes replaced."""
    return replace(Components(), **changes)


def metadata(**changes: Any) -> Components:
    """The engine with some classes of its metadata builders replaced."""
    return replace(Components(), builder_components=replace(BuilderComponents(), **changes))
