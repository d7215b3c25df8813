"""What a run ran on: read where the engine runs, in every report, and nothing made up."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fuzzgraph
from fuzzgraph.open_target import open_setup
from fuzzgraph.reporting import markdown, run_text
from fuzzgraph.reporting.html import html
from fuzzgraph.reporting.junit import junit
from fuzzgraph.reporting.sarif import sarif
from fuzzgraph.repro.issue_text import issue_text
from fuzzgraph.run.environment import UNKNOWN, Environment, environment_lines, read_environment
from fuzzgraph.run.events import CampaignStarted, decode_event, encode_event
from fuzzgraph.run.spec import RunSpec, Setup
from fuzzgraph.run.state import RunState
from tests.unit.reporting.runs import history, overrun, reported, summary

SEEN = Environment(
    engine="sglang",
    engine_version="0.5.12",
    engine_commit="0123abc",
    torch="2.9.1",
    triton="3.5.1",
    python="3.12.1",
    platform="Linux x86_64",
    device="NVIDIA H200, CUDA 12.8",
)
LINES = [
    "sglang 0.5.12, commit 0123abc",
    "torch 2.9.1, Triton 3.5.1, Python 3.12.1, Linux x86_64",
    "NVIDIA H200, CUDA 12.8",
]


def test_engine_versions_and_device_are_one_line_each() -> None:
    assert environment_lines(SEEN) == LINES


def test_what_is_unknown_is_said_to_be_unknown() -> None:
    assert environment_lines(Environment(engine="engine")) == [
        "engine of unknown version, commit unknown",
        "torch of unknown version, no Triton, Python of unknown version, unknown platform",
        "device unknown",
    ]
    assert environment_lines(UNKNOWN) == ["unknown: the run did not record it"]


def test_it_is_read_from_what_is_installed() -> None:
    found = read_environment(("pytest",), "cpu")
    assert (found.engine, found.engine_version) == ("pytest", version("pytest"))
    assert (found.torch, found.device) == (version("torch"), "CPU")
    assert environment_lines(read_environment(("fuzzgraph",), "cpu"))[0] == (
        f"built-in engine of FuzzGraph {fuzzgraph.__version__}"
    )


def test_of_a_checkout_the_commit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_engine.py").write_text("__version__ = '7'\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")  # which an import leaves
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("some_engine")
    try:
        found = read_environment(("some_engine",), "cpu")
        assert found.engine_version == "7" and len(found.engine_commit) == 40
        (tmp_path / "some_engine.py").write_text("__version__ = '8'\n")
        changed = read_environment(("some_engine",), "cpu")
        assert changed.engine_commit == found.engine_commit and not found.engine_changes
        assert f" with changes {changed.engine_changes}" in environment_lines(changed)[0]
    finally:
        del sys.modules["some_engine"]


def test_an_engine_that_is_not_there_has_no_version_and_no_commit() -> None:
    found = read_environment(("no_such_engine",), "cpu")
    assert (found.engine_version, found.engine_commit) == ("", "")


def test_a_target_in_a_process_of_its_own_tells_its_own_environment() -> None:
    opened = open_setup(Setup(target="builtin", isolation="on"))
    try:
        assert opened.environment == read_environment(("fuzzgraph",), "cpu")
    finally:
        opened.close()


def test_the_start_of_a_run_records_it_and_the_summary_has_it() -> None:
    start = CampaignStarted(spec=RunSpec(setup=Setup(), seed=1), environment=SEEN)
    state = RunState([decode_event(encode_event(start))])
    assert state.summary().environment == SEEN


def test_every_report_carries_it_and_says_what_to_do_next() -> None:
    run = summary(reported(), environment=SEEN)
    page = html(run)
    for text in (run_text(run), markdown(run).replace("\\", ""), page):
        assert all(line in text for line in LINES)
        assert "docs/read-a-finding.md" in text
    assert "; ".join(LINES).encode() in junit(run)
    assert sarif(run)["runs"][0]["properties"]["environment"] == LINES
    issue = issue_text(history(), overrun(), Setup(), SEEN).replace("\\", "")
    assert all(f"- {line}" in issue for line in LINES)
