"""What a step must not write: red zones, memory of others, results that were handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.rules.comparison import bits
from fuzzgraph.text.numbers import counted

__all__ = [
    "Overrun",
    "changed_rows",
    "foreign_rows_text",
    "kept_text",
    "moved_text",
    "overrun",
    "wrong_rows_text",
]


@dataclass(frozen=True, slots=True)
class Overrun:
    """What was written into the red zone on one side of a buffer; counted in its elements."""

    side: str
    """before or after the buffer."""
    nearest: int
    """From the buffer's end (after; 0 is the first element) or start (before; -1 is the first)."""
    farthest: int
    elements: int
    found: list[Any]
    """The values nearest to the buffer."""

    def text(self, name: str, payload: int, allocated_at: str) -> str:
        """The sentence about the buffer `name` of `payload` elements."""
        side = "past the end" if self.side == "after" else "before the start"
        far = f" up to offset {self.farthest:+d}" if self.farthest != self.nearest else ""
        return (
            f"{counted(self.elements, 'element')} written {side} of {name}{far} (length {payload},"
            f" allocated at {allocated_at}); now there: {', '.join(map(str, self.found))}"
        )


_SHOWN = 4  # values of an overrun that are told


def overrun(side: str, zone: torch.Tensor, clean: torch.Tensor) -> Overrun | None:
    """What was written into a red zone; None where it is intact.

    Args:
        side: "before" or "after" the buffer.
        zone: its elements, [n] in the buffer's dtype, ascending.
        clean: one element that nothing was written to, [1].
    """
    size = zone.element_size()
    unequal = zone.view(torch.uint8).view(-1, size) != clean.view(torch.uint8)
    hit = unequal.any(1).nonzero().flatten().tolist()
    if not hit:
        return None
    near = hit if side == "after" else [place - len(zone) for place in reversed(hit)]
    values = [_plain(zone[place]) for place in near[:_SHOWN]]
    return Overrun(side, near[0], near[-1], len(hit), values)


def _plain(value: torch.Tensor) -> Any:
    """A value that can be printed, of dtypes too that Python has no number for."""
    if value.dtype.is_complex:
        return str(value.item())
    if value.dtype.itemsize == 1 and value.dtype.is_floating_point:
        return float(value.float())
    return value.item()


def changed_rows(now: torch.Tensor, expected: torch.Tensor) -> list[int]:
    """Rows, along dimension 0, of which any bit differs."""
    unequal = bits(now) != bits(expected)
    rows: list[int] = unequal.reshape(len(now), -1).any(1).nonzero().flatten().tolist()
    return rows


_OWNED = {"slot": "KV slots", "row": "request rows", "state": "state slots"}


def foreign_rows_text(name: str, what: str, rows: list[int]) -> str:
    """Rows changed that belong to somebody else; `what` is slot, row or state."""
    return f"{name}: {_OWNED[what]} {rows} changed, which the batch does not own"


def wrong_rows_text(name: str, what: str, rows: list[int]) -> str:
    """The batch's own rows do not hold what the model defines."""
    return (
        f"{name}: {what}s {rows} of the batch do not hold what the model defines for its new tokens"
    )


def kept_text(name: str, step: int) -> str:
    """An output that was promised to be kept changed."""
    return f"{name} handed out at step {step} was changed by this replay"


def moved_text(name: str) -> str:
    """The engine writes another buffer than the graph reads."""
    return (
        f"{name} lies at another address than the graph captured: the replay reads the old buffer"
    )
