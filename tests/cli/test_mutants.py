"""`fuzzgraph mutants`: a small engine is changed line by line, from the start to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.cli.entry import run_command
from fuzzgraph.mutants import judgements, log, run
from fuzzgraph.mutants.drawing import candidates
from fuzzgraph.mutants.records import Mutant, Result
from fuzzgraph.mutants.source import Source
from fuzzgraph.run.spec import Setup
from tests.unit.mutants.records import result, sought

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
TARGET = "block_target:BlockTarget"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs the repository")

SEEN = {
    ("self.lengths[padded] = 0", "pass"): "contract",
    ("self.reset(slice(len(requests), rows))", "pass"): "footprint",
}
UNSEEN = (
    "slots = slots.clamp(min=SCRATCH_BLOCK * self.block_size)",
    "slots = slots.clamp(min=SCRATCH_BLOCK // self.block_size)",
)
"""The scratch block is block 0."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def chosen(folder: Path, *wanted: tuple[str, str]) -> Path:
    """A log that names mutants of the example's engine by their lines."""
    source = Source.read(str(EXAMPLES / "block_engine.py"))
    every = candidates("block_engine", source, range(1, len(source.lines)))
    by_text = {(one.mutant.before, one.mutant.after): one.mutant for one in every}
    folder.mkdir()
    results = [Result(mutant=by_text[text], outcome="survived") for text in wanted]
    log.Writer(folder / log.NAME).write([sought(), *results])
    return folder


def measure(out: Path, *more: str) -> int:
    options = ["--target", TARGET, "--seconds", "1s", "--jobs", "1", "--out", str(out)]
    return run_command(["mutants", *options, *more])


def results(out: Path) -> dict[tuple[str, str], Result]:
    found = log.read(out / log.NAME).results.values()
    return {(one.mutant.before, one.mutant.after): one for one in found}


@pytest.mark.slow
def test_mutants_of_an_engine_are_found_judged_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    like = chosen(tmp_path / "like", *SEEN, UNSEEN)
    assert measure(out, "--like", str(like)) == 1  # the survivor is not judged yet
    found = results(out)
    assert {text: found[text].oracle for text in SEEN} == SEEN
    assert found[UNSEEN].outcome == "survived" and found[UNSEEN].cases > 10
    assert f"{len(SEEN)} of {len(SEEN) + 1} found" in (out / "report.md").read_text()

    monkeypatch.setattr(run, "_measured", never)  # everything is in the log
    judge(out / judgements.NAME, found[UNSEEN].mutant)
    capsys.readouterr()
    assert measure(out, "--like", str(like), "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["percent"], record["equivalent"], record["exit_code"]) == (100, 1, 0)

    judge(out / judgements.NAME, found[next(iter(SEEN))].mutant)
    assert measure(out, "--like", str(like)) == 2
    assert "but the mutant was found" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_sample_goes_on_to_the_same_end(tmp_path: Path) -> None:
    out, options = tmp_path / "out", ("--sample", "3", "--operators", "dropped_statement")
    measure(out, *options)
    whole = results(out)
    assert sum(one.outcome != "does_not_start" for one in whole.values()) == 3
    path = out / log.NAME
    kept = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:-1]) + kept[-1][:40])
    measure(out, *options)
    again = results(out)
    assert {text: one.outcome for text, one in again.items()} == {
        text: one.outcome for text, one in whole.items()
    }


@pytest.mark.slow
def test_a_sample_of_0_learns_which_lines_run_and_changes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    measure(out, "--sample", "0")
    learned = log.read(out / log.NAME)
    assert learned.ground is not None and learned.ground.executed["block_engine"]
    assert not learned.results
    monkeypatch.setattr(run, "_measured", never)
    measure(out, "--sample", "0")


def never(*_: object) -> Any:
    raise AssertionError("the engine is not asked again")


def judge(path: Path, mutant: Mutant) -> None:
    said = f'["{mutant.id}"]\njudgement = "equivalent"\nwhy = "nobody reads it"\n'
    path.write_text(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--operators", "typo"), "operators='typo' is unknown. Use some of: off_by_one"),
        (("--target", "nothing"), "target='nothing' is unknown"),
        (("--sample", "-1"), "--sample='-1'"),
        (("--seconds", "soon"), "--seconds='soon'"),
        (("--like", "empty"), "has no mutants.jsonl with results"),
        (("--release", "1.2"), "belongs to no package with releases"),
        (("--seed", "2"), "holds another measurement: seed was 1 and is 2"),
        (("--modules", "engine.b"), "holds another measurement: modules"),
    ],
)
def test_a_wrong_call_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, str],
    said: str,
) -> None:
    monkeypatch.setattr(run, "_host", never)
    out = tmp_path / "out"
    if "another measurement" in said:
        out.mkdir()
        asked = sought(setup=Setup(target=TARGET), seconds=1.0)
        log.Writer(out / log.NAME).write([asked])
    assert measure(out, *options) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.count("\n") == 1


def test_mutants_of_another_engine_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    like = tmp_path / "like"
    like.mkdir()
    log.Writer(like / log.NAME).write([sought(), result("a")])
    assert measure(tmp_path / "out", "--like", str(like)) == 2
    assert "1 of 1 mutants are not of this engine" in capsys.readouterr().err


def test_code_that_no_case_reaches_is_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path / "out", "--modules", "block_engine.elsewhere") == 2
    assert "no line of them can be changed" in capsys.readouterr().err
