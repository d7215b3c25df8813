"""What came up beside new findings, as records, each with its case on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzzgraph.case import Case, digest
from fuzzgraph.corpus import readable_json, write_atomically
from fuzzgraph.finding import FindingKey
from fuzzgraph.gate.against_base import Differences, Standing
from fuzzgraph.gate.records import MendedFinding, StandingFinding
from fuzzgraph.run.events import RunSummary, finding_id


def beside(
    differences: Differences, summary: RunSummary, folder: Path, out: Path
) -> dict[str, Any]:
    """The fields `standing`, `uncovered` and `mended` of a target's record.

    Args:
        summary: of what the tree alone shows.
        folder: of the target's run, in which the cases are left. out: folder of the gate.
    """
    saved = _Saved(folder, out)
    told = {reported.finding.key for reported in summary.findings} | differences.standing.keys()
    uncovered = {key: one for key, one in differences.uncovered.items() if key not in told}
    return {
        "standing": _standing(differences.standing, saved),
        "uncovered": _standing(uncovered, saved),
        "mended": tuple(
            MendedFinding(
                id=finding_id(key),
                finding=one.finding,
                case=one.case,
                case_path=saved.path("mended", one.case),
                confirmed=one.confirmed,
                on_head=one.on_head,
            )
            for key, one in differences.mended.items()
        ),
    }


class _Saved:
    """Writes cases below the folder of a run."""

    def __init__(self, folder: Path, out: Path) -> None:
        self._folder = folder
        self._out = out

    def path(self, kind: str, case: Case) -> str:
        """Where a case lies now, from the folder of the gate."""
        path = self._folder / kind / f"{digest(case)[:12]}.json"
        write_atomically(path, readable_json(case))
        return os.path.relpath(path, self._out)


def _standing(counts: Mapping[FindingKey, Standing], saved: _Saved) -> tuple[StandingFinding, ...]:
    return tuple(
        StandingFinding(
            id=finding_id(key),
            finding=one.finding,
            case_path=saved.path("standing", one.case),
            cases=one.cases,
            was=finding_id(one.was.key) if one.was else "",
        )
        for key, one in counts.items()
    )
