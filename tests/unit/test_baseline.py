"""The baseline: what a branch already has, a line for each finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.baseline import baseline_text, known_of, load_baseline
from fuzzgraph.errors import UsageError
from fuzzgraph.run.records import ReportedFinding, finding_id
from tests.fakes import case, finding


def reported(buffer: str, status: str = "new") -> ReportedFinding:
    one = finding(buffer=buffer)
    record = ReportedFinding(id=finding_id(one.key), finding=one, case=case(1), digest="d")
    return record if status == "new" else ReportedFinding(
        id=record.id, finding=one, case=record.case, digest="d", status="tolerated"
    )  # fmt: skip


def written(tmp_path: Path, *buffers: str) -> Path:
    path = tmp_path / "baseline.jsonl"
    known = known_of([reported(buffer) for buffer in buffers], "2026-01-02")
    path.write_bytes(baseline_text(known.values()))
    return path


def test_a_baseline_knows_the_findings_of_a_run_and_no_others(tmp_path: Path) -> None:
    baseline = load_baseline(written(tmp_path, "a", "b"))
    assert baseline.has(finding(buffer="a", message="other words"))
    assert not baseline.has(finding(buffer="c"))


def test_a_tolerated_finding_is_the_ledgers_and_not_the_baselines() -> None:
    assert known_of([reported("a", "tolerated")], "") == {}


def test_equal_baselines_are_equal_bytes_whatever_the_order() -> None:
    one = known_of([reported("a"), reported("b")], "")
    other = known_of([reported("b"), reported("a")], "")
    assert baseline_text(one.values()) == baseline_text(other.values())


def test_a_damaged_line_is_named_and_costs_itself_only(tmp_path: Path) -> None:
    path = written(tmp_path, "a", "b", "c")
    lines = path.read_bytes().splitlines()
    cut, deep = lines[1].replace(b"kv", b"xx")[:-7], b'{"id":' + b"[" * 100_000
    path.write_bytes(b"\n".join([lines[0], cut, b"\xff", deep, lines[2]]))
    baseline = load_baseline(path)
    assert len(baseline.known) == 2
    assert [line.partition(": not a known")[0] for line in baseline.bad_lines] == [
        "baseline.jsonl:2",
        "baseline.jsonl:3",
        "baseline.jsonl:4",
    ]


def test_a_line_whose_name_belongs_to_another_key_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a")
    path.write_bytes(path.read_bytes().replace(b'"buffer":"a"', b'"buffer":"b"'))
    (line,) = load_baseline(path).bad_lines
    assert "does not belong to this key" in line


def test_a_baseline_that_is_not_there_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fuzzgraph baseline DIR --out FILE"):
        load_baseline(tmp_path / "none.jsonl")
