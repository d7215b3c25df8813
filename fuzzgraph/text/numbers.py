"""Durations and counts as people read them."""

from __future__ import annotations


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

    >>> counted(1, "step"), counted(3, "step"), counted(2, "try")
    ('1 step', '3 steps', '2 tries')
    """
    return f"{number} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """More than one of it.

    >>> plural("copy"), plural("entry"), plural("launch"), plural("slot")
    ('copies', 'entries', 'launches', 'slots')
    """
    if noun.endswith(("ry", "py")):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ss", "ch")) else f"{noun}s"
