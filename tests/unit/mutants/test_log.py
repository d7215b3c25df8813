"""The log survives a kill, and what is no log is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.mutants import log
from tests.unit.mutants.records import ground, result, sought


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / log.NAME
    log.Writer(path).write([sought(), ground(), result("a"), result("b", "found")])
    read = log.read(path)
    assert (read.sought, read.ground) == (sought(), ground())
    assert list(read.results.values()) == [result("a"), result("b", "found")]


def test_no_file_is_an_empty_log(tmp_path: Path) -> None:
    assert log.read(tmp_path / "none").sought is None


def test_a_line_that_a_kill_cut_short_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / log.NAME
    log.Writer(path).write([sought(), ground(), result("a"), result("b")])
    path.write_bytes(path.read_bytes()[:-9])
    assert list(log.read(path).results) == ["a"]
    log.Writer(path).write([result("c")])
    assert list(log.read(path).results) == ["a", "c"]


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"not JSON",
        b'{"type":"Other"}',
        b'{"type":"Ground","lines":1,"lines":2}',
        b'{"type":"Result","outcome":"found"}',
        b"[" * 100_000,
    ],
    ids=["no tag", "no JSON", "unknown tag", "a key twice", "fields missing", "too deep"],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / log.NAME
    path.write_bytes(line + b"\n")
    with pytest.raises(UsageError, match=r"mutants\.jsonl:1: no line of a log"):
        log.read(path)
