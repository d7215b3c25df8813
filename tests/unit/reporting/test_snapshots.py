"""The whole text of real findings, compared exactly with the files beside this one.

FUZZGRAPH_SNAPSHOTS=write writes them anew; read the difference before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fuzzgraph.reporting import run_text
from fuzzgraph.repro.issue_text import issue_text
from fuzzgraph.run.environment import Environment
from fuzzgraph.run.events import ReportedFinding
from fuzzgraph.run.spec import Setup
from tests.unit.reporting.faulty_runs import STALE_ROWS, VIEWS, reported_of, run_of, stored
from tests.unit.reporting.test_causes import stale

__all__ = ["stale"]

FOLDER = Path(__file__).with_name("snapshots")
HERE = Environment(
    engine="fuzzgraph",
    engine_version="0.1.0",
    torch="2.9.1",
    python="3.12.1",
    platform="Linux x86_64",
    device="CPU",
)
FAULTS = (
    "sglang-pr-24587-kv-indices-in-pages",
    "sglang-pr-22598-indptr-at-pool-size",
    "tensorrt-llm-pr-9873-repeated-state-index",
    "vllm-pr-20301-frozen-split-count",
    STALE_ROWS,
    VIEWS,
)


def steady(text: str) -> str:
    """The text without what an edit of the engine changes: its lines, and FuzzGraph version."""
    text = re.sub(r"(\w+\.py):\d+", r"\1:N", text)
    return re.sub(r"FuzzGraph \d+\.\d+\.\d+\S*?(?=,|;|\n)", "FuzzGraph 0.1.0", text)


def compare(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("FUZZGRAPH_SNAPSHOTS") == "write":
        path.write_text(steady(text))
    assert steady(text) == path.read_text()


def ended(fault: str, *found: ReportedFinding) -> str:
    import msgspec

    return run_text(msgspec.structs.replace(run_of(fault, *found), environment=HERE)) + "\n"


@pytest.mark.parametrize("fault", FAULTS)
def test_the_end_of_a_run_reads_as_it_did(fault: str) -> None:
    compare(f"{fault}.txt", ended(fault, reported_of(fault, stored(fault))))


@pytest.mark.parametrize("fault", FAULTS)
def test_an_issue_reads_as_it_did(fault: str) -> None:
    found = reported_of(fault, stored(fault))
    compare(f"{fault}.md", issue_text(found.case, found.finding, Setup(fault=fault), HERE))


def test_findings_of_one_cause_read_as_they_did(stale: tuple[ReportedFinding, ...]) -> None:
    compare("one-cause.txt", ended(STALE_ROWS, *stale))


def test_one_of_anything_is_one() -> None:
    """ "1 elements" stood in a report once."""
    for path in FOLDER.iterdir():
        plural = re.findall(
            r"\b1 (?:elements|findings|cases|steps|tries|causes|slots)\b", path.read_text()
        )
        assert not plural, path.name


def test_a_snapshot_that_differs_fails() -> None:
    with pytest.raises(AssertionError):
        compare("one-cause.txt", "another text\n")
