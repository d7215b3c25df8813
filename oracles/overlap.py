"""Clause "reads only what its batch names": not what the host prepares for the next one, nor memory
of the host into which a copy has not arrived."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.oracles.history import judged_difference
from fuzzgraph.rules.comparison import Difference


class Overlap:
    """A step gives the same when copies from and to pinned memory run as late as CUDA allows.

    Compared as `history` compares: bit for bit live outputs, used metadata, and of the padded tail
    what selects memory.
    """

    name = "overlap"
    clause: Clause = "reads"
    needs: frozenset[RunKind] = frozenset({"replay", "ahead"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        replay, ahead = step.runs.get("replay"), step.runs.get("ahead")
        if replay is None or ahead is None or step.nondeterministic:
            return
        for kind in ("metadata", "outputs"):
            late, in_time = getattr(ahead, kind), getattr(replay, kind)
            for name, value in in_time.items():
                worst = judged_difference(step, name, late[name], value, replay)
                if worst is not None:
                    yield self._finding(step, name, worst, kind)

    def _finding(self, step: StepRecord, buffer: str, worst: Difference, kind: str) -> Finding:
        detail: dict[str, Any] = {"rows": "live"} if kind == "outputs" else {}
        told = []
        # On a device each may be the reason, and all are told.
        for name, lines, happened in (
            ("copied_at", step.rewritten, "pinned memory was rewritten before the copy out of it"),
            ("arrives_at", step.unarrived, "pinned memory was read before the copy into it"),
            ("side_work_at", step.unordered, "memory was used before a side stream's work on it"),
        ):
            if lines:
                detail[name] = ", ".join(lines)
                told.append(f"{happened} need have run, given at {detail[name]}")
        return claim(
            step,
            self.name,
            self.clause,
            buffer=buffer,
            symptom="mismatch",
            message=f"{buffer}{worst} where work runs late: {', or '.join(told)}",
            index=list(worst.index),
            **detail,
        )
