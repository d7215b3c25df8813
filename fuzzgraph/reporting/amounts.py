"""Durations and counts as people read them."""

from __future__ import annotations

__all__ = ["counted", "short"]


def short(seconds: float) -> str:
    """A duration in its two largest units.

    >>> short(7.2), short(75), short(3720)
    ('7s', '1m15s', '1h02m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "step"), counted(3, "step")
    ('1 step', '3 steps')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
