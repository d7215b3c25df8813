"""What an oracle says when the law is broken."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["CLAUSES", "Clause", "Finding", "FindingKey", "Severity", "Stage", "Symptom"]

Clause = Literal["reads", "writes", "computes", "history", "metadata", "survives"]
CLAUSES: dict[Clause, str] = {
    "reads": "reads only what its batch names",
    "writes": "writes only what its batch owns",
    "computes": "computes what attention defines",
    "history": "whatever was replayed before it",
    "metadata": "metadata and capture tell the truth",
    "survives": "comes back",
}
"""The law, clause by clause: a replay of a captured graph ..."""

Symptom = Literal[
    "mismatch", "red_zone_hit", "foreign_write", "stray_access", "race", "broken_contract",
    "broken_form", "missing", "exception", "device_fault", "signal", "hang",
]  # fmt: skip
Stage = Literal["open", "warmup", "capture", "prepare", "replay", "eager", "check"]
Severity = Literal["error", "nan"]

FindingKey = tuple[str, str, str, str, str]


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One broken clause: where, what was expected and what was seen."""

    oracle: str
    clause: Clause
    target: str
    step: int
    """Index of the step; -1 for what happened before the first one."""
    mode: str
    buffer: str
    """Name of the buffer, field or output that shows it; '' where none can be named."""
    symptom: Symptom
    stage: Stage
    message: str
    """One sentence with the values: what was expected, what was seen, where."""
    severity: Severity = "error"
    detail: dict[str, str | int | float | list[int]] = {}
    """Machine-readable facts behind the message, e.g. offset, elements, region, allocated_at."""
    confirmed: str = ""
    """Rate in fresh sessions, e.g. '3/3'; '' before it was tried."""

    @property
    def key(self) -> FindingKey:
        """What makes two findings the same: oracle, clause, target, buffer and step kind.

        What happens before the first step, at warm-up or capture, has no step kind.
        """
        mode = self.mode if self.step >= 0 else ""
        return (self.oracle, self.clause, self.target, self.buffer, mode)
