"""`make fuzz` on a command that stands for `fuzzgraph`: first the planted bug, then the engine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"

pytestmark = [
    pytest.mark.skipif(not MAKEFILE.is_file(), reason="needs the repository"),
    pytest.mark.skipif(not shutil.which("make"), reason="make is not installed here"),
]

# Writes down how it was called, and ends as told: one way with a planted bug, one way without.
STAND_IN = """#!/bin/sh
echo "$*" >> calls
case "$*" in *--fault*) exit "$DEMO_ENDS" ;; *) exit "$RUN_ENDS" ;; esac
"""


def make_fuzz(folder: Path, *words: str, demo: int = 1, run: int = 0) -> tuple[int, str]:
    """Exit code and output of `make fuzz` where the environment is ready."""
    shutil.copy(MAKEFILE, folder / "Makefile")
    (folder / "constraints").mkdir()
    for name in ("pyproject.toml", "constraints/dev.txt"):
        (folder / name).touch()
    command = folder / ".venv" / "bin" / "fuzzgraph"
    command.parent.mkdir(parents=True)
    command.write_text(STAND_IN)
    command.chmod(0o755)
    (folder / ".venv" / ".fuzzgraph-ready").touch()
    done = subprocess.run(
        ["make", "fuzz", *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "DEMO_ENDS": str(demo), "RUN_ENDS": str(run)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_a_planted_bug_is_found_first_and_then_the_healthy_engine_is_fuzzed(tmp_path: Path) -> None:
    code, _ = make_fuzz(tmp_path, "TIME=20s")
    assert code == 0
    planted, healthy = calls(tmp_path)
    assert "--fault" in planted
    assert healthy == "run --target builtin --time 20s"


def test_the_output_says_that_the_planted_bug_was_a_demonstration(tmp_path: Path) -> None:
    _, text = make_fuzz(tmp_path)
    assert "That was the demonstration" in text


@pytest.mark.parametrize("code", [0, 2, 3, 130])
def test_a_demonstration_that_finds_nothing_fails_and_says_so(tmp_path: Path, code: int) -> None:
    ended, text = make_fuzz(tmp_path, demo=code)
    assert ended != 0
    assert f"the demonstration failed: exit code {code}, expected 1" in text
    assert len(calls(tmp_path)) == 1


@pytest.mark.parametrize("code", [1, 2, 3])
def test_make_fuzz_fails_where_the_run_on_the_healthy_engine_does(
    tmp_path: Path, code: int
) -> None:
    ended, _ = make_fuzz(tmp_path, run=code)
    assert ended != 0
    assert len(calls(tmp_path)) == 2


def test_the_demonstration_is_a_command_of_the_readme_which_a_test_runs(tmp_path: Path) -> None:
    make_fuzz(tmp_path)
    shown = re.findall(r"^fuzzgraph (run --fault .*)$", (ROOT / "README.md").read_text(), re.M)
    assert shlex.split(calls(tmp_path)[0]) in [shlex.split(line) for line in shown]


@pytest.mark.parametrize("engine", ["sglang", "vllm", "flashinfer"])
def test_an_engine_is_set_up_with_its_constraints_and_releases(engine: str) -> None:
    command = ["make", "--dry-run", "--always-make", engine]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"releases fetch( {engine}==[\d.]+)+\n", said)
    assert f"-c constraints/{engine}.txt" in said
