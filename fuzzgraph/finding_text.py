"""A finding in one sentence: what a person says who has looked at it for a minute.

The oracle's own message holds every value; this one names the buffer and what happens to it.
"""

from __future__ import annotations

import re

from fuzzgraph.finding import CLAUSES, Finding
from fuzzgraph.format_numbers import counted

__all__ = ["LAW", "law_parts", "place", "seen", "sentence"]

LAW = (
    "A replay of a captured graph reads only what its batch names, writes only what its batch "
    "owns, and computes what attention defines, whatever was replayed before it."
)
_IN_THE_LAW = ("reads", "writes", "computes", "history")
_OWNERS = {"slot": "KV slot", "row": "request row", "state": "state slot"}


def sentence(finding: Finding) -> str:
    """What is wrong, without a full stop."""
    if finding.clause == "survives":
        return _of_end(finding)
    teller = _TELLERS.get(finding.symptom, _of_mismatch)
    return teller(finding)


def law_parts(finding: Finding) -> tuple[str, str, str]:
    """The law before the broken clause, the clause, and the rest; metadata and survival stand
    behind it as clauses of their own."""
    clause = CLAUSES[finding.clause]
    if finding.clause in _IN_THE_LAW:
        before, _, after = LAW.partition(clause)
        return before, clause, after
    if finding.clause == "metadata":
        return f"{LAW} Its ", clause, "."
    return f"{LAW} It ", clause, "."


def place(finding: Finding) -> str:
    """When it happened: 'at step 2 (decode), stage replay'."""
    if finding.step < 0:
        return f"before the first step, stage {finding.stage}"
    return f"at step {finding.step} ({finding.mode}), stage {finding.stage}"


def seen(finding: Finding) -> str:
    """The oracle's message without the step and sizes that open it."""
    return re.sub(r"^(before any step|step -?\d+)( \([^)]*\))?: ", "", finding.message)


def _doer(finding: Finding) -> str:
    mode = finding.mode.replace("_", " ")
    early = {"open": "Opening the engine", "warmup": "Warm-up", "capture": "Capture"}
    if finding.stage in early:
        return early[finding.stage]
    if finding.step < 0:
        return "Warm-up or capture"
    if finding.stage == "eager":
        return f"An eager {mode} step"
    if finding.stage == "prepare":
        return f"Preparing {_one(mode)} replay"
    return f"{_one(mode).capitalize()} replay"


def _one(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _of_red_zone(finding: Finding) -> str:
    count = finding.detail.get("elements", 0)
    amount = counted(count, "element") if isinstance(count, int) and count else "memory"
    side = "before the start" if finding.detail.get("side") == "before" else "past the end"
    return f"{_doer(finding)} writes {amount} {side} of {finding.buffer}"


def _of_foreign_write(finding: Finding) -> str:
    what = _OWNERS.get(str(finding.detail.get("what", "")), "place")
    where = _numbers(what, finding.detail.get("indices"))
    owner = "no batch owns" if finding.step < 0 else "its batch does not own"
    return f"{_doer(finding)} changes {where} of {finding.buffer}, which {owner}"


def _numbers(noun: str, indices: object) -> str:
    if not isinstance(indices, list) or not indices:
        return f"{noun}s"
    shown = ", ".join(map(str, indices[:4]))
    return f"{noun}{'s' * (len(indices) > 1)} {shown}{' and more' if len(indices) > 4 else ''}"


def _of_contract(finding: Finding) -> str:
    told = re.sub(r" \([^()]*\)$", "", seen(finding))  # the source of the rule stays in the message
    return told if finding.buffer in told else f"{finding.buffer}: {told}"


def _of_missing(finding: Finding) -> str:
    return f"{finding.buffer or 'The result'} was promised and is not there"


def _of_end(finding: Finding) -> str:
    ways = {
        "hang": "never comes back",
        "signal": "takes its process down",
        "device_fault": "ends in a device fault",
    }
    how = finding.detail.get("child") or finding.detail.get("error") or seen(finding)
    return f"{_doer(finding)} {ways.get(finding.symptom, 'fails')}: {how}"


def _of_stray_access(finding: Finding) -> str:
    kernel, source = finding.detail.get("kernel", "a kernel"), finding.detail.get("source", "?")
    verb = "reads" if finding.clause == "reads" else "writes"
    return f"{kernel} ({source}) {verb} outside {finding.buffer}"


def _of_race(finding: Finding) -> str:
    kernel, source = finding.detail.get("kernel", "a kernel"), finding.detail.get("source", "?")
    return f"programs of {kernel} ({source}) race for one place of {finding.buffer}"


def _of_mismatch(finding: Finding) -> str:
    teller = _MISMATCHES.get(finding.clause)
    return teller(finding) if teller else f"{finding.buffer}: {seen(finding)}"


def _of_reads(finding: Finding) -> str:
    source = finding.detail.get("blamed", "")
    blamed = f": it reads {source}" if source else ""
    return f"{finding.buffer} depends on memory that its batch does not name{blamed}"


def _of_history(finding: Finding) -> str:
    since = finding.detail.get("kept_from")
    if since is not None:
        return f"{finding.buffer}, handed out at step {since}, is overwritten by a later replay"
    return f"{finding.buffer} depends on what was replayed before"


def _of_computes(finding: Finding) -> str:
    got, want = finding.detail.get("got"), finding.detail.get("want")
    if got is None or want is None:
        return f"{finding.buffer} is wrong: {seen(finding)}"
    index = finding.detail.get("index")
    where = f"[{', '.join(map(str, index))}]" if isinstance(index, list) and index else ""
    told = [f"{value:g}" if isinstance(value, float) else str(value) for value in (got, want)]
    if told[0] == told[1]:
        told = [repr(got), repr(want)]
    whose, truth = _compared(finding)
    return f"{whose}{finding.buffer}{where} is {told[0]} where {truth} {told[1]}"


def _compared(finding: Finding) -> tuple[str, str]:
    """Whose value is wrong, '' for the step's own, and what says so."""
    if finding.oracle != "eager":
        return "", "attention is"
    if finding.stage == "eager":
        return "the eager run's ", "the replay gives"
    return "", "the same engine without a graph gives"


_TELLERS = {
    "red_zone_hit": _of_red_zone,
    "foreign_write": _of_foreign_write,
    "stray_access": _of_stray_access,
    "race": _of_race,
    "broken_contract": _of_contract,
    "broken_form": _of_contract,
    "missing": _of_missing,
}
_MISMATCHES = {"reads": _of_reads, "history": _of_history, "computes": _of_computes}
