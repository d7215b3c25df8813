"""Every command that the README shows is run, or, where it would take minutes, checked to exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, encode_case

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
LONG = {("fuzzgraph", "faults", "--json")}
"""Commands that take minutes: their verb and options are looked up in --help instead."""

pytestmark = pytest.mark.skipif(not README.is_file(), reason="needs the repository")


def shown_commands(text: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def commands_of(program: str) -> list[str]:
    found = shown_commands(README.read_text(encoding="utf-8")) if README.is_file() else []
    return [line for line in found if shlex.split(line)[0] == program]


def is_long(words: list[str]) -> bool:
    return tuple(words) in LONG or "--release" in words


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def fuzzgraph(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    start = "import sys; from fuzzgraph.cli import main; sys.exit(main())"
    return run([sys.executable, "-c", start, *words], folder)


def pytest_command(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    known = {point.name for point in entry_points(group="pytest11")}
    plugin = [] if "fuzzgraph" in known else ["-p", "fuzzgraph.pytest_plugin"]
    return run([sys.executable, "-m", "pytest", *plugin, *words], folder)


def quickly(words: list[str], case: Path) -> list[str]:
    """The same command with a budget of two seconds and a real case file."""
    shorter = re.sub(r"(--(?:fuzz-)?time) \S+", r"\1 2s", shlex.join(words))
    return [str(case) if word == "CASE" else word for word in shlex.split(shorter)]


def small_case() -> Case:
    rows = (BatchRow(request=0, seq_len=3), BatchRow(request=1, seq_len=2))
    steps = (ReplayStep(rows=rows), ReplayStep(rows=rows[:1], finish=(1,)))
    return Case(schema_version=1, config=EngineConfig(), steps=steps)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(small_case()))
    return path


def test_the_readme_shows_the_two_commands_first() -> None:
    assert shown_commands(README.read_text(encoding="utf-8"))[:2] == ["make fuzz", "make test"]


def test_every_program_shown_is_one_that_a_test_here_looks_at() -> None:
    programs = {shlex.split(line)[0] for line in shown_commands(README.read_text("utf-8"))}
    assert programs == {"make", "pip", "fuzzgraph", "pytest"}


@pytest.mark.parametrize("line", commands_of("make"))
def test_a_make_command_exists(line: str) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed here")
    words = shlex.split(line)
    done = run(["make", "--dry-run", *words[1:]], ROOT)
    assert done.returncode == 0, done.stderr
    makefile = (ROOT / "Makefile").read_text()
    for variable in (word.partition("=")[0] for word in words[1:] if "=" in word):
        assert f"\n{variable} ?=" in makefile


@pytest.mark.parametrize("line", commands_of("pip"))
def test_a_pip_command_installs_this_project_and_no_torch(line: str) -> None:
    assert shlex.split(line)[1:] == ["install", "."]


def fuzzgraph_lines(*, long: bool) -> list[str]:
    return [line for line in commands_of("fuzzgraph") if is_long(shlex.split(line)) is long]


@pytest.mark.slow
@pytest.mark.parametrize("line", fuzzgraph_lines(long=False))
def test_a_fuzzgraph_command_finds_what_is_planted_and_nothing_else(line: str, case: Path) -> None:
    words = quickly(shlex.split(line)[1:], case)
    done = fuzzgraph(words, case.parent)
    assert done.returncode == (1 if "--fault" in words else 0), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("line", fuzzgraph_lines(long=True))
def test_a_long_fuzzgraph_command_names_a_verb_and_options_that_exist(
    line: str, tmp_path: Path
) -> None:
    _, verb, *options = shlex.split(line)
    done = fuzzgraph([verb, "--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    for option in (word for word in options if word.startswith("--")):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", done.stdout), option


@pytest.mark.slow
@pytest.mark.parametrize("line", commands_of("pytest"))
def test_a_pytest_command_runs_in_a_folder_without_tests(line: str, case: Path) -> None:
    done = pytest_command(quickly(shlex.split(line)[1:], case), case.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_test_of_ones_own_that_is_shown_passes(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if "fuzz_engine" in block]
    engine = "from fuzzgraph.targets.builtin import BuiltinTarget as MyTarget\n"
    (tmp_path / "my_package.py").write_text(engine)
    (tmp_path / "test_mine.py").write_text(block.replace("examples=200", "examples=5"))
    done = pytest_command(["-q", "test_mine.py"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_options_named_in_the_text_exist(tmp_path: Path) -> None:
    named = set(re.findall(r"`(--fuzz-[a-z]+)", README.read_text(encoding="utf-8")))
    assert named
    shown = pytest_command(["--help"], tmp_path).stdout
    assert not {option for option in named if option not in shown}


def test_the_readme_can_be_read_in_five_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    assert len(prose.split()) <= 950
