"""The CI script on a command that stands for `fuzzgraph`, and what the workflows call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "fuzz"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the repository")

# Writes down how it was called; `run` leaves a log and ends as told, `resume` ends the next time.
STAND_IN = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
out=
for word in "$@"; do
  [ "$before" = --out ] && out=$word
  before=$word
done
case $1 in
  run) mkdir -p "$out/corpus"; echo {} > "$out/events.jsonl"; echo "# a run" > "$out/summary.md"
       [ "$RUN_ENDS" = kill ] && kill -9 $$
       exit "$RUN_ENDS" ;;
  resume) [ "$(grep -c ^resume "$CALLS")" -lt 3 ] && kill -9 $$
          exit 1 ;;
esac
"""


class Shell:
    """The script in a project of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir()
        (folder / "bin").mkdir()
        shutil.copy(SCRIPT, folder / ".ci" / "fuzz")
        command = folder / "bin" / "fuzzgraph"
        command.write_text(STAND_IN)
        command.chmod(0o755)

    def run(self, *words: str, ends: str = "0", **environment: str) -> int:
        done = subprocess.run(
            [self.folder / ".ci" / "fuzz", *words],
            env={
                "PATH": os.environ["PATH"],
                "FUZZ_BIN": "bin",
                "CALLS": str(self.folder / "calls"),
                "RUN_ENDS": ends,
                **environment,
            },
            capture_output=True,
        )
        return done.returncode

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.mark.parametrize("code", ["0", "1", "2", "3"])
def test_a_pull_request_ends_as_its_run_does(shell: Shell, code: str) -> None:
    assert shell.run("pr", ends=code) == int(code)
    (call,) = shell.calls
    assert call.startswith("run --target builtin --device cpu --time 8m --baseline ")
    assert call.endswith(" --only-new --out fuzz-out")


def test_a_pull_request_is_held_against_the_baseline_of_the_project(shell: Shell) -> None:
    (shell.folder / "corpus").mkdir()
    (shell.folder / "corpus" / "baseline.jsonl").touch()
    shell.run("pr", FUZZ_TARGET="sglang-aiter", FUZZ_RELEASE="0.5.12", FUZZ_TIME="60s")
    assert "--baseline corpus/baseline.jsonl" in shell.calls[0]
    assert "--target sglang-aiter --device cpu --release 0.5.12 --time 60s" in shell.calls[0]


def test_the_summary_goes_where_the_job_shows_it(shell: Shell, tmp_path: Path) -> None:
    shown = tmp_path / "shown.md"
    shell.run("pr", GITHUB_STEP_SUMMARY=str(shown))
    assert shown.read_text() == "# a run\n"


def test_a_killed_night_is_resumed_until_it_ends(shell: Shell) -> None:
    assert shell.run("nightly", ends="kill") == 1
    verbs = [call.split()[0] for call in shell.calls]
    assert verbs == ["run", "resume", "resume", "resume", "corpus", "corpus", "report"]


def test_a_night_with_findings_is_not_run_twice(shell: Shell) -> None:
    assert shell.run("nightly", ends="1") == 1
    assert [call.split()[0] for call in shell.calls] == ["run", "corpus", "corpus", "report"]
    assert "--profile nightly --corpus fuzz-state/corpus" in shell.calls[0]


def test_of_earlier_nights_the_summary_is_kept_and_of_the_oldest_nothing(shell: Shell) -> None:
    runs = shell.folder / "fuzz-state" / "runs"
    for day in range(1, 33):
        night = runs / f"202501{day:02}-220000"
        (night / "findings").mkdir(parents=True)
        (night / "summary.json").touch()
    shell.run("nightly")
    left = sorted(path.name for path in runs.iterdir())
    assert len(left) == 30
    assert left[0] == "20250104-220000"
    assert [path.name for path in (runs / left[0]).iterdir()] == ["summary.json"]
    assert (runs / left[-1] / "events.jsonl").is_file()


def test_several_targets_share_a_night_and_keep_their_states_apart(shell: Shell) -> None:
    several = "builtin-triton\n  sglang-triton==0.5.13 my.engine:Target"
    assert shell.run("nightly", FUZZ_TARGETS=several, FUZZ_TIME="2h") == 0
    runs = [call for call in shell.calls if call.startswith("run ")]
    assert [call.partition(" --corpus ")[0] for call in runs] == [
        "run --target builtin-triton --device cpu --time 2400s --profile nightly",
        "run --target sglang-triton --device cpu --release 0.5.13 --time 2400s --profile nightly",
        "run --target my.engine:Target --device cpu --time 2400s --profile nightly",
    ]
    kept = sorted(path.name for path in (shell.folder / "fuzz-state").iterdir())
    assert kept == ["builtin-triton", "my.engine-Target", "sglang-triton-0.5.13"]


def test_a_target_that_fails_takes_nothing_from_the_others(shell: Shell) -> None:
    assert shell.run("nightly", ends="3", FUZZ_TARGETS="one two") == 3
    assert [call.split()[2] for call in shell.calls if call.startswith("run ")] == ["one", "two"]


@pytest.mark.parametrize("time", ["8d", "soon", "-5m", "1h30m"])
def test_a_time_that_cannot_be_shared_is_refused(shell: Shell, time: str) -> None:
    assert shell.run("nightly", FUZZ_TARGETS="one two", FUZZ_TIME=time) == 2
    assert not (shell.folder / "calls").exists()


def test_an_empty_list_of_targets_is_none(shell: Shell) -> None:
    shell.run("nightly", FUZZ_TARGETS=" ", FUZZ_TARGET="builtin-triton")
    assert shell.calls[0].startswith("run --target builtin-triton --device cpu --time 8h ")


def test_another_word_is_refused(shell: Shell) -> None:
    assert shell.run("weekly") == 2


def made_by_the_gate(folder: Path) -> list[str]:
    """What `.ci/run` has `make` do, in order; `make` is one that writes its words down."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    make = folder / "make"
    make.write_text('#!/bin/sh\necho "$*" >> calls\n')
    make.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([folder / ".ci" / "run"], env={**os.environ, "PATH": path}, check=True)
    return (folder / "calls").read_text().splitlines()


def test_the_gate_walks_the_readme_before_it_brings_in_an_engine(tmp_path: Path) -> None:
    made = made_by_the_gate(tmp_path)
    shown = re.findall(r"^make (?:fuzz|test|engines)$", (ROOT / "README.md").read_text(), re.M)
    assert [line.split()[0] for line in made[:3]] == [line.split()[1] for line in shown]
    assert made[1] == "test"
    engines = "sglang or vllm or flashinfer"
    assert made[3:] == [f"test MARKS=not ray and (slow or {engines})"]


def test_the_workflows_call_the_script_and_give_it_what_it_reads() -> None:
    script = SCRIPT.read_text()
    for workflow in (path for path in WORKFLOWS if path.name != "check.yml"):
        text = workflow.read_text()
        (mode,) = re.findall(r"run: \.ci/fuzz (\w+)", text)
        assert f"  {mode}) " in script
        given = re.findall(r"^ +(FUZZ_[A-Z]+):", text, re.M)
        assert all(re.search(rf"^#.* {name} ", script, re.M) for name in given)


def test_a_push_is_checked_on_the_oldest_and_the_newest_python_that_are_promised() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (oldest,) = re.findall(r'^requires-python = ">=([\d.]+)"$', project, re.M)
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    text = (ROOT / ".github" / "workflows" / "check.yml").read_text()
    jobs = {of: python for python, of in re.findall(r'python: "([\d.]+)", versions: (\w+)', text)}
    assert jobs["oldest"] == oldest == promised[0]
    assert jobs["newest"] == promised[-1]
    assert all((ROOT / "constraints" / f"{of}.txt").is_file() for of in jobs)
    assert re.findall(r"- run: (.*)", text) == ["make setup", "make check", "make test-all"]
    assert "CONSTRAINTS ?=" in (ROOT / "Makefile").read_text()
    assert "push:" in text and "pull_request:" in text


@pytest.mark.skipif(not shutil.which("actionlint"), reason="actionlint is not installed here")
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_has_nothing_to_say(workflow: Path) -> None:
    done = subprocess.run(["actionlint", workflow], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
