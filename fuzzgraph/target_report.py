"""What checking a target came to: one record, printed by `fuzzgraph check-target`."""

from __future__ import annotations

import msgspec


class HiddenTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that captured work reads and that no field declares."""

    name: str
    """What the engine calls it; '' where no root leads to it."""
    dtype: str
    shape: tuple[int, ...]
    allocated_at: str
    """Source line; '' for memory outside the guard."""
    changes: bool
    """Whether it differs between capture and the end of a case."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds, medians over all cases."""

    open_ms: float = 0.0
    """Everything up to the first step, capture included."""
    capture_ms: float = 0.0
    step_ms: float = 0.0
    """`prepare_replay` and `replay`."""
    judged_step_ms: float = 0.0
    """A step with all the runs that the oracles ask for."""


class TargetReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a target on some healthy cases."""

    target: str
    cases: int = 0
    """That were run, each twice in fresh sessions."""
    steps: int = 0
    skipped: dict[str, int] = {}
    """Why the target could not run cases -> how many."""
    graphs: int = 0
    """Captured in all; 0 where the target captures none."""
    seen: bool = True
    """Whether the graph engine tells which memory captured work reads: the recorder does."""
    outputs: dict[str, tuple[str, ...]] = {}
    """Mode -> outputs that are promised, and so compared with the truth."""
    shown: tuple[str, ...] = ()
    """Declared fields that a run showed."""
    never_shown: tuple[str, ...] = ()
    unshown: dict[str, tuple[str, ...]] = {}
    """Dimension that cases drove -> names of the input that carries it, none of which was seen."""
    excuses: dict[str, int] = {}
    """Excuse from a rule of handing over -> steps that needed it."""
    hidden: tuple[HiddenTensor, ...] = ()
    findings: tuple[str, ...] = ()
    """Messages; a healthy engine behind a correct target has none."""
    unstable: tuple[str, ...] = ()
    """What differed between two runs of one case, one line each."""
    untouched: tuple[str, ...] = ()
    """Pools that no captured work touches although outputs are promised: copies, perhaps."""
    ended: str = ""
    """How the engine's process ended; '' where it came back."""
    cost: Cost = Cost()
    problems: tuple[str, ...] = ()
    """Computed: what speaks against believing this target, one line each."""
    exit_code: int = 0
    """Computed: 1 where there are problems."""

    def __post_init__(self) -> None:
        problems = tuple(self._problems())
        msgspec.structs.force_setattr(self, "problems", problems)
        msgspec.structs.force_setattr(self, "exit_code", int(bool(problems)))

    def _problems(self) -> list[str]:
        found = [f"finding: {message}" for message in self.findings]
        found += [f"differs from itself: {line}" for line in self.unstable]
        found += [
            f"{name} is touched by no captured work: hand over the engine's own memory, not a copy"
            for name in self.untouched
        ]
        found += [
            f"{name} is driven and nothing shows {' or '.join(inputs)}: show it, or take it out of"
            " the capabilities"
            for name, inputs in self.unshown.items()
        ]
        if self.ended:
            found.append(f"the engine's process {self.ended}")
        elif not self.cases:
            found.append("no case could be run")
        elif not self.shown and not any(self.outputs.values()):
            found.append("shows neither outputs nor fields, so that nothing is judged")
        return found
