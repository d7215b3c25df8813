"""What counts as a reproduction, and what does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzzgraph.errors import OutOfTime, UsageError
from fuzzgraph.repro import verify


def script(folder: Path, *lines: str) -> Path:
    path = folder / "repro.py"
    path.write_text("\n".join(["import sys", "HEADLINE = 'FINDING x'", *lines]) + "\n")
    return path


def test_exit_code_1_with_the_headline_counts_every_time(tmp_path: Path) -> None:
    assert verify(script(tmp_path, "print(HEADLINE)", "sys.exit(1)")) == "3/3"


def test_each_run_that_is_waited_for_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = script(tmp_path, "print(HEADLINE)", "sys.exit(1)")
    assert verify(path, running=lambda number, times: told.append((number, times))) == "3/3"
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(["print(HEADLINE)"], id="exit code 0"),
        pytest.param(["print(HEADLINE)", "sys.exit(3)"], id="another exit code"),
        pytest.param(["sys.exit(1)"], id="no headline"),
        pytest.param(["raise RuntimeError"], id="a traceback"),
    ],
)
def test_anything_else_is_no_reproduction(tmp_path: Path, lines: list[str]) -> None:
    assert verify(script(tmp_path, *lines), times=1) == "0/1"


def test_the_runs_go_side_by_side(tmp_path: Path) -> None:
    lines = [
        "import os, pathlib, time",
        "pathlib.Path(f'{os.getpid()}.here').touch()",
        "while len(list(pathlib.Path().glob('*.here'))) < 3: time.sleep(0.01)",
        "print(HEADLINE)",
        "sys.exit(1)",
    ]
    assert verify(script(tmp_path, *lines), deadline=60.0) == "3/3"


def test_runs_that_take_longer_than_they_may_give_no_rate(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime, match=r"was not executed 3 times in 0\.2 s"):
        verify(script(tmp_path, "while True: pass"), seconds=0.2)


def test_a_run_past_its_deadline_is_no_reproduction(tmp_path: Path) -> None:
    path = script(tmp_path, "print(HEADLINE, flush=True)", "while True: pass")
    assert verify(path, times=1, deadline=0.5) == "0/1"


def test_fuzzgraph_cannot_be_imported_by_a_script_that_does_not_ask_for_it(tmp_path: Path) -> None:
    lines = [
        "try:",
        "    import fuzzgraph",
        "except ImportError:",
        "    print(HEADLINE)",
        "sys.exit(1)",
    ]
    assert verify(script(tmp_path, *lines), times=1) == "1/1"


def test_a_script_that_asks_for_fuzzgraph_gets_it(tmp_path: Path) -> None:
    lines = ["NEEDS_FUZZGRAPH = True", "import fuzzgraph", "print(HEADLINE)", "sys.exit(1)"]
    assert verify(script(tmp_path, *lines), times=1) == "1/1"


@pytest.mark.parametrize("text", ["print(1)\n", "def (\n"], ids=["no headline", "no Python"])
def test_a_file_that_is_no_export_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.py"
    path.write_text(text)
    with pytest.raises(UsageError, match="written by 'fuzzgraph export'") as refusal:
        verify(path)
    assert "\n" not in str(refusal.value)
