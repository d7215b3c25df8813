"""Where in memory it happened: a buffer between its red zones, or the slots that a batch owns.

The overview is not to scale where a buffer is much larger than the hit; the cells below it are
single elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuzzgraph.case import Case
from fuzzgraph.errors import InvalidCase
from fuzzgraph.finding import Finding
from fuzzgraph.reporting.html.drawing import box, fitted, line, svg, text
from fuzzgraph.text.numbers import counted
from fuzzgraph.world import RESERVED_SLOT

_WIDTH = 640.0
_ZONE = 170.0
_INSIDE = 4
"""Elements of the buffer that are drawn beside its edge."""
_OUTSIDE = 9
"""Elements of the red zone that are drawn."""
_CELL = 46.0
_NUMBERS_SHOWN = 24


def memory_map(case: Case, finding: Finding) -> str:
    """The picture for this finding; '' where memory is not what it is about."""
    if finding.symptom == "red_zone_hit" and isinstance(finding.detail.get("payload"), int):
        return _buffer_map(_Hit.of(finding))
    if finding.symptom == "foreign_write" or "indices" in finding.detail:
        return _slot_map(case, finding)
    return ""


@dataclass(frozen=True, slots=True)
class _Hit:
    """A red zone that changed, in elements of its buffer."""

    buffer: str
    payload: int
    after: bool
    offset: int
    elements: int
    reach: int
    found: tuple[str, ...]

    @classmethod
    def of(cls, finding: Finding) -> _Hit:
        def number(name: str) -> int:
            value = finding.detail.get(name, 0)
            return value if isinstance(value, int) else 0

        return cls(
            finding.buffer,
            number("payload"),
            finding.detail.get("side") != "before",
            number("offset"),
            number("elements"),
            number("reach"),
            tuple(str(finding.detail.get("found", "")).split()),
        )

    @property
    def contiguous(self) -> bool:
        return self.elements == abs(self.reach - self.offset) + 1

    def state(self, place: int) -> str:
        """'hit', 'maybe' between the nearest and the farthest of a hit with holes, or 'zone'."""
        low, high = sorted((self.offset, self.reach))
        if not low <= place <= high:
            return "zone"
        return "hit" if self.contiguous or place in (low, high) else "maybe"

    def value(self, place: int) -> str:
        """What was found there, as far as it was kept: the first few from the edge outwards."""
        step = abs(place - self.offset)
        if not self.contiguous and place != self.offset:
            return ""
        return self.found[step] if step < len(self.found) else ""


def _buffer_map(hit: _Hit) -> str:
    payload = _WIDTH - 2 * _ZONE
    near = _ZONE + payload if hit.after else _ZONE
    parts = [
        box(0, 24, _ZONE, 26, "zone"),
        box(_ZONE, 24, payload, 26, "payload"),
        box(_ZONE + payload, 24, _ZONE, 26, "zone"),
        text(_ZONE / 2, 16, "red zone", "soft", anchor="middle"),
        text(_WIDTH / 2, 16, fitted(hit.buffer, payload), "strong", anchor="middle"),
        text(_WIDTH - _ZONE / 2, 16, "red zone", "soft", anchor="middle"),
        text(_WIDTH / 2, 41, f"{hit.payload} element{'s' * (hit.payload != 1)}", anchor="middle"),
    ]
    width = min(max(abs(hit.reach) / max(hit.payload, 1) * payload, 14), _ZONE - 14)
    parts.append(box(near if hit.after else near - width, 24, width, 26, "hit", r=0))
    cells, edge = _cells(hit)
    parts += [line(near, 50, edge, 72, "lead"), *cells]
    return svg(
        _WIDTH,
        142,
        parts,
        f"{counted(hit.elements, 'element')} changed in a red zone of {hit.buffer}",
    )


def _cells(hit: _Hit) -> tuple[list[str], float]:
    """Single elements on both sides of the edge, and where the edge is drawn."""
    inside = min(_INSIDE, hit.payload)
    places = _shown_places(hit)
    sign = 1 if hit.after else -1
    total = (inside + len(places)) * _CELL
    edge = (_WIDTH - total) / 2 + (inside if hit.after else len(places)) * _CELL
    parts = []
    for step in range(inside):
        index = hit.payload - 1 - step if hit.after else step
        x = edge - sign * (step + 1) * _CELL if hit.after else edge + step * _CELL
        parts += _element(x, "payload", f"[{index}]", "")
    for step, place in enumerate(places):
        x = edge + step * _CELL if hit.after else edge - (step + 1) * _CELL
        if place is None:
            parts.append(text(x + _CELL / 2, 96, "…", "strong", anchor="middle"))
        else:
            parts += _element(x, hit.state(place), f"{place:+d}", hit.value(place))
    parts.append(line(edge, 66, edge, 118, "edge"))
    parts.append(text(edge, 134, "end" if hit.after else "start", "soft", anchor="middle"))
    return parts, edge


def _shown_places(hit: _Hit) -> list[int | None]:
    """Offsets from the edge outwards; None stands for those left out."""
    first, farthest = (0, hit.reach) if hit.after else (-1, hit.reach)
    step = 1 if hit.after else -1
    count = abs(farthest - first) + 2
    if count <= _OUTSIDE:
        return [first + step * index for index in range(count)]
    start = max(0, abs(hit.offset - first) - 1)
    head: list[int | None] = [first + step * (start + index) for index in range(_OUTSIDE - 4)]
    if start:
        head = [None, *head[:-1]]
    if head[-1] is not None and abs(farthest) - abs(head[-1]) <= 3:
        return [*head, *(head[-1] + step * k for k in range(1, abs(farthest - head[-1]) + 2))]
    return [*head, None, farthest, farthest + step]


def _element(x: float, state: str, name: str, value: str) -> list[str]:
    return [
        box(x + 1.5, 74, _CELL - 3, 26, f"element {state}"),
        text(x + _CELL / 2, 91, fitted(value, _CELL - 4), anchor="middle"),
        text(x + _CELL / 2, 114, name, "soft", anchor="middle"),
    ]


_OWNED = {"slot": "slot", "row": "row", "state": "state slot"}


def _slot_map(case: Case, finding: Finding) -> str:
    changed = finding.detail.get("indices")
    if not isinstance(changed, list) or not changed:
        return ""
    what = str(finding.detail.get("what", "slot"))
    own, named = _owned(case, finding.step, what)
    numbers = _worth_showing({*changed, *own, *named, 0})
    parts: list[str] = []
    x, top, columns = 0.0, 22.0, int(_WIDTH // _CELL)
    for position, number in enumerate(numbers):
        x, y = (position % columns) * _CELL, top + (position // columns) * 44
        if number is None:
            parts.append(text(x + _CELL / 2, y + 17, "…", "strong", anchor="middle"))
            continue
        state = _state(number, changed, own, named)
        parts.append(box(x + 1.5, y, _CELL - 3, 26, f"element {state}", tip=_TIPS[state]))
        parts.append(text(x + _CELL / 2, y + 17, str(number), anchor="middle"))
    rows = -(-len(numbers) // columns)
    noun = _OWNED.get(what, what)
    parts.append(text(0, 13, f"{noun}s of {fitted(finding.buffer, 420)}", "strong"))
    height = top + rows * 44 + 18
    parts += _legend(
        height - 12, {_state(n, changed, own, named) for n in numbers if n is not None}
    )
    return svg(
        _WIDTH, height, parts, f"{len(changed)} {noun}s changed that the batch may not write"
    )


_TIPS = {
    "hit": "changed",
    "own": "written by this batch",
    "named": "read by this batch",
    "reserved": "reserved for padded rows",
    "other": "not the batch's",
}


def _state(number: int, changed: list[int], own: set[int], named: set[int]) -> str:
    if number in changed:
        return "hit"
    if number in own:
        return "own"
    if number in named:
        return "named"
    return "reserved" if number == 0 else "other"


def _owned(case: Case, step: int, what: str) -> tuple[set[int], set[int]]:
    """Numbers that the batch writes, and those that it only reads."""
    from fuzzgraph.layout import plan

    if step < 0:
        return set(), set()
    try:
        batch = plan(case)[step]
    except (InvalidCase, IndexError):
        return set(), set()
    if what == "row":
        return set(batch.req_pool_indices.tolist()), set()
    if what == "state":
        return set(batch.own_state_slots.tolist()), set()
    own = {slot for group in batch.groups for slot in group.slot_mapping.tolist()}
    named = {slot for group in batch.groups for slot in group.kv_slots.values.tolist()}
    return own, named - own - {RESERVED_SLOT}


def _worth_showing(numbers: set[int]) -> list[int | None]:
    """The numbers and their neighbours in order; None where some are left out."""
    near = sorted({max(n + d, 0) for n in sorted(numbers)[:_NUMBERS_SHOWN] for d in (-1, 0, 1)})
    shown: list[int | None] = []
    for before, number in zip([-1, *near], near, strict=False):
        if number > before + 1:
            shown.append(None)
        shown.append(number)
    return [*shown, None]


def _legend(y: float, states: set[str]) -> list[str]:
    parts, x = [], 0.0
    for state in ("hit", "own", "named", "reserved", "other"):
        if state in states:
            parts.append(box(x, y - 9, 12, 12, f"element {state}", r=2))
            parts.append(text(x + 18, y + 1, _TIPS[state], "soft"))
            x += 34 + len(_TIPS[state]) * 6.6
    return parts
