"""Durations as people read them."""

from __future__ import annotations

__all__ = ["short"]


def short(seconds: float) -> str:
    """
    >>> short(7.2), short(75), short(3720)
    ('7s', '1m15s', '1h02m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
