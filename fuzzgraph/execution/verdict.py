"""The outcome of one case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fuzzgraph.case import Case
from fuzzgraph.finding import Finding


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of a case and what was run of it.

    `findings` are those of the first step that has any, the most telling first. Later steps are
    not run: they start from what that step left behind and would only repeat it. What a kernel was
    given wrongly while the engine opened comes behind them.
    """

    case: Case
    target: str
    findings: tuple[Finding, ...] = ()
    steps: int = 0
    """Steps that were run."""
    skipped: str = ""
    """Why the target cannot express the case; '' if it ran."""
    nondeterministic: bool = False
    """Whether the engine differed from itself in the same world."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Triton kernel and reason -> launches that Triton's own interpreter ran, not the lanes."""
    unchecked: Mapping[str, int] = field(default_factory=dict)
    """Why accesses and races of Triton kernels were not checked -> launches."""
    unguarded: Mapping[str, int] = field(default_factory=dict)
    """Stage -> bytes that a device's allocator handed out in it and no guard covers."""
    late_copies: Mapping[str, int] = field(default_factory=dict)
    """Line of the engine -> copies from or to pinned memory, and work of side streams, that it gave
    and that ran late; empty unless `--overlap` was asked for."""
    unrepeatable: int = 0
    """Steps whose late work was not judged: the step did not repeat itself."""
    branches: frozenset[str] = frozenset()
    """Branches of the engine that the case took; empty unless they are traced."""
