"""Paths of the files that come with FuzzGraph: saved cases, and the catalogue of known bugs.

`data` is a link to `corpus/` in a clone and a folder of files in a wheel.
"""

from __future__ import annotations

from pathlib import Path

_DATA = Path(__file__).with_name("data")
CASES = _DATA / "cases"
FAULTS = _DATA / "faults"
"""The smallest case of each planted fault, under its name."""
KNOWN_BUGS = _DATA / "known_bugs"
_HERE = Path("corpus/cases")


def case_folders() -> list[Path]:
    """Folders of saved cases: the present project's, if it has any, and FuzzGraph's own.

    In a clone of FuzzGraph both are the same folder, which is listed once.
    """
    if not _HERE.is_dir():
        return [CASES]
    return [_HERE] if CASES.is_dir() and _HERE.samefile(CASES) else [_HERE, CASES]
