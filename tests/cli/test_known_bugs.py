"""`fuzzgraph known-bugs`: a whole run on a runner without an engine."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from fuzzgraph.campaign import Opened
from fuzzgraph.case import Case
from fuzzgraph.cli.entry import run_command
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import Setup
from tests.fakes import FakeRunner, opener, paged

ENTRY = """
source = "engine PR 1"
summary = "Pages for tokens."
target = "sglang-aiter"
broken = ["1.0"]
fixed = ["1.1"]
confirmed = "for this test"
expect = [{clause = "writes", buffer = "kv_indices"}]
"""


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bugs").mkdir()
    (tmp_path / "bugs" / "engine-pr-1.toml").write_text(ENTRY)
    return tmp_path / "bugs"


def releases_with(monkeypatch: pytest.MonkeyPatch, *broken: str) -> None:
    """Engines of which those releases have the bug."""

    def open_setup(setup: Setup) -> Opened:
        return opener(FakeRunner(paged if setup.release in broken else lambda case: ()))(setup)

    monkeypatch.setattr("fuzzgraph.campaign.open_setup", open_setup)


def run(catalogue: Path, *more: str) -> int:
    """In this process, whose engines the test made up."""
    options = ["--catalogue", str(catalogue), "--time", "1s", "--jobs", "1"]
    return run_command(["known-bugs", "run", *options, *more])


def test_a_bug_found_and_acquitted_exits_with_0(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    releases_with(monkeypatch, "1.0")
    assert run(catalogue, "--json", "--out", "runs") == 0
    record = json.loads(capsys.readouterr().out)
    (bug,) = record["known_bugs"]
    assert (bug["found"], bug["false_alarms"], record["exit_code"]) == (True, 0, 0)
    (seen,) = bug["broken"]
    assert (seen["clause"], seen["buffer"], seen["confirmed"]) == ("writes", "kv_indices", "3/3")
    assert Path(seen["case_path"]).is_file()


def test_a_bug_that_comes_up_in_a_fixed_release_exits_with_1(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    releases_with(monkeypatch, "1.0", "1.1")
    assert run(catalogue) == 1
    assert "1.1            FALSE ALARM" in capsys.readouterr().out


def test_a_bug_that_is_missed_exits_with_1(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    releases_with(monkeypatch)
    assert run(catalogue) == 1
    assert "0 of 1 known bugs found" in capsys.readouterr().out


def test_a_run_that_is_interrupted_acquits_nothing_and_exits_with_3(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupting(one: Case) -> tuple[Finding, ...]:
        signal.raise_signal(signal.SIGTERM)
        return ()

    def open_setup(setup: Setup) -> Opened:
        return opener(FakeRunner(paged if setup.release == "1.0" else interrupting))(setup)

    monkeypatch.setattr("fuzzgraph.campaign.open_setup", open_setup)
    assert run(catalogue) == 3
    said = capsys.readouterr()
    assert "sglang-aiter==1.1: the run did not come to its end (interrupted)" in said.err
    assert "engine-pr-1  1.0            found" in said.out
    assert "silent" not in said.out


def test_one_release_alone_is_judged_by_what_it_has_and_lacks(
    catalogue: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    releases_with(monkeypatch, "1.0")
    assert run(catalogue, "--only", "sglang-aiter==1.1") == 0
    assert "engine-pr-1  1.1            silent" in capsys.readouterr().out
    assert run(catalogue, "--only", "sglang-aiter==2.0") == 2
    assert "Use one of: sglang-aiter==1.0, sglang-aiter==1.1." in capsys.readouterr().err


ENGINE = """
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.faults import FAULTS

class Released(BuiltinTarget):
    package = "engine"
    isolated = True

    def load(self):
        import engine
        faults = {fault.name: fault.components for fault in FAULTS}
        self.components = faults.get(engine.FAULT, self.components)
"""


@pytest.fixture
def released(catalogue: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two releases in a cache, the first with a planted fault, and a target that opens them."""
    folder = catalogue.parent
    (folder / "made_up.py").write_text(ENGINE)
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(folder / "cache"))
    faults = {"1.0": "sglang-pr-22598-indptr-at-pool-size", "1.1": ""}
    for version, fault in faults.items():
        path = folder / "cache" / "releases" / "engine" / version
        path.mkdir(parents=True)
        (path / "engine.py").write_text(f"FAULT = {fault!r}")
    entry = ENTRY.replace("sglang-aiter", "made_up:Released")
    entry = entry.replace('clause = "writes", buffer = "kv_indices"', EXPECTED)
    (catalogue / "engine-pr-1.toml").write_text(entry)
    return catalogue


EXPECTED = 'clause = "survives", buffer = "", says = "out of bounds"'


@pytest.mark.slow
def test_releases_are_fuzzed_side_by_side_each_in_a_process_of_its_own(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--catalogue", str(released), "--time", "15s", "--jobs", "2", "--out", "runs"]
    assert run_command(["known-bugs", "run", *options, "--json"]) == 0
    (bug,) = json.loads(capsys.readouterr().out)["known_bugs"]
    assert (bug["found"], bug["false_alarms"]) == (True, 0)
    assert Path(bug["broken"][0]["case_path"]).is_file()
    assert bug["fixed"][0]["cases"] > 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["Released-1.0", "Released-1.1"]


def test_a_release_that_cannot_be_opened_ends_all_in_one_line(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (released.parent / "made_up.py").unlink()
    options = ["--catalogue", str(released), "--time", "5s", "--jobs", "2"]
    assert run_command(["known-bugs", "run", *options]) == 2
    assert "target='made_up:Released' cannot be opened" in capsys.readouterr().err


def test_the_list_names_target_and_releases(
    catalogue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["known-bugs", "list", "--catalogue", str(catalogue)]) == 0
    assert capsys.readouterr().out == "engine-pr-1  sglang-aiter 1.0\n"


def test_an_unknown_bug_is_refused_in_one_line(
    catalogue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(catalogue, "no-such-bug") == 2
    assert "'no-such-bug' is not in the catalogue" in capsys.readouterr().err
