"""In a checkout of the engine, `run` proposes to fuzz it; nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.cli.entry import run_command
from fuzzgraph.cli.source_hint import source_hint
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets import open_target
from tests.cli.test_verbs import use
from tests.fakes import FakeRunner
from tests.unit.test_source_tree import git

SAID = "fuzzgraph: the sglang of this checkout is not what runs: --source . fuzzes it\n"
WORDS = ["run", "--target", "sglang-fa3", "--examples", "1", "--corpus", "none", "--json"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a checkout with an engine's package in the place where sglang has it."""
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "none").mkdir()
    (tmp_path / "python" / "sglang" / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "python")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.chdir(tmp_path)
    use(monkeypatch, FakeRunner())
    return tmp_path


def test_a_run_in_a_checkout_of_the_engine_proposes_it_in_one_line(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(WORDS) == 0
    assert capsys.readouterr().err.count(SAID) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--release", "0.5.13"),
        ("--source", "python"),
        ("--target", "builtin"),
    ],
)
def test_a_run_that_names_an_engine_proposes_none(
    checkout: Path, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*WORDS, *words]) == 0
    assert "--source" not in capsys.readouterr().err


def test_a_release_of_the_settings_is_named_as_well(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "fuzzgraph.toml").write_text('release = "0.5.13"\n')
    assert run_command(WORDS) == 0
    assert "--source" not in capsys.readouterr().err


def test_a_folder_below_the_root_is_told_the_way_up(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, target = Setup(target="sglang-fa3"), open_target("sglang-fa3")
    monkeypatch.chdir(checkout / "python" / "sglang" / "srt")
    assert source_hint(setup, target).endswith("--source ../../.. fuzzes it")


def test_an_unpacked_wheel_and_a_checkout_without_the_engine_are_not_proposed(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, target = Setup(target="sglang-fa3"), open_target("sglang-fa3")
    wheel = tmp_path_factory.mktemp("wheel")
    (checkout / "python" / "sglang").rename(wheel / "sglang")
    assert source_hint(setup, target) == ""
    monkeypatch.chdir(wheel)
    assert source_hint(setup, target) == ""


def test_an_installed_package_of_this_checkout_is_what_runs_already(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(checkout / "python"))
    assert source_hint(Setup(target="sglang-fa3"), open_target("sglang-fa3")) == ""
