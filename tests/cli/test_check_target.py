"""`fuzzgraph check-target`, on the documentation's engine and on targets with mistakes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.cli.entry import run_command

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
OWN = """
import os
import random
import block_engine as engine
from block_target import BlockSession, BlockTarget
from fuzzgraph.target import Capabilities, Excuse


class Leaving(BlockSession):
    def prepare_replay(self, batch):
        os._exit(0)


class Wavering(BlockSession):
    def shown(self, inputs):
        shown = super().shown(inputs)
        return {**shown, "lengths": shown["lengths"] * 0 + random.SystemRandom().getrandbits(30)}


class Counting(BlockSession):
    def shown(self, inputs):
        shown = super().shown(inputs)
        return {**shown, "lengths": shown["lengths"] + 1}


class Mistaken(BlockSession):
    def observe(self, batch):
        return [][1]


class Hiding(BlockSession):
    fields = tuple(field for field in BlockSession.fields if field.name != "slot_mapping")


class Drives(BlockTarget):
    capabilities = Capabilities(page_sizes=(1,), mrope=True)
    excuses = (Excuse("*.num_splits", "live", "its manual", "splits differ"),)


class Partial:
    name, capabilities = "partial", BlockTarget.capabilities


def of(session):
    class Target(BlockTarget):
        def open(self, config, graphs):
            return session(config, graphs)

    return Target


Leaves, Wavers, Mistakes, Hides, Counts = map(of, (Leaving, Wavering, Mistaken, Hiding, Counting))
"""

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs the repository")


@pytest.fixture(autouse=True)
def beside_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_targets.py").write_text(OWN)
    for name in ("block_engine.py", "block_target.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))


def checked(
    capsys: pytest.CaptureFixture[str], name: str, examples: int = 3
) -> tuple[int, dict[str, Any]]:
    code = run_command(["check-target", name, "--examples", str(examples), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_healthy_target_has_no_problem_and_tells_what_it_shows_and_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, report = checked(capsys, "block_target:BlockTarget")
    assert (code, report["problems"], report["cases"]) == (0, [], 3)
    assert report["outputs"] == {"decode": ["attention"]}
    assert "slot_mapping" in report["shown"]
    assert not [tensor for tensor in report["hidden"] if tensor["changes"]]
    assert all(cost > 0 for cost in report["cost"].values())


def test_metadata_that_no_field_declares_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = checked(capsys, "own_targets:Hides", examples=12)
    hidden = [tensor["name"] for tensor in report["hidden"] if tensor["changes"]]
    assert len(hidden) == 1
    assert "slot_mapping" in hidden[0]


def test_a_dimension_that_is_driven_and_that_nothing_shows_is_a_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, report = checked(capsys, "own_targets:Drives", examples=12)
    assert (code, report["unshown"]) == (1, {"mrope": ["mrope", "mrope_positions"]})
    assert report["problems"][-1] == (
        "mrope is driven and nothing shows mrope or mrope_positions: show it, or take it out of the"
        " capabilities"
    )


def test_excuses_are_listed_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    _, report = checked(capsys, "own_targets:Drives")
    assert report["excuses"] == {"*.num_splits, rule live: splits differ (its manual)": 0}
    assert run_command(["check-target", "own_targets:Drives", "--examples", "1"]) == 0
    line = "excused in 0 steps: *.num_splits, rule live: splits differ (its manual)"
    assert line in capsys.readouterr().out


def test_an_engine_that_ends_its_process_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = checked(capsys, "own_targets:Leaves")
    assert (code, report["problems"]) == (1, ["the engine's process left with exit code 0"])


def test_a_target_that_differs_from_itself_is_a_problem(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, report = checked(capsys, "own_targets:Wavers")
    assert code == 1
    assert report["unstable"]


def test_a_finding_comes_with_the_command_that_writes_its_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["check-target", "own_targets:Counts", "--examples", "1"]
    assert run_command(words) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith("  PROBLEM finding: ")
    assert said[-1] == (
        "  for the cases of findings, made smaller, and their scripts: "
        "fuzzgraph run --target own_targets:Counts"
    )


def test_a_target_that_fails_ends_with_three_and_its_own_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, report = checked(capsys, "own_targets:Mistakes")
    assert (code, report["error"]["kind"]) == (3, "TargetFailed")
    assert "at own_targets.py:" in report["error"]["message"]


def test_what_is_no_target_is_refused_by_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = checked(capsys, "own_targets:Partial")
    assert code == 2
    assert (
        "gives a Partial, which is not a target: it lacks unsupported; lacks open"
        in (report["error"]["message"])
    )


NO_TARGETS = ["os:getcwd", ":b", "../x:y", "subprocess:Popen", "builtins:exit", "a b:c", "x:"]


@pytest.mark.parametrize("name", NO_TARGETS)
def test_a_wrong_name_is_refused_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--target", name, "--examples", "1", "--isolation", "off"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert said.startswith("fuzzgraph: UsageError: target=")


def test_a_run_whose_target_fails_ends_with_three_and_writes_no_issue(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["run", "--target", "own_targets:Mistakes", "--examples", "3", "--seed", "1"]
    assert run_command([*words, "--out", "out"]) == 3
    assert "run failed: TargetFailed: target 'block': check raised" in capsys.readouterr().out
    assert not list(tmp_path.glob("out/**/issue.md"))
    assert (tmp_path / "out" / "report.html").is_file()


def test_an_engine_that_ends_its_process_is_found_by_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["run", "--target", "own_targets:Leaves", "--findings", "1", "--seed", "1"]
    assert run_command([*words, "--examples", "2", "--time", "6s", "--out", "out"]) == 1
    assert "left with exit code 0" in capsys.readouterr().out
