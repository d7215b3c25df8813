"""What an oracle says when the law is broken."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

import msgspec

from fuzzgraph.accesses import KernelError

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
    "mismatch", "nan_mismatch", "red_zone_hit", "foreign_write", "stray_access", "race",
    "freed_memory", "broken_contract", "broken_form", "missing", "exception", "device_fault",
    "signal", "hang", "kernel_error",
]  # fmt: skip
"""nan_mismatch: a mismatch that shows only with NaN in the memory that the batch does not own."""
Stage = Literal["open", "warmup", "capture", "prepare", "replay", "eager", "check"]
Severity = Literal["critical", "high", "medium", "low"]
SEVERITIES: dict[Severity, str] = {
    "critical": "memory of others is overwritten, or the engine crashes or hangs",
    "high": "results are wrong",
    "medium": "memory outside the batch is read",
    "low": "metadata is wrong; a kernel that uses it may go wrong",
}
"""Worst first."""
_SEVERITY_OF: dict[Clause, Severity] = {
    "writes": "critical",
    "survives": "critical",  # every request of the process is lost, as if all were overwritten
    "computes": "high",
    "history": "high",
    "reads": "medium",
    "metadata": "low",
}

FindingKey = tuple[str, str, str, str, str]
LineRole = Literal["changed", "called", "raised", "written", "allocated"]
"""What a line has to do with a finding, in the order of what helps most. changed: the change under
test touches it, and it leads to one of the others."""
LINE_ROLES: tuple[LineRole, ...] = get_args(LineRole)


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the engine's own Python."""

    # Relative, without '.' or '..' as a name: it goes into reports that others resolve.
    path: Annotated[
        str, msgspec.Meta(pattern=r"\A(?:(?!\.{1,2}/)[^/\\:\s]+/)*[^/\\:\s]+\.py\Z", max_length=400)
    ]
    """Below the root of the engine's checkout; of a release below the folder of the package."""
    line: Annotated[int, msgspec.Meta(ge=1)]
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}"


class EngineLine(Place, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the engine's own Python that a finding is about."""

    role: LineRole
    does: str
    """What it does, e.g. 'allocates kv_indices'."""
    callers: tuple[Place, ...] = ()
    """The calls of the engine that lead there, the nearest first."""

    @property
    def short(self) -> str:
        """As the message of a finding names it, by the file's last name."""
        return str(self).rpartition("/")[2]


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
    detail: dict[str, str | int | float | list[int]] = {}
    """Machine-readable facts behind the message, e.g. offset, elements, region, allocated_at."""
    lines: tuple[EngineLine, ...] = ()
    """Of the engine, the most telling first; found once, for the shrunk case."""
    kernel_errors: tuple[KernelError, ...] = ()
    """What compute-sanitizer reports of its case, where it was asked (`--sanitizer`)."""
    confirmed: str = ""
    """Rate in fresh sessions, e.g. '3/3'; '' before it was tried."""
    unserved: str = ""
    """Why no server of the engine has the config of its case; told with the rate, '' where one may
    have it."""
    severity: Severity = "low"
    """Computed from the clause; low where only NaN in unowned memory shows it. At least that of its
    `effect` in the detail: what the same step does to live rows, or what reaches them through a
    layer that mixes rows."""

    def __post_init__(self) -> None:
        # 0 * NaN behind a mask is a bug to some engines and none to others
        severity = "low" if self.symptom == "nan_mismatch" else severity_of(self.clause)
        effect = self.detail.get("effect")
        worst = next(each for each in SEVERITIES if each in (severity, effect))
        msgspec.structs.force_setattr(self, "severity", worst)

    @property
    def key(self) -> FindingKey:
        """What makes two findings the same: oracle, clause, target, buffer and step kind.

        A number in a buffer's name does not count: engines keep a buffer for each captured size,
        and a smaller case has smaller sizes. An exception has no buffer; the function that raised
        it takes its place, or the first one of a mode would hide all others.

        What happens before the first step, at warm-up or capture, has no step kind, also where a
        step shows it: a smaller case of what a replay does wrong must not end there.
        """
        mode = self.mode if self.step >= 0 and self.stage != "capture" else ""
        buffer = re.sub(r"\[\d+\]", "[]", self.buffer or self._raised_in)
        return (self.oracle, self.clause, self.target, buffer, mode)

    @property
    def _raised_in(self) -> str:
        """The function that raised, by its name alone: lines move, and a path is long."""
        where = str(self.detail.get("where", "")) if self.symptom == "exception" else ""
        return where.rpartition(" in ")[2]


def severity_of(clause: Clause) -> Severity:
    """How bad it is that the clause is broken."""
    return _SEVERITY_OF[clause]


def by_severity(finding: Finding) -> int:
    """Sort key: the worst severity is 0; equal ones keep their order. What no server can meet comes
    behind all that one can."""
    return list(SEVERITIES).index(finding.severity) + bool(finding.unserved) * len(SEVERITIES)


_PLACE = re.compile(r"(?:\([^()]*\)|,(?! )|[^,])+")
"""One place, of which some have a comma in parentheses; in one walk, for there may be thousands."""
_NAMED_PLACES = 3


def a_few_places(places: str) -> str:
    """Places in memory for a sentence: where there are many, the first ones and how many more.

    >>> a_few_places("a, b (rows of others, or beyond), c, d, e")
    'a, b (rows of others, or beyond), c and 2 more'
    """
    found = [each.removeprefix(" ") for each in _PLACE.findall(places)]
    more = len(found) - _NAMED_PLACES
    if more <= 1:
        return places
    return f"{', '.join(found[:_NAMED_PLACES])} and {more} more"
