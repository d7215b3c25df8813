"""What scoring planted faults does with the cases that an earlier one stored."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzzgraph.case import Case, encode_case, load_case
from fuzzgraph.faults.__main__ import store
from tests.unit.reporting.faulty_runs import after, one_row, stored

FAULT = "sglang-stale-req-pool-indices-decode"


def keep(folder: Path, case: Case) -> Path:
    path = folder / f"{FAULT}.json"
    path.write_bytes(encode_case(case))
    return path


@pytest.fixture
def shows() -> Case:
    """Two rows, then one."""
    return stored(FAULT)


def test_a_stored_case_gives_way_to_a_simpler_one(tmp_path: Path, shows: Case) -> None:
    larger = msgspec.structs.replace(shows, steps=(*shows.steps, shows.steps[0]))
    path = keep(tmp_path, larger)
    store(path, FAULT, shows)
    assert load_case(path) == shows


def test_a_stored_case_stays_where_the_new_one_is_no_simpler(tmp_path: Path, shows: Case) -> None:
    path = keep(tmp_path, shows)
    before = path.read_bytes()
    store(path, FAULT, msgspec.structs.replace(shows, steps=(*shows.steps, shows.steps[0])))
    assert path.read_bytes() == before


def test_a_stored_case_that_shows_its_fault_no_longer_gives_way(
    tmp_path: Path, shows: Case
) -> None:
    path = keep(tmp_path, after(one_row(), one_row()))
    store(path, FAULT, shows)
    assert load_case(path) == shows


def test_the_first_case_of_a_fault_is_stored(tmp_path: Path, shows: Case) -> None:
    path = tmp_path / f"{FAULT}.json"
    store(path, FAULT, shows)
    assert load_case(path) == shows
