"""Puts the page together: what the template shows is decided here, how it looks there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from fuzzgraph.finding import CLAUSES, SEVERITIES
from fuzzgraph.reporting.causes import causes
from fuzzgraph.reporting.coverage_groups import groups_of
from fuzzgraph.reporting.html.coverage_grid import coverage_grid, open_pairs
from fuzzgraph.reporting.html.evidence import Evidence, evidence
from fuzzgraph.reporting.html.memory_map import memory_map
from fuzzgraph.reporting.html.repro_texts import Room, Rooms, files_beside, repro_texts
from fuzzgraph.reporting.html.timeline import timeline
from fuzzgraph.reporting.html.trend_chart import trend_chart
from fuzzgraph.reporting.skipped import not_run, overlapped, unchecked_of_run, undone_text
from fuzzgraph.reporting.summary_text import (
    NEXT,
    nothing_found,
    outcome,
    setup_line,
    stop_reason,
)
from fuzzgraph.reporting.trend import TrendPoint
from fuzzgraph.run.environment import environment_lines
from fuzzgraph.run.events import ExportKind, ReportedFinding, RunSummary
from fuzzgraph.text.case_text import case_table, config_line
from fuzzgraph.text.escaping import visible, web_link
from fuzzgraph.text.finding_text import effect_text, law_parts, place, sentence
from fuzzgraph.text.numbers import counted, short

if TYPE_CHECKING:
    from jinja2 import Template

_DRAWN = 200
"""Findings told in full; those beyond are in the table."""

Scripts = Mapping[str, Mapping[ExportKind, str]]


@dataclass(frozen=True, slots=True)
class Material:
    """What the page is made of besides the summary."""

    trend: Sequence[TrendPoint] = ()
    scripts: Scripts = field(default_factory=dict)
    """Finding id -> kind of export -> its text."""


@dataclass(frozen=True, slots=True)
class _Chapter:
    """One finding, ready to print; the strings of `drawings` are markup, all others are text."""

    number: int
    reported: ReportedFinding
    sentence: str
    why: str
    """Why it stands below the entry above; '' for an entry of its own."""
    clause: str
    law: tuple[str, str, str]
    place: str
    badge: str
    facts: tuple[tuple[str, str], ...]
    evidence: Evidence
    config: str
    timeline: str
    """'' where there was no room; the table then stands for it."""
    table: str
    memory_map: str
    also: tuple[str, ...]
    repros: tuple[tuple[str, str], ...]
    """Name and text of what can be copied."""
    files: tuple[tuple[str, str], ...]
    """Name and relative path of what lies beside the page."""


def html(summary: RunSummary, material: Material | None = None) -> str:
    """The whole page, self-contained."""
    material = material or Material()
    rooms = Rooms()
    chapters = [
        _chapter(
            number,
            summary,
            reported,
            why,
            repro_texts(reported, material.scripts.get(reported.id, {}), rooms),
            rooms.drawings,
        )
        for number, (reported, why) in enumerate(_in_order(summary)[:_DRAWN], start=1)
    ]
    page = _template().render(
        summary=summary,
        style=_style(),
        title=outcome(summary),
        nothing=nothing_found(summary),
        environment=environment_lines(summary.environment),
        next=NEXT,
        mode_of=_mode_of,
        setup=setup_line(summary.setup),
        figures=_figures(summary),
        reason=stop_reason(summary),
        chapters=chapters,
        rest=len(summary.findings) - len(chapters),
        nights=material.trend,
        trend=trend_chart(material.trend) if len(material.trend) > 1 else "",
        families=list(groups_of(summary.coverage)),
        grid=coverage_grid(summary),
        openings=open_pairs(summary),
        not_run=not_run(summary),
        unchecked=unchecked_of_run(summary),
        overlapped=overlapped(summary.late_copies),
        short=short,
        web_link=web_link,
    )
    return visible(page)


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_resource("page.html.j2"))


def _resource(name: str) -> str:
    return files("fuzzgraph.reporting.html").joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    """The sheet without comments and indentation."""
    sheet = re.sub(r"/\*.*?\*/", "", _resource("page.css"), flags=re.DOTALL)
    return re.sub(r"\n\s*", "\n", sheet).strip()


def _figures(summary: RunSummary) -> list[tuple[str, str]]:
    mean = summary.steps / summary.cases if summary.cases else 0.0
    figures = [
        ("cases", f"{summary.cases:,}"),
        ("a second", f"{summary.rate:.0f}"),
        ("steps each", f"{mean:.1f}"),
        ("in all", short(max(summary.seconds, summary.total_seconds))),
        ("of search", short(summary.seconds)),
    ]
    if summary.coverage.cases:
        figures.append(("dimension values", str(len(summary.coverage.cases))))
        figures.append(("pairs of them", f"{summary.coverage.pairs:,}"))
    if summary.deaths:
        figures.append(("engine deaths", str(summary.deaths)))
    return figures


def _in_order(summary: RunSummary) -> list[tuple[ReportedFinding, str]]:
    """The findings by their causes, each with why it stands below another one."""
    return [
        pair for entry in causes(summary.findings) for pair in ((entry.lead, ""), *entry.others)
    ]


def _chapter(
    number: int,
    summary: RunSummary,
    reported: ReportedFinding,
    why: str,
    repros: Sequence[tuple[str, str]],
    room: Room,
) -> _Chapter:
    finding = reported.finding
    drawn, mapped = timeline(reported.case, finding), memory_map(reported.case, finding)
    return _Chapter(
        number=number,
        reported=reported,
        sentence=sentence(finding),
        why=why,
        clause=CLAUSES[finding.clause],
        law=law_parts(finding),
        place=place(finding),
        badge=_badge(reported),
        facts=tuple(_facts(summary, reported)),
        evidence=evidence(finding),
        config=config_line(reported.case.config),
        timeline=drawn if room.takes(drawn) else "",
        table="\n".join(case_table(reported.case, mark=finding.step)),
        memory_map=mapped if room.takes(mapped) else "",
        also=tuple(
            f"{sentence(other)} ({CLAUSES[other.clause]}; {other.oracle})"
            for other in reported.also
        ),
        repros=tuple(repros),
        files=tuple(files_beside(reported)),
    )


def _mode_of(reported: ReportedFinding) -> str:
    finding = reported.finding
    return finding.mode.replace("_", " ") if finding.step >= 0 else "before the first step"


def _badge(reported: ReportedFinding) -> str:
    if reported.status != "new":
        return reported.status
    if not reported.finding.confirmed:
        return "unconfirmed"
    if reported.flaky:
        return "flaky"
    return "no server" if reported.finding.unserved else ""


def _facts(summary: RunSummary, reported: ReportedFinding) -> list[tuple[str, str]]:
    finding = reported.finding
    confirmed = finding.confirmed or "the run ended before it was tried"
    times = 1 + summary.repeats.get(reported.id, 0)
    facts = [
        ("severity", f"{finding.severity}: {SEVERITIES[finding.severity]}"),
        ("shows in fresh sessions", confirmed),
        ("oracle", finding.oracle),
        ("symptom", finding.symptom.replace("_", " ")),
        ("stage", finding.stage),
        ("cases with it", f"{times:,}"),
    ]
    if finding.unserved:
        facts.append(("no server has its config", finding.unserved))
    if effect := effect_text(finding):
        facts.append(("effect", effect))
    if reported.after_cases:
        found = f"case {reported.after_cases}, {reported.after_seconds:.1f} s"
        facts.append(("first seen", f"{found} ({reported.source})"))
    if reported.shrink_tries:
        effort = f"{counted(reported.shrink_tries, 'try')}, {reported.shrink_seconds:.1f} s"
        facts.append(("shrunk with", effort))
    if reported.left:
        facts.append(("not done (out of time)", undone_text(reported)))
    if finding.symptom == "nan_mismatch":
        facts.append(("note", "only NaN in memory that the batch does not own shows this"))
    return facts
