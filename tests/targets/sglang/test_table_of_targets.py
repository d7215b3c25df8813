"""The table of the package's README names what is registered, where it lies and where it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuzzgraph.cli.targets import judged_modes, record
from fuzzgraph.targets.entry import TargetEntry
from fuzzgraph.targets.sglang import TARGETS
from fuzzgraph.targets.sglang.target import STOOD_IN_FOR

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "fuzzgraph" / "targets" / "sglang"
README, TRIED = FOLDER / "README.md", ROOT / "reports" / "targets.md"

pytestmark = pytest.mark.skipif(not TRIED.is_file(), reason="needs the repository")


def cells_of_rows() -> dict[str, list[str]]:
    """Target -> cells of its row in the tables of the README."""
    found: dict[str, list[str]] = {}
    for line in README.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[1].endswith(".py`"):
            for target in re.findall(r"`(sglang-[a-z0-9-]+)`", cells[2]):
                assert target not in found, f"{target} stands in two rows"
                found[target] = cells
    return found


def rows() -> dict[str, tuple[str, str]]:
    """Target -> file and releases, as the tables of the README say them."""
    return {name: (cells[1].strip("`"), cells[3]) for name, cells in cells_of_rows().items()}


def tried() -> dict[str, str]:
    """Target -> first and last release on which reports/targets.md saw it run."""
    part = TRIED.read_text(encoding="utf-8").partition("\n## Releases of sglang\n")[2]
    first = part.partition("\n### ")[0]
    lines = [line for line in first.splitlines() if line[:1] == "|"]
    head, *body = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines)
    found = {}
    for target, *cells in body:
        runs = [name for name, cell in zip(head[1:], cells, strict=True) if cell == "runs"]
        if runs:
            found[target] = f"{runs[0]} on" if runs[-1] == head[-1] else f"{runs[0]} to {runs[-1]}"
    return found


def test_the_table_has_a_row_for_each_registered_target() -> None:
    lie = {
        row.name: row.module.removeprefix("sglang.").replace(".", "/") + ".py" for row in TARGETS
    }
    assert {name: file for name, (file, _) in rows().items()} == lie


@pytest.mark.parametrize("row", TARGETS, ids=lambda row: row.name)
def test_the_releases_of_a_target_are_those_on_which_it_was_seen_to_run(
    row: TargetEntry,
) -> None:
    name, releases = row.name, row.releases or "0.5.9 on"
    assert (rows()[name][1], tried()[name]) == (releases, releases)


@pytest.mark.parametrize("row", TARGETS, ids=lambda row: row.name)
def test_what_is_judged_and_stood_in_for_is_what_the_target_says(row: TargetEntry) -> None:
    *_, judged, stood_in_for = cells_of_rows()[row.name]
    beside = [name for name, cells in cells_of_rows().items() if cells == cells_of_rows()[row.name]]
    modes = [judged_modes(record(name)) for name in beside]
    assert judged == (", ".join(filter(None, modes)) or "no")
    own = [what for what in record(row.name).stood_in_for if what not in STOOD_IN_FOR]
    assert stood_in_for == ("; ".join(own) or "nothing")


def test_what_is_stood_in_for_everywhere_is_said_above_the_tables() -> None:
    head = " ".join(README.read_text(encoding="utf-8").partition("\n## ")[0].split())
    assert [what for what in STOOD_IN_FOR if what not in head] == []


def test_every_backend_has_a_file_that_the_table_names() -> None:
    named = {file for file, _ in rows().values()}
    shared = {
        f"backends/{name}.py"
        for name in ("__init__", "attention_backend", "left_keys", "multi_step_draft", "recording")
    }
    there = {f"backends/{path.name}" for path in (FOLDER / "backends").glob("*.py")}
    assert there - shared == {file for file in named if file.startswith("backends/")}
