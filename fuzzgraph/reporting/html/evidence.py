"""Expected against got, side by side, from what the oracle kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuzzgraph.finding import Finding
from fuzzgraph.text.finding_text import kernel_error_lines, observed


@dataclass(frozen=True, slots=True)
class Evidence:
    expected: str
    got: str
    facts: tuple[tuple[str, str], ...]
    """What else was measured: name and value."""


_FACTS = {
    "engine_buffer": "engine's buffer",
    "allocated_at": "allocated at",
    "where": "raised at",
    "kernel": "kernel",
    "source": "kernel line",
    "blamed": "read from",
    "payload": "elements of the buffer",
    "elements": "elements changed outside",
    "index": "first differing element",
    "count": "elements that differ",
    "run": "in the run",
    "device_error": "device error",
    "exit": "exit",
    "log": "log of the engine",
    "unguarded": "bytes outside of guarded memory",
}
_UNTOUCHED = {
    "red_zone_hit": "red zones unchanged",
    "stray_access": "every access inside what the kernel was passed",
    "kernel_error": "no error of a kernel",
    "race": "no place that one program writes and another touches",
    "freed_memory": "every buffer of a graph held for as long as the graph is replayed",
    "foreign_write": "every slot, row and state outside the batch's own keeps its bytes",
}
_UNDISTURBED = {
    "reads": "the same result, whatever memory outside the batch holds",
    "history": "what the same step gives straight after capture",
    "survives": "the step comes back with an observation",
    "metadata": "what the batch says",
    "computes": "what attention defines",
    "writes": "only memory of the batch is written",
}
_SPLITS = (
    r"(?P<got>.+ is .+), must be (?P<expected>.+)",
    r".*? must (?P<expected>(?:hold|start at) .+); got (?P<got>.+)",
    r"(?P<place>.*?): got (?P<got>\S+), expected (?P<expected>\S+)(?P<rest>.*)",
)


def evidence(finding: Finding) -> Evidence:
    """The two sides of a finding; every one has both."""
    expected, got = _sides(finding)
    lines = {f"{line.role} at": str(line) for line in finding.lines}
    facts = [
        (name, _plain(finding.detail[key]))
        for key, name in _FACTS.items()
        if key in finding.detail and name not in lines
    ]
    facts += lines.items()
    facts += [("compute-sanitizer", line) for line in kernel_error_lines(finding)]
    rule, _, source = expected.partition(" (") if expected.endswith(")") else (expected, "", "")
    if source:
        facts.append(("promised by", source.removesuffix(")")))
    return Evidence(rule, got, tuple(facts))


def _sides(finding: Finding) -> tuple[str, str]:
    if finding.symptom in _UNTOUCHED:
        return _UNTOUCHED[finding.symptom], _written(finding)
    if "want" in finding.detail and "got" in finding.detail:
        return _apart(finding.detail["want"], finding.detail["got"])
    message = observed(finding)
    for pattern in _SPLITS:
        if (match := re.fullmatch(pattern, message)) is not None:
            return match["expected"], match["got"]
    if finding.symptom == "missing":
        return f"{finding.buffer or 'a result'}, as promised", "nothing"
    return _UNDISTURBED[finding.clause], str(finding.detail.get("error") or message)


def _apart(want: object, got: object) -> tuple[str, str]:
    """Both, with as many digits as it takes to tell them apart."""
    short = _plain(want), _plain(got)
    return short if short[0] != short[1] else (repr(want), repr(got))


def _written(finding: Finding) -> str:
    found = str(finding.detail.get("found", ""))
    if not found:
        return observed(finding)
    offset, reach = finding.detail.get("offset"), finding.detail.get("reach")
    place = f"at {offset:+d}" if offset == reach else f"from {offset:+d} to {reach:+d}"
    values = ", ".join(found.split())
    more = ", …" if finding.detail.get("elements", 0) != len(found.split()) else ""
    return f"{values}{more} {place}"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
