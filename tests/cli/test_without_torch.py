"""What the command says where torch is not installed, or a library of it is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from fuzzgraph.faults import FAULTS
from fuzzgraph.targets import target_names

REASONS = {
    "missing": (
        "ModuleNotFoundError('No module named \\'torch\\'', name='torch')",
        "not installed",
    ),
    "broken": (
        "OSError('libcudart.so.13: cannot open shared object file: No such file or directory')",
        "installed, but cannot be imported (OSError: libcudart.so.13: cannot open shared object",
    ),
    "half installed": (
        "ImportError('libtorch_cuda.so: undefined symbol: ncclCommWindowRegister')",
        "installed, but cannot be imported (ImportError: libtorch_cuda.so: undefined symbol",
    ),
}
"""What `import torch` raises, and what is said of it."""


def broken(folder: Path, raises: str) -> None:
    """In this folder `import torch` raises this."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"raise {raises}\n")


Run = subprocess.CompletedProcess[str]


def fuzzgraph(folder: Path, *words: str, raises: str = "") -> Run:
    """The command in a process whose `import torch` raises this."""
    if raises:
        broken(folder, raises)
    start = f"import sys; sys.path[:0] = [{str(folder)!r}]; from fuzzgraph.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", start, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
    )


@pytest.fixture(params=REASONS.values(), ids=list(REASONS))
def sick(request: pytest.FixtureRequest) -> tuple[str, str]:
    reason: tuple[str, str] = request.param
    return reason


def test_the_doctor_tells_what_is_wrong_with_torch_and_looks_at_the_rest(
    tmp_path: Path, sick: tuple[str, str]
) -> None:
    done = fuzzgraph(tmp_path, "doctor", "--json", raises=sick[0])
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["torch"]["state"] in ("missing", "broken")
    assert sick[1] in checks["torch"]["found"]
    assert "nstall" in checks["torch"]["remedy"]
    assert checks["device"]["found"] == "cannot be told without torch"
    assert checks["corpus"]["state"] == checks["run folder"]["state"] == "ok"


def test_the_targets_are_listed_and_one_line_says_why_none_can_be_run(
    tmp_path: Path, sick: tuple[str, str]
) -> None:
    done = fuzzgraph(tmp_path, "targets", raises=sick[0])
    *names, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert tuple(names) == target_names()
    assert last.startswith("no target can be run here: torch: ")
    assert sick[1] in last


def test_the_faults_are_listed_and_one_line_says_why_none_can_be_planted(
    tmp_path: Path, sick: tuple[str, str]
) -> None:
    done = fuzzgraph(tmp_path, "faults", "--list", raises=sick[0])
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == sorted(FAULTS)
    [line] = done.stderr.splitlines()
    assert sick[1] in line


@pytest.mark.parametrize("verb", ["run", "replay", "faults"])
def test_a_verb_that_runs_cases_says_what_is_missing_in_one_line(
    tmp_path: Path, sick: tuple[str, str], verb: str
) -> None:
    (tmp_path / "case.json").write_text('{"schema_version": 1, "steps": [{"mode": "idle"}]}')
    done = fuzzgraph(tmp_path, verb, *["case.json"] * (verb == "replay"), raises=sick[0])
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("fuzzgraph: AdapterUnavailable: torch: ")
    assert sick[1] in line


def test_pytest_refuses_to_fuzz_in_one_line_and_runs_other_peoples_tests(
    tmp_path: Path, sick: tuple[str, str]
) -> None:
    broken(tmp_path, sick[0])
    (tmp_path / "test_theirs.py").write_text("def test_theirs(): pass\n")
    start = [sys.executable, "-m", "pytest", "-q"]
    known = {point.name for point in entry_points(group="pytest11")}
    plugin = [] if "fuzzgraph" in known else ["-p", "fuzzgraph.pytest_plugin"]
    for words, code in (["--fuzz"], 4), ([], 0):
        done = subprocess.run(
            [*start, *plugin, *words], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert (f"ERROR: torch: {sick[1]}" in done.stderr) is bool(code)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["doctor"], ["targets"], ["faults", "--list"]], ids=" ".join)
def test_where_torch_is_well_nothing_is_said_against_it(tmp_path: Path, words: list[str]) -> None:
    done = fuzzgraph(tmp_path, *words)
    said = done.stdout + done.stderr
    assert done.returncode == 0
    assert "here: torch" not in said
    assert "cannot be imported" not in said
    assert "without torch" not in said
