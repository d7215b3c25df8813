"""Clause "reads only what its batch names": two worlds, one result; and no stray loads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fuzzgraph.finding import Clause, Finding, a_few_places
from fuzzgraph.observation import RunKind, StepRecord
from fuzzgraph.oracles.claims import claim, freed, stray
from fuzzgraph.oracles.reference import too_far_apart
from fuzzgraph.rules.comparison import Difference, first_difference


class NonInterference:
    """Outputs and used metadata, padded rows included, do not depend on don't-care memory.

    No tolerance, except where the engine differs from itself in the same world: then the
    yardstick judges live outputs only.

    Where kernels are checked access by access, a load outside of what the kernel was passed is a
    finding too, whether or not it changes a result. So is a recorded graph's read of a buffer that
    the engine has let go of.
    """

    name = "noninterference"
    clause: Clause = "reads"
    needs: frozenset[RunKind] = frozenset({"replay", "screen", "other_world"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for access in step.accesses:
            if access.kind == "read":
                yield stray(step, self.name, self.clause, access)
        for use in step.freed_uses:
            if use.kind == "read":
                yield freed(step, self.name, self.clause, use)
        replay, other = step.runs.get("replay"), step.runs.get("other_world")
        if replay is None or other is None:
            return
        for kind in ("outputs",) if step.nondeterministic else ("metadata", "outputs"):
            first, second = getattr(replay, kind), getattr(other, kind)
            for name in {**first, **second}:
                if name not in first or name not in second:
                    yield self._finding(step, name, f"{name} appears in one world only", None)
                elif worst := self._compare(step, name, second[name], first[name]):
                    text = f"{name}{worst} once memory that the batch does not own was changed"
                    rows = _rows(step, name, second[name], first[name])
                    yield self._finding(step, name, text, worst, **rows)

    def _compare(
        self, step: StepRecord, name: str, got: torch.Tensor, want: torch.Tensor
    ) -> Difference | None:
        if not step.nondeterministic:
            return first_difference(got, want)
        if name not in step.expected:
            return None
        rows = len(step.expected[name])
        return too_far_apart(step, name, got[:rows], want[:rows])

    def _finding(
        self, step: StepRecord, name: str, text: str, worst: Difference | None, rows: str = ""
    ) -> Finding:
        blamed = step.blamed.get(("other_world", name), "")
        read = (
            f"read from: {a_few_places(blamed)}" if blamed else "which memory was read is unknown"
        )
        known: dict[str, Any] = {"blamed": blamed} if blamed else {}
        known |= {"rows": rows} if rows else {}
        alone = "; padded rows alone show it" if rows == "padded" else ""
        return claim(
            step,
            self.name,
            self.clause,
            buffer=name,
            symptom="nan_mismatch" if step.nan_world else "mismatch",
            message=f"{text}; {read}{alone}",
            index=list(worst.index) if worst else [],
            **known,
        )


def _rows(step: StepRecord, name: str, got: torch.Tensor, want: torch.Tensor) -> dict[str, str]:
    """Which rows of an output differ, where the step says which of them are live."""
    if name not in step.expected:
        return {}
    live = len(step.expected[name])
    differs = first_difference(got[:live], want[:live]) is not None
    return {"rows": "live" if differs else "padded"}
