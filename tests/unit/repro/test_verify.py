"""What counts as a reproduction, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.errors import NotExecuted, RunsCutOff, UsageError
from fuzzgraph.repro import verify


def script(folder: Path, *lines: str) -> Path:
    path = folder / "repro.py"
    path.write_text("\n".join(["import sys", "HEADLINE = 'FINDING x'", *lines]) + "\n")
    return path


def test_exit_code_1_with_the_headline_counts_every_time(tmp_path: Path) -> None:
    assert verify(script(tmp_path, "print(HEADLINE)", "sys.exit(1)")) == "3/3"


def test_exit_code_0_is_no_reproduction(tmp_path: Path) -> None:
    assert verify(script(tmp_path, "print(HEADLINE)"), times=1) == "0/1"


def test_each_run_that_is_waited_for_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = script(tmp_path, "print(HEADLINE)", "sys.exit(1)")
    assert verify(path, running=lambda number, times: told.append((number, times))) == "3/3"
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["print(HEADLINE)", "sys.exit(3)"], "exit code 3, FINDING x"),
        (["sys.exit(1)"], "exit code 1, it said nothing"),
        (["raise RuntimeError('so it is')"], "exit code 1, RuntimeError: so it is"),
        (["import torch_of_theirs"], "No module named 'torch_of_theirs'"),
        (["NEEDS_FUZZGRAPH = True", "import an_engine"], "No module named 'an_engine'"),
        (["import os", "os.kill(os.getpid(), 9)"], "signal 9, it said nothing"),
        (["print('\\x1b[31m' + 'x' * 999)", "sys.exit(5)"], r"exit code 5, \[31mx{295}$"),
    ],
    ids=["exit code", "silence", "traceback", "import", "FuzzGraph's import", "signal", "flood"],
)
def test_a_run_without_a_verdict_is_told_with_its_reason_and_no_rate(
    tmp_path: Path, lines: list[str], reason: str
) -> None:
    with pytest.raises(NotExecuted, match=f"^could not be executed: .*{reason}") as told:
        verify(script(tmp_path, *lines), times=2)
    assert str(told.value).isprintable()


def test_a_test_file_that_cannot_be_imported_is_told_with_its_reason(tmp_path: Path) -> None:
    path = script(tmp_path, "NEEDS_FUZZGRAPH = True", "import an_engine")
    path = path.rename(tmp_path / "test_repro.py")
    with pytest.raises(NotExecuted, match="exit code 2, ModuleNotFoundError: No module named 'an_"):
        verify(path, times=1)


def test_one_run_with_a_verdict_is_enough_for_a_rate(tmp_path: Path) -> None:
    lines = [
        "import os",
        "try:",
        "    os.close(os.open('first', os.O_CREAT | os.O_EXCL))",
        "except FileExistsError:",
        "    raise RuntimeError from None",
    ]
    assert verify(script(tmp_path, *lines), times=2) == "0/2"


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
    with pytest.raises(RunsCutOff, match=r"was not executed 3 times in 0\.2 s") as late:
        verify(script(tmp_path, "while True: pass"), seconds=0.2)
    assert late.value.rate == ""


def test_runs_that_ended_before_the_others_were_cut_off_are_counted(tmp_path: Path) -> None:
    lines = [
        "import os",
        "try:",
        "    os.close(os.open('first', os.O_CREAT | os.O_EXCL))",
        "except FileExistsError:",
        "    while True: pass",
        "print(HEADLINE)",
        "sys.exit(1)",
    ]
    with pytest.raises(RunsCutOff) as late:
        verify(script(tmp_path, *lines), seconds=4.0)
    assert late.value.rate == "1/1"


def test_a_run_past_its_deadline_has_no_verdict(tmp_path: Path) -> None:
    path = script(tmp_path, "print(HEADLINE, flush=True)", "while True: pass")
    with pytest.raises(NotExecuted, match=r"did not end within 0\.5 s"):
        verify(path, times=1, deadline=0.5)


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
