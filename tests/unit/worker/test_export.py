"""A worker records its engine, and hands over a script that needs torch alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.case import Case, load_case
from fuzzgraph.errors import OutOfTime
from fuzzgraph.finding import Finding
from fuzzgraph.open_target import Opened, open_setup
from fuzzgraph.repro import export_script, verify
from fuzzgraph.run.events import Setup
from fuzzgraph.run_options import checked_setup

FAULT = "sglang-pr-24587-kv-indices-in-pages"
CASE = load_case(Path(__file__).parents[3] / "corpus" / "faults" / f"{FAULT}.json")


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    """The built-in engine with a fault, in a process of its own."""
    found = open_setup(checked_setup(fault=FAULT, isolation="on"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def finding(opened: Opened) -> Finding:
    return opened.runner.run_case(CASE).findings[0]


def test_the_script_of_an_isolated_engine_runs_without_fuzzgraph(
    opened: Opened, finding: Finding, tmp_path: Path
) -> None:
    path = tmp_path / "repro.py"
    path.write_text(export_script(CASE, finding, opened.setup, record=opened.record))
    assert "NEEDS_FUZZGRAPH" not in path.read_text()
    assert verify(path, times=1) == "1/1"


def test_the_engine_goes_on_as_before_after_it_was_recorded(
    opened: Opened, finding: Finding
) -> None:
    assert opened.record is not None
    first = opened.record(CASE, finding)
    assert opened.runner.run_case(CASE).findings[0] == finding
    assert opened.record(CASE, finding) == first
    assert opened.deaths() == 0


def test_what_operations_cannot_show_is_refused_with_its_reason(
    opened: Opened, finding: Finding
) -> None:
    race = msgspec.structs.replace(finding, symptom="race")
    text = export_script(CASE, race, opened.setup, record=opened.record)
    assert "NEEDS_FUZZGRAPH = True" in text
    assert "torch runs the programs of a kernel one after the other" in " ".join(text.split())


def test_a_recording_that_is_cut_off_leaves_a_script_that_says_so(finding: Finding) -> None:
    def cut_off(case: Case, finding: Finding) -> str:
        raise OutOfTime("the time is up")

    text = export_script(CASE, finding, Setup(fault=FAULT), record=cut_off)
    assert "there was no time to record its operations" in text
