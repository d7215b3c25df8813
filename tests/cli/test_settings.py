"""A project's `fuzzgraph.toml`, from the command line and the plugin to the record of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzzgraph.case import encode_case
from fuzzgraph.cli.entry import run_command
from fuzzgraph.run.events import Setup
from tests.fakes import FakeRunner, case, no_exporting, opener, paged

TEXT = 'examples = 30\nseed = 4\nledger = "ledger.toml"\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a file of settings; every verb opens a runner without an engine."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "fuzzgraph.toml").write_text(TEXT)
    (tmp_path / "ledger.toml").write_text("")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setattr("fuzzgraph.campaign.open_setup", opener(FakeRunner()))
    monkeypatch.setattr("fuzzgraph.campaign.run.Exporting", no_exporting)
    return tmp_path


def test_a_run_without_options_says_and_records_which_file_it_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", "--out", "r"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    path = project / "fuzzgraph.toml"
    assert first == (
        f"fuzzing builtin, recorder on cpu; seed 4; settings of {path}; 30 examples, "
        f"{len(list((Path(__file__).parents[2] / 'corpus' / 'cases').glob('*.json')))} "
        "corpus cases first"
    )
    spec = json.loads((project / "below" / "r" / "summary.json").read_text())["spec"]
    assert spec["settings"] == str(path)
    assert spec["ledger"] == str(project / "ledger.toml")
    started = json.loads((project / "below" / "r" / "events.jsonl").read_text().splitlines()[0])
    assert started["spec"]["settings"] == str(path)


def test_options_win_and_no_settings_passes_over_the_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", "--examples", "20", "--json"]) == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    assert (spec["budget"], spec["seed"]) == ({"examples": 20}, 4)
    words = ["run", "--no-settings", "--examples", "20", "--seed", "1", "--json"]
    assert run_command(words) == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    assert "settings" not in spec and "ledger" not in spec


def test_a_bad_file_is_one_line_and_leaves_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "fuzzgraph.toml").write_text("tiem = 3\n")
    assert run_command(["run", "--out", "r"]) == 2
    assert "Did you mean 'time'?" in capsys.readouterr().err
    assert not (project / "below" / "r").exists()


def test_a_replay_takes_the_projects_setup_unless_the_call_names_its_target(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A printed replay command names the target, and has to mean the same everywhere."""
    seen: list[Setup] = []
    opened = opener(FakeRunner(paged))

    def keep(setup: Setup) -> object:
        seen.append(setup)
        return opened(setup)

    monkeypatch.setattr("fuzzgraph.campaign.open_setup", keep)
    (project / "fuzzgraph.toml").write_text("strict-nan = true\nexamples = 3\n")
    (project / "case.json").write_bytes(encode_case(case(3)))
    path = str(project / "case.json")
    run_command(["replay", path])
    assert f"settings of {project / 'fuzzgraph.toml'}" in capsys.readouterr().err
    run_command(["replay", path, "--target", "builtin"])
    run_command(["replay", path, "--no-settings"])
    assert "settings of" not in capsys.readouterr().err
    assert seen == [Setup(strict_nan=True), Setup(), Setup()]


def test_what_is_read_can_be_seen(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project / "fuzzgraph.toml"
    file.write_text(TEXT + 'targets = ["sglang-fa3", "sglang-aiter"]\ntime = "2m"\n')
    assert run_command(["settings"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"settings of {file}",
        "  time = 2m",
        "  examples = 30",
        "  seed = 4",
        f"  ledger = {project / 'ledger.toml'}",
        "  targets = sglang-fa3 sglang-aiter",
    ]
    assert run_command(["settings", "--targets"]) == 0
    assert capsys.readouterr().out == "sglang-fa3\nsglang-aiter\n"
    assert run_command(["settings", "--source", str(project), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["options"]["time"]) == (str(file), 120.0)


@pytest.mark.parametrize("text", ["", None])
def test_a_loop_over_no_targets_is_an_error(
    project: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "fuzzgraph.toml"
    file.unlink() if text is None else file.write_text(text)
    assert run_command(["settings", "--targets"]) == 2
    assert "names no targets. Write targets" in capsys.readouterr().err
    assert run_command(["settings", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == ("" if text is None else str(file))
    assert (told["options"], told["targets"]) == ({}, [])
