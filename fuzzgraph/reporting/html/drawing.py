"""Small inline SVG: shapes with classes, so that the page's style colours them in any scheme."""

from __future__ import annotations

from html import escape

_CHAR = 6.4
"""Width of a character of the 11 px monospaced face, in px; rounded up."""


def svg(width: float, height: float, parts: list[str], label: str) -> str:
    """A picture of fixed size that a narrow window scrolls; `label` tells it without eyes."""
    return (
        f'<svg class="draw" viewBox="0 0 {_n(width)} {_n(height)}" width="{_n(width)}" '
        f'height="{_n(height)}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def box(x: float, y: float, w: float, h: float, kind: str, *, r: float = 3, tip: str = "") -> str:
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    end = f">{inner}</rect>" if inner else "/>"
    return (
        f'<rect class="{kind}" x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}" '
        f'rx="{_n(r)}"{end}'
    )


def text(x: float, y: float, content: str, kind: str = "", *, anchor: str = "start") -> str:
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{name}{place}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>'


def fitted(content: str, width: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width` px.

    >>> fitted("cuda_graph_kv_indices", 60)
    'cuda_gra…'
    """
    room = max(1, int(width / _CHAR))
    return content if len(content) <= room else content[: room - 1] + "…"


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
