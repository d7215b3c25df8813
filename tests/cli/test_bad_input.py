"""Every wrong call: exit code 2, one line that says what, where and the way out, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, encode_case
from fuzzgraph.cli.entry import run_command
from tests.fakes import case

GOOD = msgspec.to_builtins(case(1, 2))


def altered(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


def rows(*lengths: int, **config: Any) -> str:
    """A one-step decode case with these sequence lengths, unchecked."""
    step = ReplayStep(rows=tuple(BatchRow(request=i, seq_len=n) for i, n in enumerate(lengths)))
    one = Case(schema_version=1, config=EngineConfig(**config), steps=(step,))
    return encode_case(one).decode()


BAD_CASES = {
    "not json": ('{"schema_version": 1,', "not valid JSON", "Take the case.json"),
    "empty file": ("", "not valid JSON", "Take the case.json"),
    "binary": ("\x00\xff", "not valid JSON", "Take the case.json"),
    "a list": ("[]", "not a case: it has no schema_version", "Take the case.json"),
    "unknown schema version": (
        altered(schema_version=99),
        "schema_version=99 is not supported; this FuzzGraph reads 1",
        "Convert the case",
    ),
    "no schema version": ('{"steps": []}', "it has no schema_version", "Take the case.json"),
    "unknown field": (altered(color="red"), "unknown field `color`", "'fuzzgraph schema case'"),
    "wrong type": (altered(seed="one"), "Expected `int`, got `str` - at `$.seed`", "schema"),
    "no steps": (altered(steps=[]), "steps=() is empty", "Give at least one step"),
    "lists that disagree": (
        altered(steps=[{"rows": [{"request": 0}], "finish": [3]}]),
        "steps[0].finish=3 names a request that is not live",
        "Add the request in an earlier step",
    ),
    "a request twice": (
        altered(steps=[{"rows": [{"request": 0}, {"request": 0}]}]),
        "steps[0].rows=[0, 0] name a request twice",
        "Keep one row per request",
    ),
    "batch above every size": (
        rows(1, 1, 1, capture_bs=(1, 2), eager_above_ladder=False),
        "steps[0]: size=3 exceeds max(capture_bs)=2 and eager_above_ladder is false",
        "Add a size >= 3 to config.capture_bs",
    ),
    "negative length": (
        rows(-4),
        "steps[0].rows[0].seq_len=-4 must lie in 1..max_context_len=16",
        "Shorten the request",
    ),
    "overlong length": (
        rows(1, 17),
        "steps[0].rows[1].seq_len=17 must lie in 1..max_context_len=16",
        "raise config.max_context_len",
    ),
    "seed too large for an int": (altered(seed=1 << 80), "must lie in 0..2**63-1", "non-negative"),
    "nested too deeply": ("[" * 100_000, "not valid JSON", "Take the case.json"),
    "negative page size": (rows(1, page_size=-1), "config.page_size=-1 must lie in 1..", "Change"),
}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a call that must end with exit code 2."""
    code = run_command([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("fuzzgraph: ")
    return err


@pytest.mark.parametrize("verb", ["replay", "shrink", "export"])
@pytest.mark.parametrize("name", BAD_CASES)
def test_a_bad_case_file_is_named_with_its_field_and_the_way_out(
    name: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, what, way_out = BAD_CASES[name]
    path = tmp_path / "case.json"
    path.write_bytes(text.encode("latin-1"))
    extra = ["--as", "script"] if verb == "export" else []
    line = refused(capsys, verb, path, *extra)
    assert str(path) in line
    assert what in line
    assert way_out in line
    assert os.listdir(tmp_path) == ["case.json"]
    assert path.read_bytes() == text.encode("latin-1")


BAD_OPTIONS: dict[str, tuple[list[str], str, str]] = {
    "time": (
        ["run", "--time", "10x"],
        "--time='10x' is not a valid duration",
        "e.g. 60s, 10m or 8h",
    ),
    "time zero": (["run", "--time", "0s"], "--time='0s' is not a valid duration", "60s"),
    "examples": (["run", "--examples", "-3"], "--examples='-3' is not a whole number >= 0", "Use"),
    "findings": (["run", "--findings", "0"], "--findings='0' is not a whole number >= 1", "Use"),
    "seed": (["run", "--seed", "abc"], "--seed='abc' is not a whole number >= 0", "Use one"),
    "target": (["run", "--target", "vlm"], "target='vlm' is unknown", "builtin"),
    "targets to nowhere": (
        ["targets", "--write", "t.md"],
        "--write needs --releases",
        "Use --releases all",
    ),
    "an unknown target told of": (
        ["targets", "--target", "sglang-fa5"],
        "target='sglang-fa5' is unknown",
        "Did you mean",
    ),
    "releases of a target that has none": (
        ["targets", "--target", "builtin", "--releases", "0.5.12"],
        "target='builtin' is no target of a released engine",
        "Drop --releases",
    ),
    "targets of a wrong release": (
        ["targets", "--releases", "0.5.12"],
        "releases='0.5.12' names none of these engines: ",
        "sglang==0.5.12",
    ),
    "targets of a wrong version": (
        ["targets", "--releases", "sglang==new"],
        "release='new' is not a release name",
        "sglang==0.5.12",
    ),
    "target of a missing module": (
        ["run", "--target", "no_such_module:Target"],
        "No module named 'no_such_module'",
        "fuzzgraph targets",
    ),
    "device": (["run", "--device", "tpu"], "--device='tpu' is unknown", "cpu, cuda"),
    "graphs": (
        ["run", "--graphs", "cuda"],
        "--graphs='cuda' is unknown",
        "recorder, device, emulated",
    ),
    "device graphs on the cpu": (
        ["run", "--graphs", "device"],
        "graphs='device' needs a GPU; got device='cpu'",
        "--graphs recorder",
    ),
    "profile": (["run", "--profile", "fast"], "--profile='fast' is unknown", "ci, nightly"),
    "release of the builtin": (
        ["run", "--release", "1.0"],
        "release='1.0': target 'builtin' has no releases",
        "Drop --release",
    ),
    "fault on another target": (
        ["run", "--fault", "x", "--target", "other"],
        "fault='x' is planted in the built-in engine; got target='other'",
        "--target builtin",
    ),
    "corpus folder": (["run", "--corpus", "no/such"], "corpus folder no/such", "existing folder"),
    "verb": (["fuzz"], "verb='fuzz' is unknown", "run, resume, replay, shrink"),
    "option": (["run", "--tiem", "3s"], "--tiem", "fuzzgraph run --help"),
    "no case": (["replay"], "Missing argument 'CASE'", "fuzzgraph replay --help"),
    "no such case": (["replay", "no.json"], "case 'no.json': no such file", "corpus list"),
    "export without a kind": (["export", "x"], "Missing option '--as'", "export --help"),
    "export kind": (["export", "x", "--as", "pdf"], "--as='pdf' is unknown", "script, pytest"),
    "release": (["releases", "fetch", "sglang"], "release='sglang' names no version", "sglang=="),
    "sub-verb": (["corpus", "drop"], "No such command 'drop'", "fuzzgraph corpus --help"),
    "list of a missing folder": (["corpus", "list", "none"], "corpus folder none", "existing"),
    "merge of a missing folder": (["corpus", "merge", "none"], "corpus folder none", "existing"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_wrong_option_is_said_with_its_value_and_the_way_out(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, what, way_out = BAD_OPTIONS[name]
    line = refused(capsys, *arguments)
    assert what in line
    assert way_out in line
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_said_before_anything_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "run", "--device", "cuda")
    assert "AdapterUnavailable: device='cuda'" in line
    assert "Use --device cpu, or check with 'fuzzgraph doctor'." in line
    assert os.listdir(tmp_path) == []


def test_a_corpus_folder_that_cannot_be_written_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "case.json"
    source.write_bytes(encode_case(case(1)))
    (tmp_path / "file").write_text("kept")
    line = refused(capsys, "corpus", "add", source, "--folder", tmp_path / "file" / "cases")
    assert "cannot be written (Not a directory). Make room, or name a folder that you" in line
    assert (tmp_path / "file").read_text() == "kept"


def test_one_bad_case_keeps_all_of_them_out_of_the_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(encode_case(case(1)))
    bad.write_text("{")
    refused(capsys, "corpus", "add", good, bad, "--folder", tmp_path / "cases")
    assert not (tmp_path / "cases").exists()


def test_an_out_folder_that_holds_files_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    line = refused(capsys, "run", "--examples", "1", "--out", tmp_path)
    assert "already holds files. Name a new or empty folder" in line
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_with_json_a_wrong_call_is_an_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["run", "--time", "10x", "--json"])
    out, err = capsys.readouterr()
    assert code == 2
    said = json.loads(out)
    assert said["exit_code"] == 2
    assert said["error"]["kind"] == "UsageError"
    assert said["error"]["message"] in err


def test_a_reader_that_leaves_ends_the_command_without_a_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fuzzgraph", "schema", "case"]
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (3, "")
