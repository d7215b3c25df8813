"""What a finding says, for every place that shows it: terminal, script, issue, page, JUnit, SARIF.

Each finding has one sentence, made here from its record alone. The oracle's own message holds every
value; the sentence names who does what to which buffer.
"""

from __future__ import annotations

import re

from fuzzgraph.finding import CLAUSES, Clause, EngineLine, Finding, Symptom, a_few_places
from fuzzgraph.text.escaping import one_line
from fuzzgraph.text.numbers import bytes_text, counted, plural

LAW = (
    "A replay of a captured graph reads only what its batch names, writes only what its batch "
    "owns, and computes what attention defines, whatever was replayed before it."
)
_IN_THE_LAW = ("reads", "writes", "computes", "history")
_OWNERS = {"slot": "KV slot", "row": "request row", "state": "state slot"}
_INDICES_SHOWN = 4
_ERRORS_SHOWN = 8
LEFT_OVER = " as the previous replay left it"
"""What follows the name of a buffer in the detail `left_over`."""
LEFT_BY_CAPTURE = " as warm-up and capture left it"
"""The same in the message of the first step, before which no step was replayed."""
IN_ITS_STEP = "; the same step also harms live rows: "
BEHIND_A_LAYER = "; it reaches live rows through a layer that mixes rows"
"""What a message goes on with where the finding has an effect on live rows."""
RULES: dict[Clause, str] = {
    "reads": "a replay reads only what its batch names",
    "writes": "a replay writes only what its batch owns",
    "computes": "a replay computes what attention defines",
    "history": "a replay gives the same, whatever was replayed before it",
    "metadata": "metadata and capture tell the truth",
    "survives": "every run comes back with a result",
}
"""Each clause as a sentence of its own, without a full stop."""


def sentence(finding: Finding) -> str:
    """What is wrong, without a full stop: 'A decode replay writes 1 element past the end of x'."""
    if finding.clause == "survives" and finding.symptom != "kernel_error":
        return one_line(_of_end(finding))
    if finding.buffer.startswith("reference:"):
        return one_line(_told(finding))
    return one_line(_WRITERS.get(finding.symptom, _of_mismatch)(finding))


def headline(finding: Finding) -> str:
    """The first line of a finding: its severity and its sentence."""
    return f"FINDING [{finding.severity}] {sentence(finding)}"


def title(finding: Finding) -> str:
    """A short heading without values: 'Wrong metadata: page_table in a decode replay'."""
    kind = _KINDS.get(finding.symptom) or _KINDS_OF_CLAUSE[finding.clause]
    if "kept_from" in finding.detail:
        kind = "Result overwritten later"
    named = f": {finding.buffer}" if finding.buffer else ""
    during = _during(finding)
    return one_line(f"{kind}{named} {during[0].lower()}{during[1:]}")


def law(finding: Finding) -> str:
    """The law, and the clause of it that was broken."""
    return (
        f"The law: {LAW[0].lower()}{LAW[1:]} "
        f"Broken here: {CLAUSES[finding.clause]} (clause {finding.clause!r})."
    )


def law_parts(finding: Finding) -> tuple[str, str, str]:
    """The law before the broken clause, the clause, and the rest.

    Metadata and survival are not in the law's sentence and follow it.
    """
    clause = CLAUSES[finding.clause]
    if finding.clause in _IN_THE_LAW:
        before, _, after = LAW.partition(clause)
        return before, clause, after
    return f"{LAW} {'Its' if finding.clause == 'metadata' else 'It'} ", clause, "."


def rule(finding: Finding) -> str:
    """The broken clause as a sentence of its own, without a full stop."""
    return RULES[finding.clause]


def buffer_text(finding: Finding) -> str:
    """The engine's buffer and the line that allocated it; '' where the message or nobody has it."""
    line = str(finding.detail.get("allocated_at", ""))
    if line in finding.message or any(one.role == "allocated" for one in finding.lines):
        return ""
    name = finding.detail.get("engine_buffer") or finding.detail.get("too_small") or finding.buffer
    return f"{name}, allocated at {line}" if line else ""


def place(finding: Finding) -> str:
    """When it happened: 'at step 2 (decode), stage replay'."""
    if finding.step < 0:
        return f"before the first step, stage {finding.stage}"
    return f"at step {finding.step} ({finding.mode}), stage {finding.stage}"


def confirmation(finding: Finding) -> str:
    """How often it shows: 'shows in 3 of 3 fresh sessions'; '' before it was tried. Where no
    server has the config, why not is a part of it."""
    if not finding.confirmed:
        return ""
    hits, _, times = finding.confirmed.partition("/")
    flaky = "" if hits == times else "FLAKY, "
    said = f"{flaky}shows in {hits} of {times} fresh sessions"
    return f"{said}, with {unserved_text(finding)}" if finding.unserved else said


def unserved_text(finding: Finding) -> str:
    """Why no server can meet it: 'a config that no server has: ...'; '' where one may."""
    return f"a config that no server has: {finding.unserved}" if finding.unserved else ""


def observed(finding: Finding) -> str:
    """The oracle's message without the step and sizes that open it, and without the effect."""
    return with_paths(_said(finding), finding)


def effect_text(finding: Finding) -> str:
    """What it does to live rows: 'the same step also harms live rows: ...'; '' where nothing is
    known of that."""
    return with_paths(_parts(finding)[1], finding)


def _said(finding: Finding) -> str:
    return _parts(finding)[0]


def _parts(finding: Finding) -> tuple[str, str]:
    """The oracle's message, and the effect that was added to it."""
    said = re.sub(r"^(before any step|step -?\d+)( \([^)]*\))?: ", "", finding.message)
    for mark in (IN_ITS_STEP, BEHIND_A_LAYER):
        told, found, effect = said.partition(mark)
        if found and "effect" in finding.detail:
            return told, f"{mark.removeprefix('; ')}{effect}"
    return said, ""


def with_paths(text: str, finding: Finding) -> str:
    """A text of the finding in which the engine's known lines have their whole paths."""
    for short, line in {one.short: one for one in finding.lines}.items():
        # Not within a path or a longer name.
        parts = re.split(rf"(?<![\w./-]){re.escape(short)}(?!\w)", text)
        text = str(line).join(parts)
    return text


def line_text(line: EngineLine) -> str:
    """What a line of the engine does: 'a.py:5 in f allocates kv_indices'."""
    return f"{line} {line.does}"


def untold_lines(finding: Finding) -> list[EngineLine]:
    """The engine's lines that its message does not name; of equal ones the first."""
    told = with_paths(finding.message, finding)
    lines = {str(line): line for line in reversed(finding.lines)}
    return [line for line in finding.lines if str(line) not in told and lines[str(line)] is line]


def unguarded_text(finding: Finding) -> str:
    """How much memory of a device was outside of the guard; '' for none that is known."""
    count = finding.detail.get("unguarded", 0)
    if not isinstance(count, int) or not count:
        return ""
    return (
        f"{bytes_text(count)} that the engine asked for by compiled code or within steps lie"
        " outside of guarded memory, where an overrun hits no red zone"
    )


def kernel_error_lines(finding: Finding) -> list[str]:
    """What compute-sanitizer reports of its case, one line each; none where the finding is that."""
    if finding.symptom == "kernel_error":
        return []
    lines = [f"{error.tool}: {error}" for error in finding.kernel_errors[:_ERRORS_SHOWN]]
    more = len(finding.kernel_errors) - len(lines)
    return [*lines, f"and {counted(more, 'other line')}"] if more else lines


def _doer(finding: Finding) -> str:
    """The subject of a sentence."""
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


def _during(finding: Finding) -> str:
    """The same as an adverbial: 'In a decode replay'."""
    doer = _doer(finding)
    if doer.startswith(("Opening", "Preparing")):
        return f"While {doer[0].lower()}{doer[1:]}"
    if doer.startswith(("Warm-up", "Capture")):
        return f"At {doer.lower()}"
    return f"In {doer[0].lower()}{doer[1:]}"


def _one(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _of_red_zone(finding: Finding) -> str:
    count = finding.detail.get("elements", 0)
    amount = counted(count, "element") if isinstance(count, int) and count else "memory"
    side = "before the start" if finding.detail.get("side") == "before" else "past the end"
    return f"{_doer(finding)} writes {amount} {side} of {finding.buffer}"


def _of_foreign_write(finding: Finding) -> str:
    owner = "no batch owns" if finding.step < 0 else "its batch does not own"
    return f"{_doer(finding)} changes {_places(finding)} of {finding.buffer}, which {owner}"


def _places(finding: Finding) -> str:
    """The slots, rows or states of a finding: 'KV slots 3, 4'."""
    noun = _OWNERS.get(str(finding.detail.get("what", "")), "entry")
    indices = finding.detail.get("indices")
    if not isinstance(indices, list) or not indices:
        return f"some {plural(noun)}"
    shown = ", ".join(map(str, indices[:_INDICES_SHOWN]))
    more = " and more" if len(indices) > _INDICES_SHOWN else ""
    return f"{noun if len(indices) == 1 else plural(noun)} {shown}{more}"


def _of_contract(finding: Finding) -> str:
    return f"{_during(finding)}, {_told(finding)}"


def _told(finding: Finding) -> str:
    """What was observed, naming the buffer; the source of a rule stays in the message."""
    told = re.sub(r" \([^()]*\)$", "", _said(finding))
    return told if finding.buffer in told else f"{finding.buffer}: {told}"


def _of_missing(finding: Finding) -> str:
    return f"{_doer(finding)} does not return {finding.buffer or 'a result'}"


def _of_end(finding: Finding) -> str:
    ways = {
        "hang": "never comes back",
        "signal": "kills the engine's process",
        "device_fault": "ends in a device fault",
        "missing": "does not return a result",
    }
    how = finding.detail.get("child") or finding.detail.get("error") or _said(finding)
    small = finding.detail.get("too_small", "")
    blamed = f" ({small} is too small)" if small else ""
    return f"{_doer(finding)} {ways.get(finding.symptom, 'fails')}{blamed}: {how}"


def _kernel(finding: Finding) -> str:
    kernel, source = finding.detail.get("kernel", "a kernel"), finding.detail.get("source", "?")
    return f"{kernel} ({source})"


def _of_stray_access(finding: Finding) -> str:
    verb = "reads" if finding.clause == "reads" else "writes"
    return f"{_during(finding)}, {_kernel(finding)} {verb} outside {finding.buffer}"


def _of_freed_memory(finding: Finding) -> str:
    verb = "reads" if finding.clause == "reads" else "writes"
    return (
        f"{_doer(finding)} {verb} {finding.buffer}, which its graph was captured with and which"
        " nothing holds any more"
    )


def _of_race(finding: Finding) -> str:
    return (
        f"{_during(finding)}, programs of {_kernel(finding)} race for one element of"
        f" {finding.buffer}"
    )


def _of_kernel_error(finding: Finding) -> str:
    tool = finding.kernel_errors[0].tool if finding.kernel_errors else "compute-sanitizer"
    return f"{_during(finding)}, {tool} reports {finding.buffer}"


def _of_mismatch(finding: Finding) -> str:
    writer = _MISMATCHES.get(finding.clause)
    return writer(finding) if writer else _of_contract(finding)


def _of_reads(finding: Finding) -> str:
    if copied := finding.detail.get("copied_at"):
        return (
            f"{_during(finding)}, {finding.buffer} may come from the next step: pinned memory is"
            f" rewritten before the copy out of it, given at {copied}, need have run"
        )
    if side_work := finding.detail.get("side_work_at"):
        return (
            f"{_during(finding)}, {finding.buffer} depends on the order of streams that do not wait"
            f" for each other: a side stream is given work at {side_work}"
        )
    if arrives := finding.detail.get("arrives_at"):
        return (
            f"{_during(finding)}, {finding.buffer} may come from what memory of the host held"
            f" before: it is read before the copy into it, given at {arrives}, need have run"
        )
    source = str(finding.detail.get("blamed", ""))
    blamed = f": it reads {a_few_places(source)}" if source else ""
    return (
        f"{_during(finding)}, {finding.buffer} depends on memory that its batch does not name"
        f"{blamed}"
    )


def _of_history(finding: Finding) -> str:
    since = finding.detail.get("kept_from")
    if since is not None:
        return f"{_doer(finding)} overwrites {finding.buffer}, which step {since} handed out"
    source = str(finding.detail.get("left_over", "")).removesuffix(LEFT_OVER)
    if source == finding.buffer:
        return f"{_during(finding)}, {source} is not rewritten for this batch"
    first = finding.step == 0  # no step was replayed before it
    left = "what warm-up and capture left behind" if first else "what was replayed before"
    if source:
        past = "warm-up and capture" if first else "the previous replay"
        left = f"what {past} left in {source}"
    return f"{_during(finding)}, {finding.buffer} depends on {left}"


def _of_computes(finding: Finding) -> str:
    got, want = finding.detail.get("got"), finding.detail.get("want")
    if finding.detail.get("indices"):
        return f"{_doer(finding)} writes wrong values to {_places(finding)} of {finding.buffer}"
    if got is None or want is None:
        return f"{_doer(finding)} computes a wrong {finding.buffer}: {_said(finding)}"
    index = finding.detail.get("index")
    where = f"[{', '.join(map(str, index))}]" if isinstance(index, list) and index else ""
    values = [f"{value:g}" if isinstance(value, float) else str(value) for value in (got, want)]
    if values[0] == values[1]:  # they differ in the last bits only: show all digits
        values = [repr(got), repr(want)]
    return (
        f"{_doer(finding)} computes {finding.buffer}{where} = {values[0]}; {_truth(finding)}"
        f" {values[1]}"
    )


def _truth(finding: Finding) -> str:
    """What the value was compared with."""
    if finding.oracle != "eager":
        return "float64 attention gives"
    if finding.stage == "eager":
        return "the replay, which float64 attention confirms, gives"
    return "the same engine without a graph gives"


_WRITERS = {
    "red_zone_hit": _of_red_zone,
    "foreign_write": _of_foreign_write,
    "stray_access": _of_stray_access,
    "race": _of_race,
    "freed_memory": _of_freed_memory,
    "kernel_error": _of_kernel_error,
    "broken_contract": _of_contract,
    "broken_form": _of_contract,
    "missing": _of_missing,
}
_MISMATCHES = {"reads": _of_reads, "history": _of_history, "computes": _of_computes}

_KINDS: dict[Symptom, str] = {
    "red_zone_hit": "Write out of bounds",
    "foreign_write": "Write to memory of others",
    "stray_access": "Access out of bounds",
    "race": "Race",
    "freed_memory": "Use of freed memory",
    "kernel_error": "Error of a compiled kernel",
    "missing": "Missing result",
    "exception": "Exception",
    "device_fault": "Device fault",
    "signal": "Death of the engine's process",
    "hang": "Hang",
}
_KINDS_OF_CLAUSE: dict[Clause, str] = {
    "reads": "Dependence on memory of others",
    "writes": "Wrong write",
    "computes": "Wrong result",
    "history": "Dependence on the past",
    "metadata": "Wrong metadata",
    "survives": "Failure",
}
