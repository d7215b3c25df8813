"""What a finding about metadata or padded rows does to live rows.

Wrong metadata harms nobody by itself. Where the same step of its smallest case shows wrong results
or memory of others overwritten, that is its effect, and decides its severity.

Attention keeps rows apart: what is wrong with a padded row harms nobody until a layer behind it
mixes rows, as those of real models do. A finding without an effect on live rows is tried once
behind each such layer; what shows there is its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import msgspec

from fuzzgraph.case import DIMENSIONS, Case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.finding import Finding, by_severity
from fuzzgraph.run.runner import Runner
from fuzzgraph.text.finding_text import BEHIND_A_LAYER, IN_ITS_STEP

Run = Callable[[Case], Sequence[Finding]]
"""What a case shows."""


def with_effects(case: Case, findings: Sequence[Finding], runner: Runner) -> tuple[Finding, ...]:
    """All that one case shows, each finding with its effect; the worst first."""

    @cache
    def run(tried: Case) -> Sequence[Finding]:
        try:
            return runner.run_case(tried).findings
        except InvalidCase:  # with the layer it contradicts itself
            return ()

    told = [
        with_effect(case, one, [other for other in findings if other is not one], run)
        for one in findings
    ]
    return tuple(sorted(told, key=by_severity))


def with_effect(case: Case, finding: Finding, others: Iterable[Finding], run: Run) -> Finding:
    """The finding; with its effect told, and the severity of that, if it is about metadata alone,
    or reaches live rows only through a layer that mixes rows.

    Args:
        case: the smallest one that shows it.
        others: what the case shows besides.
    """
    others = tuple(others)
    shown = [finding, *others]
    if any(_concerns_live_rows(one) and not _is_behind(case, one) for one in shown):
        return _with_harm(case, finding, others)
    mixing = case.config.row_mixing
    if mixing != "none":
        return _told(finding, mixing, [one for one in shown if _is_effect(case, one)])
    worst = finding
    for kind in DIMENSIONS["row_mixing"].choices[1:]:
        tried = _behind(case, kind)
        effects = [one for one in run(tried) if _is_effect(tried, one)]
        worst = min(worst, _told(finding, kind, effects), key=_by_effect)
    return worst


def _with_harm(case: Case, finding: Finding, others: Iterable[Finding]) -> Finding:
    """What is wrong with metadata, with the worst that the same step does to live rows."""
    harms = [
        one
        for one in others
        if one.step == finding.step and _concerns_live_rows(one) and not _is_behind(case, one)
    ]
    worst = min(harms, key=by_severity, default=finding)
    if finding.clause != "metadata" or by_severity(worst) >= by_severity(finding):
        return finding
    detail = {**finding.detail, "effect": worst.severity}
    message = f"{finding.message}{IN_ITS_STEP}{_said(worst)}"
    return msgspec.structs.replace(finding, detail=detail, message=message)


def _said(finding: Finding) -> str:
    """Its message without the step that opens it."""
    return finding.message.partition(": ")[2]


def _behind(case: Case, kind: str) -> Case:
    config = msgspec.structs.replace(case.config, row_mixing=kind)
    return msgspec.structs.replace(case, config=config)


def _is_behind(case: Case, finding: Finding) -> bool:
    """Whether it is about what a layer that mixes rows gave."""
    return finding.buffer == ("moe" if case.config.row_mixing == "router" else "mixed")


def _is_effect(case: Case, finding: Finding) -> bool:
    return _is_behind(case, finding) and _concerns_live_rows(finding)


def _concerns_live_rows(finding: Finding) -> bool:
    """Whether results of a request are wrong by it, or may be: others are about metadata, about
    padded rows, or about memory that is read without a known effect."""
    harms = finding.clause in ("computes", "writes", "survives")
    return harms or finding.detail.get("rows") == "live"


def _told(finding: Finding, kind: str, effects: Sequence[Finding]) -> Finding:
    if not effects:
        return finding
    worst = min(effects, key=by_severity)
    detail = {**finding.detail, "mixed_by": kind, "effect": worst.severity}
    message = f"{finding.message}{BEHIND_A_LAYER} (row_mixing={kind!r}): {_said(worst)}"
    return msgspec.structs.replace(finding, detail=detail, message=message)


def _by_effect(finding: Finding) -> tuple[int, bool]:
    """The worst first; of equal ones, those with an effect."""
    return by_severity(finding), "effect" not in finding.detail
