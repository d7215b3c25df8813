"""A gate as text: for the terminal, for the comment on a pull request, and as SARIF."""

from __future__ import annotations

from typing import Any

from fuzzgraph.gate.records import CUT, GateSummary, GateTarget, MendedFinding, StandingFinding
from fuzzgraph.reporting.causes import causes
from fuzzgraph.reporting.markdown import LONGEST
from fuzzgraph.reporting.sarif import SCHEMA, sarif
from fuzzgraph.reporting.summary_text import cause_text, findings_texts
from fuzzgraph.run.events import ReportedFinding
from fuzzgraph.run.identity import identity_words
from fuzzgraph.text.escaping import code_block, code_span, one_line
from fuzzgraph.text.escaping import markdown_text as plain
from fuzzgraph.text.finding_text import sentence, title
from fuzzgraph.text.numbers import counted

_LINES = 12
"""Numbers of lines shown of a file; gate.json has all."""
_FILES = 12
"""Files whose lines are shown."""


def verdict(summary: GateSummary) -> str:
    """The outcome in one line."""
    outcome = _outcome(summary) if summary.targets else [_nothing_to_run(summary)]
    return "; ".join([*_warnings(summary), *outcome, *_gaps(summary)])


def _warnings(summary: GateSummary) -> list[str]:
    """Why what was not found says nothing; they come first."""
    said = []
    if any(one.summary is not None and one.summary.reason in CUT for one in summary.targets):
        said.append("CUT SHORT, so that what was not found says nothing")
    if blind := [one.target for one in summary.targets if one.summary and not one.summary.checked]:
        said.append(f"NO CASE OF {', '.join(blind)} RAN ON BOTH TREES, so that it says nothing")
    if _nothing_ran(summary):
        said.append("NO CASE EXECUTED WHAT CHANGED, so that what was not found says nothing")
    return said


def _outcome(summary: GateSummary) -> list[str]:
    new = len(summary.new)
    mended = sum(len(one.mended) for one in summary.targets)
    standing = sum(len(one.standing) for one in summary.targets)
    parts = [f"this change brings {counted(new, 'finding')}" if new else "nothing new found"]
    if mended:
        parts.append(f"this change mends {counted(mended, 'finding')}")
    if standing:
        verb = "stands" if standing == 1 else "stand"
        parts.append(f"{counted(standing, 'finding')} of the base {verb}")
    if uncovered := sum(len(one.uncovered) for one in summary.targets):
        parts.append(f"{counted(uncovered, 'finding')} uncovered by what is mended")
    if summary.doubtful:
        parts.append(f"{counted(len(summary.doubtful), 'finding')} not confirmed")
    return parts


def _gaps(summary: GateSummary) -> list[str]:
    """What was not looked at."""
    failed = [one.target for one in summary.targets if one.why]
    said = [f"not judged: {', '.join(failed)}"] if failed else []
    if (never := _never(summary)) and summary.targets and not _nothing_ran(summary):
        said.append(f"{never} of {counted(summary.statements, 'changed statement')} never executed")
    return said


def _nothing_ran(summary: GateSummary) -> bool:
    """Whether no case executed anything of the change; a kernel may have run unseen."""
    nothing = 0 < _never(summary) == summary.statements
    return bool(summary.targets and nothing and not summary.new and not summary.kernels)


def _nothing_to_run(summary: GateSummary) -> str:
    if not summary.touched:
        return "no Python of the engine runs differently"
    if summary.spec.among:
        return f"none of the targets that {summary.spec.settings} names executes what changed"
    return "no target executes what changed"


def trees_line(summary: GateSummary) -> str:
    """Which trees were compared."""
    branch = f" on {summary.branch}" if summary.branch else ""
    base = f"commit {summary.base[:12]} ({summary.spec.base})"
    return f"{summary.package}: {identity_words(summary.head)}{branch}, against {base}"


def text(summary: GateSummary) -> str:
    """For a terminal or a log."""
    lines = [f"{found}\n" for found in findings_texts(summary.new)]
    for one in summary.targets:
        lines += [f"mended: {_mended_line(mended, one)}" for mended in one.mended]
    lines.append(one_line(verdict(summary)))
    lines += [f"  {one_line(_target_line(one))}" for one in summary.targets]
    lines += [f"  never executed: {one_line(line)}" for line in _never_ran(summary)]
    if summary.left_out:
        lines.append(f"  no time left for: {', '.join(summary.left_out)} (a longer --time has it)")
    lines.append(f"  {one_line(trees_line(summary))}; {summary.seconds:.0f} s")
    return "\n".join(lines)


def _mended_line(mended: MendedFinding, one: GateTarget) -> str:
    asked = f"base {mended.confirmed}, this tree {mended.on_head}"
    rates = asked if mended.confirmed else "not confirmed"
    return one_line(f"{sentence(mended.finding)} ({one.target}; {rates}; {mended.case_path})")


def _target_line(one: GateTarget) -> str:
    if one.summary is None:
        return f"{one.target}: not judged: {one.why}"
    cases, new = counted(one.summary.cases, "case"), len(one.summary.findings)
    found = f"{cases} on both, {counted(new, 'new finding')}"
    many = len(one.standing)
    standing = f", {many} {'stands' if many == 1 else 'stand'} in both" if many else ""
    return f"{one.target}: {found}{standing}, {one.seconds:.0f} s"


def markdown(summary: GateSummary) -> str:
    """For the comment on a pull request or the summary of a job."""
    new = summary.new
    parts = [f"# FuzzGraph: {plain(verdict(summary))}", plain(trees_line(summary)) + "."]
    parts += [
        f"## {plain(title(entry.lead.finding))}\n\n{code_block(cause_text(entry))}"
        for entry in causes(new)
    ]
    if summary.doubtful:
        rows = "\n".join(f"- {plain(_doubt(one))}" for one in summary.doubtful)
        parts.append(f"## Seen on this tree alone, and not confirmed\n\n{rows}")
    mended = [(one, fixed) for one in summary.targets for fixed in one.mended]
    if mended:
        rows = "\n".join(f"- {plain(_mended_line(fixed, one))}" for one, fixed in mended)
        parts.append(f"## This change mends\n\n{rows}")
    if summary.targets:
        parts.append(_table(summary))
    standing = [(one, still) for one in summary.targets for still in one.standing]
    if standing:
        rows = "\n".join(
            f"{_linked(still, one)}"
            + (f"; on the base {code_span(still.was)}" if still.was else "")
            for one, still in standing
        )
        parts.append(f"## Found on the base as well, not blamed on this change\n\n{rows}")
    uncovered = [(one, seen) for one in summary.targets for seen in one.uncovered]
    if uncovered:
        rows = "\n".join(_linked(seen, one) for one, seen in uncovered)
        said = "Seen only where the base fails in a way that is mended, which may have hidden it"
        parts.append(f"## {said}\n\n{rows}")
    if never := _never_ran(summary):
        rows = "\n".join(f"- {plain(line)}" for line in never)
        parts.append(f"## Changed lines that no case executed\n\n{rows}{_not_drawn(summary)}")
    parts.append(_rest(summary))
    return _fitting(parts)


def _never(summary: GateSummary) -> int:
    """Changed statements that no case executed, of both sides."""
    sides = (summary.never_ran, summary.never_ran_on_base)
    return sum(len(lines) for side in sides for lines in side.values())


def _never_ran(summary: GateSummary) -> list[str]:
    """A line for each file with changed statements that no case executed, those first of which
    some were."""
    sides = (("", summary.never_ran), (" of the base", summary.never_ran_on_base))
    files = [(name not in summary.entered, f"{name}{words}", lines)
             for words, side in sides for name, lines in side.items()]  # fmt: skip
    files.sort(key=lambda file: file[0])
    said = []
    for _, name, lines in files[:_FILES]:
        shown = ", ".join(map(str, lines[:_LINES]))
        more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
        said.append(f"{name}: {'line' if len(lines) == 1 else 'lines'} {shown}{more}")
    if len(files) > _FILES:
        said.append(f"{counted(len(files) - _FILES, 'more file')}, which gate.json names")
    return said


def _not_drawn(summary: GateSummary) -> str:
    """What the cases of these targets never have, which may be what leads there."""
    rows = [
        f"- {plain(one.target)} draws no cases with: {plain('; '.join(one.summary.beyond))}"
        for one in summary.targets
        if one.summary is not None and one.summary.beyond
    ]
    return "\n\n" + "\n".join(rows) if rows else ""


def _doubt(reported: ReportedFinding) -> str:
    finding = reported.finding
    base = f", of the base {on_base}" if (on_base := finding.detail.get("on_base")) else ""
    rate = f"{finding.confirmed or 'no'} fresh sessions of this tree{base}"
    return one_line(f"{sentence(finding)} ({finding.target}; {rate})")


def _linked(seen: StandingFinding, one: GateTarget) -> str:
    """A finding that is not blamed on the change, with its case."""
    link = f"[{seen.id}]({seen.case_path})"
    return f"- {link} ({plain(one.target)}): {plain(sentence(seen.finding))}"


def _table(summary: GateSummary) -> str:
    rows = [
        f"| {plain(one.target)} | {_figure(one)} | {len(one.mended)} | {len(one.standing)} "
        f"| {one.seconds:.0f} s | {plain(', '.join(one.touched[:4]))} |"
        for one in summary.targets
    ]
    head = (
        "| target | new | mended | stand | time | functions of the change that it calls |\n"
        "|---|---|---|---|---|---|"
    )
    return "\n".join([head, *rows])


def _figure(one: GateTarget) -> str:
    if one.summary is None:
        return f"not judged: {plain(one.why)}"
    return f"{len(one.summary.findings)} in {counted(one.summary.cases, 'case')}"


def _rest(summary: GateSummary) -> str:
    lines = [f"Python files that run differently: {len(summary.touched)}."]
    if summary.same:
        lines.append(f"Files that differ in comments and blank lines only: {len(summary.same)}.")
    if summary.other:
        lines.append(f"Files that no target runs, since they are no Python: {len(summary.other)}.")
    if summary.kernels:
        lines.append(f"Which lines of Triton kernels ran is not told: {plain(_kernels(summary))}.")
    if summary.left_out:
        lines.append(f"No time left for {plain(', '.join(summary.left_out))}.")
    lines.append(f"Seed {summary.spec.seed}, FuzzGraph {plain(summary.fuzzgraph)}.")
    return " ".join(lines)


def _kernels(summary: GateSummary) -> str:
    return ", ".join(summary.kernels)


def _fitting(parts: list[str]) -> str:
    """As many parts as fit into a comment; the rest is counted."""
    page, room = parts[0], LONGEST - len(_left_out(len(parts)))
    for number, part in enumerate(parts[1:], start=1):
        if len(page) + len(part) + 2 > room:
            return page + _left_out(len(parts) - number)
        page = f"{page}\n\n{part}"
    return page + "\n"


def _left_out(count: int) -> str:
    return f"\n\n{counted(count, 'more part')}: see gate.json.\n"


def sarif_log(summary: GateSummary) -> dict[str, Any]:
    """All targets as one log, a run for each."""
    runs = [
        run
        for one in summary.targets
        if one.summary is not None
        for run in sarif(one.summary)["runs"]
    ]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": runs}
