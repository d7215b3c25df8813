"""Findings that lie in the folder of a run and of which its log says nothing: the log is damaged.

A finding is in the log before anything is written into its folder, so that what is found here was
lost there.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.errors import UNREADABLE
from fuzzgraph.events import ReportedFinding
from fuzzgraph.strict_json import decode_json

__all__ = ["untold"]


def untold(out: Path, told: Container[str]) -> tuple[list[ReportedFinding], list[str]]:
    """The findings that only their own records tell of, and one line about each folder that the
    log should have named.

    Args:
        told: the ids that the log tells of.
    """
    found: list[ReportedFinding] = []
    damage: list[str] = []
    for place in sorted(RunFolder(out).findings.glob("*")):
        if place.name in told or not place.is_dir() or not any(place.iterdir()):
            continue
        where = f"findings/{place.name}: the log does not tell of this finding"
        try:
            reported = decode_json((place / "finding.json").read_bytes(), ReportedFinding)
            if reported.id != place.name:
                raise ValueError(f"its record is that of {reported.id}")
        except FileNotFoundError:
            damage.append(f"{where}, and there is no record of it")
        except (OSError, *UNREADABLE) as error:
            damage.append(f"{where}, and its record cannot be read ({error})")
        else:
            found.append(reported)
            damage.append(f"{where}; taken from its finding.json")
    return found, damage
