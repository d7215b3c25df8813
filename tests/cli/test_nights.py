"""The verbs of a night: report, baseline, ledger, resume, corpus minimise; and their bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph import corpus
from fuzzgraph.campaign import Opened
from fuzzgraph.case import Case, encode_case
from fuzzgraph.cli.entry import run_command
from fuzzgraph.run.events import Setup
from tests.fakes import FakeRunner, FakeTarget, FakeVerdict, case, no_exporting, opener, paged

RUN = ["run", "--examples", "100", "--seed", "1"]
REPORTS = {"report.html", "junit.xml", "report.sarif", "summary.md", "report.json"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `run` finds one bug, without an engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fuzzgraph.campaign.open_setup", opener(FakeRunner(paged)))
    monkeypatch.setattr("fuzzgraph.campaign.run.Exporting", no_exporting)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    loaded = json.loads(capsys.readouterr().out)
    assert isinstance(loaded, dict)
    return loaded


def test_report_makes_all_reports_again_from_the_log_alone(folder: Path) -> None:
    run_command([*RUN, "--out", "r"])
    before = {name: (folder / "r" / name).read_bytes() for name in REPORTS}
    for path in (folder / "r").iterdir():
        if path.name != "events.jsonl" and path.is_file():
            path.unlink()
    assert run_command(["report", "r"]) == 0
    assert {name: (folder / "r" / name).read_bytes() for name in REPORTS} == before


def test_report_writes_one_of_them_where_it_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command([*RUN, "--out", "r"])
    capsys.readouterr()
    words = ["report", "r", "--as", "sarif", "--out", "x/findings.sarif", "--json"]
    assert run_command(words) == 0
    assert said(capsys) == {"folder": "r", "paths": ["x/findings.sarif"], "bad": [], "damaged": []}
    assert json.loads((folder / "x" / "findings.sarif").read_text())["version"] == "2.1.0"


def test_a_baseline_of_a_run_makes_the_next_one_pass_where_only_new_ones_count(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*RUN, "--out", "r"]) == 1
    assert run_command(["baseline", "r", "--out", "known.jsonl"]) == 0
    assert run_command([*RUN, "--out", "s", "--baseline", "known.jsonl", "--only-new"]) == 0
    assert run_command([*RUN, "--out", "t", "--baseline", "known.jsonl"]) == 1
    assert "1 finding (1 known)" in capsys.readouterr().out


def test_the_ledger_is_found_in_its_place_and_tolerates(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "corpus").mkdir()
    (folder / "corpus" / "ledger.toml").write_text(
        '[[tolerated]]\nbuffer = "kv_*"\nissue = "https://example.org/1"\nexpires = 2999-01-01\n'
    )
    assert run_command([*RUN, "--out", "r"]) == 0
    assert "tolerated, does not count as new https://example.org/1" in capsys.readouterr().out
    assert run_command(["ledger", "--json"]) == 0
    assert [entry["buffer"] for entry in said(capsys)["tolerated"]] == ["kv_*"]


def test_a_ledger_with_an_entry_that_has_ended_says_so_and_exits_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "old.toml").write_text(
        '[[tolerated]]\nbuffer = "x"\nissue = "https://example.org/1"\nexpires = 2020-01-01\n'
    )
    assert run_command(["ledger", "old.toml"]) == 1
    assert "old.toml:1: x (https://example.org/1) expired on 2020-01-01" in capsys.readouterr().err


def test_resume_goes_on_with_a_killed_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command([*RUN, "--out", "r"])
    log = folder / "r" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-2]))  # as if killed before its end
    capsys.readouterr()
    assert run_command(["resume", "r", "--json"]) == 1
    summary = said(capsys)
    assert summary["reason"] == "examples"
    assert len(summary["findings"]) == 1


def cut_off(folder: Path, **changes: str) -> Path:
    """The folder of a run that was killed before its end, with another setup in its log."""
    run_command([*RUN, "--out", "r"])
    log = folder / "r" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)[:-2]
    start = json.loads(lines[0])
    if "target" in changes:
        start["spec"].setdefault("setup", {})["target"] = changes["target"]
    start["spec"]["database"] = changes.get("database", "")
    first = json.dumps(start, separators=(",", ":")).encode() + b"\n"
    log.write_bytes(b"".join([first, *lines[1:]]))
    return folder / "r"


@pytest.mark.parametrize("shards", [1, 2])
def test_resume_imports_no_module_that_only_the_log_names(
    shards: int, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine.py").write_text("open('imported', 'w')\n")
    run = cut_off(folder, target="mine:factory")
    if shards > 1:
        log = (run / "events.jsonl").read_bytes()
        (run / "events-0.jsonl").write_bytes(log.replace(b'"spec":{', b'"spec":{"shards":2,'))
        (run / "events.jsonl").unlink()
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert run_command(["resume", "r"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "name it again: --target mine:factory" in line
    assert not (folder / "imported").exists()


def test_resume_takes_a_module_that_is_named_again(folder: Path) -> None:
    cut_off(folder, target="mine:factory")
    assert run_command(["resume", "r", "--target", "mine:factory"]) == 1


def test_resume_takes_a_known_target_from_the_log_alone(folder: Path) -> None:
    cut_off(folder, target="sglang-aiter")
    assert run_command(["resume", "r"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name it again: --database 'dir:a folder'"),
        (["--database", "dir:elsewhere"], "has 'dir:a folder'. Name that, or leave it out"),
        (["--target", "other"], "has 'builtin'. Name that, or leave it out"),
    ],
)
def test_resume_reaches_no_database_that_only_the_log_names(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(folder, database="dir:a folder")
    assert run_command(["resume", "r", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "a folder").exists()


def test_resume_takes_a_database_that_is_named_again(folder: Path) -> None:
    cut_off(folder, database="dir:a folder")
    assert run_command(["resume", "r", "--database", "dir:a folder"]) == 1


def test_one_resume_does_what_the_old_budget_has_no_room_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cut_off(folder)
    log = run / "events.jsonl"
    start, _, rest = log.read_bytes().partition(b"\n")
    first = json.loads(start) | {"seconds": 0.001}
    kept = [line for line in rest.splitlines() if b'"finding_new"' in line]
    log.write_bytes(b"\n".join([json.dumps(first, separators=(",", ":")).encode(), *kept, b""]))
    for path in (run / "findings").rglob("finding.json"):
        path.unlink()
    capsys.readouterr()
    assert run_command(["resume", "r", "--json"]) == 1
    (found,) = said(capsys)["findings"]
    assert (found["finding"]["confirmed"], found.get("left", [])) == ("3/3", [])


def test_minimise_removes_what_others_cover(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(3):
        corpus.add(folder / "c", case(2, 1, seed=seed))
    (folder / "c" / "ours.json").write_bytes(encode_case(case(2, 1)))
    assert run_command(["corpus", "minimise", "c", "--json"]) == 0
    assert len(said(capsys)["removed"]) == 3
    assert [path.name for path in (folder / "c").iterdir()] == ["ours.json"]


def test_minimise_keeps_a_case_for_each_branch_of_the_engine_where_it_is_asked_to(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Traced(FakeRunner):
        def run_case(self, case: Case) -> FakeVerdict:
            return FakeVerdict(branches=frozenset({"engine:1->2", f"engine:2->{case.seed % 2}"}))

    asked = []

    def open_setup(setup: Setup, *, branches: bool = False) -> Opened:
        asked.append(branches)
        return Opened(setup, FakeTarget(), Traced() if branches else FakeRunner(), lambda: None)

    monkeypatch.setattr("fuzzgraph.campaign.open_setup", open_setup)
    for seed in range(4):
        corpus.add(folder / "c", case(2, 1, seed=seed))
    words = ["corpus", "minimise", "c", "--target", "builtin", "--dry-run", "--json"]
    assert run_command(words) == 0
    assert len(said(capsys)["removed"]) == 3
    assert run_command([*words, "--branches"]) == 0
    assert len(said(capsys)["removed"]) == 2
    assert asked == [False, True]


BAD = {
    "branches of no engine": (
        ["corpus", "minimise", "c", "--branches"], "Name it with --target",
    ),
    "report of nothing": (["report", "none"], "none: holds no events.jsonl"),
    "report to a file of all": (["report", ".", "--out", "x"], "Say which with --as."),
    "report in an unknown form": (["report", ".", "--as", "pdf"], "Use one of: html, junit, sarif"),
    "resume of nothing": (["resume", "none"], "none: holds no events.jsonl"),
    "a ledger that is not there": (["ledger", "none.toml"], "ledger none.toml: cannot be read"),
    "a run with a ledger that is not there": (
        [*RUN, "--ledger", "none.toml"], "ledger none.toml: cannot be read",
    ),
    "a run with a baseline that is not there": (
        [*RUN, "--baseline", "none"], "Write one with 'fuzzgraph baseline DIR --out FILE'",
    ),
    "only new without a baseline": ([*RUN, "--only-new"], "Name it with --baseline"),
    "a baseline in a folder": (["baseline", "r", "--out", "."], "is a folder"),
    "a schema of something else": (["schema", "tea"], "Use one of: case, event, summary"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "message"), BAD.values(), ids=list(BAD))
def test_a_wrong_call_is_said_in_one_line_and_leaves_nothing(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert [*folder.iterdir()] == []
