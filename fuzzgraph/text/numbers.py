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


def bytes_text(count: int) -> str:
    """A number of bytes in the largest unit that it fills.

    >>> bytes_text(700), bytes_text(8192), bytes_text(5 << 20), bytes_text(3 << 30)
    ('700 bytes', '8.0 KiB', '5.0 MiB', '3.0 GiB')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return counted(count, "byte")


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
