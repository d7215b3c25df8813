"""The nights as bars: findings seen again below, new ones on top."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzgraph.reporting.html.drawing import box, line, svg, text
from fuzzgraph.reporting.trend import TrendPoint
from fuzzgraph.text.numbers import counted

_HEIGHT = 96.0
_TOP = 22.0
_BAR = 26.0
_STEP = 40.0


def trend_chart(nights: Sequence[TrendPoint]) -> str:
    """One bar a night; the run of this report is marked."""
    most = max([night.findings for night in nights] + [1])
    base = _TOP + _HEIGHT
    width = max(len(nights) * _STEP + 24, 220)
    parts = [line(0, base + 0.5, width, base + 0.5, "axis")]
    for index, night in enumerate(nights):
        parts += _bar(night, 12 + index * _STEP, base, _HEIGHT / most)
    return svg(width, base + 40, parts, f"Findings of the last {len(nights)} nights")


def _bar(night: TrendPoint, x: float, base: float, scale: float) -> list[str]:
    again, fresh = len(night.again) * scale, len(night.fresh) * scale
    tip = (
        f"{night.label}: {counted(night.findings, 'finding')}, {len(night.fresh)} new,"
        f" {counted(night.cases, 'case')}"
    )
    top = base - again - fresh
    parts = [
        box(x, base - again, _BAR, max(again, 1), "night again", r=0, tip=tip),
        text(x + _BAR / 2, top - 6, str(night.findings), "strong", anchor="middle"),
        text(x + _BAR / 2, base + 16, night.label[5:10], "soft", anchor="middle"),
    ]
    if fresh:
        parts.append(box(x, top, _BAR, fresh, "night fresh", r=0, tip=tip))
    if night.failed:
        parts.append(text(x + _BAR / 2, base + 30, "cut", "alarm", anchor="middle"))
    elif night.here:
        parts.append(text(x + _BAR / 2, base + 30, "here", "strong", anchor="middle"))
    return parts
