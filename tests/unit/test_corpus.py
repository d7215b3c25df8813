"""The corpus: strict entries, atomic writes, nothing lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzzgraph import corpus
from fuzzgraph.case import Case, digest, encode_case, load_case
from fuzzgraph.errors import UsageError
from tests.fakes import case


def test_an_added_case_is_named_by_its_digest_and_reads_back_equal(tmp_path: Path) -> None:
    path = corpus.add(tmp_path / "new", case(1, 2))
    assert path.name == f"{digest(case(1, 2))}.json"
    assert load_case(path) == case(1, 2)


def test_adding_a_case_twice_keeps_one_file_as_it_was(tmp_path: Path) -> None:
    path = corpus.add(tmp_path, case(1))
    path.write_bytes(encode_case(case(1)))
    assert corpus.add(tmp_path, case(1)) == path
    assert path.read_bytes() == encode_case(case(1))


@pytest.mark.parametrize("content", [b"{", b'{"schema_version":1,"config":{"dtype":"\xff"}}'])
def test_a_bad_entry_costs_that_entry_and_is_named(content: bytes, tmp_path: Path) -> None:
    corpus.add(tmp_path, case(1))
    (tmp_path / "broken.json").write_bytes(content)
    loaded = corpus.load(tmp_path)
    assert [entry.case for entry in loaded.entries] == [case(1)]
    assert [entry.path.name for entry in loaded.bad] == ["broken.json"]
    assert "broken.json: not valid JSON" in loaded.bad_lines[0]


def test_files_that_are_no_entries_are_left_alone(tmp_path: Path) -> None:
    for name in ("README.md", "case.schema.json", ".x.json.part"):
        (tmp_path / name).write_text("{")
    assert corpus.load(tmp_path) == corpus.Loaded()


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space left on device"):
        corpus.write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        corpus.add(tmp_path / "file" / "cases", case(1))
    assert str(caught.value) == (
        f"{tmp_path}/file/cases: cannot be written (Not a directory). "
        "Make room, or name a folder that you may write."
    )


def test_a_missing_folder_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read \\(No such file or directory\\)"):
        corpus.load(tmp_path / "none")


def test_merging_adds_what_is_new_and_counts_the_rest(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    (ours / "named-by-a-person.json").write_bytes(encode_case(case(1)))
    for other in (case(1), case(2)):
        corpus.add(theirs, other)
    (theirs / "bad.json").write_text("[]")
    merged = corpus.merge(ours, [theirs])
    assert [path.name for path in merged.added] == [f"{digest(case(2))}.json"]
    assert merged.known == 1
    assert len(merged.bad_lines) == 1


def test_pruning_removes_second_copies_and_rests_and_keeps_a_persons_name(tmp_path: Path) -> None:
    corpus.add(tmp_path, case(1))
    (tmp_path / "stale-tail.json").write_bytes(encode_case(case(1)))
    (tmp_path / ".x.json.abc.part").write_text("half")
    (tmp_path / "bad.json").write_text("{")
    gone = corpus.prune(tmp_path)
    assert {path.name for path in gone} == {f"{digest(case(1))}.json", ".x.json.abc.part"}
    assert sorted(os.listdir(tmp_path)) == ["bad.json", "stale-tail.json"]


def test_pruning_malformed_entries_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    assert corpus.prune(tmp_path) == []
    assert [path.name for path in corpus.prune(tmp_path, malformed=True)] == ["bad.json"]
    assert os.listdir(tmp_path) == []


def test_a_dry_prune_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / ".x.json.abc.part").write_text("half")
    assert len(corpus.prune(tmp_path, dry_run=True)) == 1
    assert os.listdir(tmp_path) == [".x.json.abc.part"]


def test_a_case_is_found_by_the_first_digits_of_its_digest(tmp_path: Path) -> None:
    path = corpus.add(tmp_path, case(1))
    assert corpus.find(digest(case(1))[:6], [tmp_path]) == path


def test_a_case_that_a_person_named_is_found_by_its_digest_too(tmp_path: Path) -> None:
    path = corpus.add(tmp_path, case(1)).rename(tmp_path / "one-row.json")
    (tmp_path / "no-case.json").write_text("{}")
    assert corpus.find(digest(case(1))[:6], [tmp_path]) == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("abc", "no such file", id="too few digits"),
        pytest.param("nothing.json", "no such file", id="no such path"),
        pytest.param("abcd", "2 cases begin like this", id="ambiguous"),
        pytest.param(".", "is a folder", id="folder"),
    ],
)
def test_a_case_that_cannot_be_found_is_said_with_the_way_out(
    tmp_path: Path, name: str, message: str
) -> None:
    for tail in ("1", "2"):
        (tmp_path / f"abcd{tail}.json").write_text("{}")
    with pytest.raises(UsageError, match=message):
        corpus.find(name, [tmp_path])


def sizes(one: Case) -> set[int]:
    """Stands for what a case covers: its batch sizes."""
    return {len(step.rows) for step in one.steps}


def test_minimising_keeps_every_feature_in_small_cases(tmp_path: Path) -> None:
    for one in (case(1), case(2), case(1, 2), case(3, 2, 1, 3)):
        corpus.add(tmp_path, one)
    gone = corpus.minimise(tmp_path, sizes)
    left = [entry.case for entry in corpus.load(tmp_path).entries]
    assert set().union(*map(sizes, left)) == {1, 2, 3}
    assert len(gone) + len(left) == 4
    assert case(1, 2) not in left, "its sizes stand in smaller cases"


def test_minimising_keeps_a_persons_case_and_drops_what_it_covers(tmp_path: Path) -> None:
    (tmp_path / "two-sizes.json").write_bytes(encode_case(case(1, 2)))
    corpus.add(tmp_path, case(1))
    corpus.add(tmp_path, case(3))
    gone = corpus.minimise(tmp_path, sizes)
    assert [path.stem for path in gone] == [digest(case(1))]
    assert (tmp_path / "two-sizes.json").exists()


def test_a_dry_run_of_minimising_touches_nothing(tmp_path: Path) -> None:
    for one in (case(1), case(1, 1)):
        corpus.add(tmp_path, one)
    (gone,) = corpus.minimise(tmp_path, sizes, dry_run=True)
    assert gone.exists()
