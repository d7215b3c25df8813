"""Holds what a document quotes against what was really said."""

from __future__ import annotations

import re


def pattern(quoted: str) -> str:
    """A quotation is wrapped as its page needs it, and leaves out parts by `...`."""
    return ".*?".join(map(re.escape, " ".join(quoted.split()).split("...")))


def is_all_of(said: str, quoted: str) -> bool:
    """Whether a text is the quoted one."""
    return re.fullmatch(pattern(quoted), " ".join(said.split())) is not None


def is_part_of(said: str, quoted: str) -> bool:
    """Whether the quotation stands somewhere in a text."""
    return re.search(pattern(quoted), " ".join(said.split())) is not None
