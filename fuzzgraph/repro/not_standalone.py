"""Why a script of operations alone cannot be written; the export then runs through FuzzGraph."""

from __future__ import annotations


class NotStandalone(Exception):
    """The finding cannot be shown by the operations alone; says why."""
