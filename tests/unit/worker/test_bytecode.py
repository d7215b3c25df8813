"""Bytecode of a release outlives its worker, and nobody else's is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IMPORTS_BOTH = """
import sys
from fuzzgraph.worker.bytecode import keep_bytecode
keep_bytecode(sys.argv[1:2])
sys.path[:0] = sys.argv[1:]
import engine.code, beside
print(sys.dont_write_bytecode)
"""


def imported(release: Path, other: Path) -> str:
    """Import a module of each folder where Python was told to write no bytecode."""
    (release / "engine").mkdir(parents=True)
    (release / "engine" / "__init__.py").touch()
    (release / "engine" / "code.py").write_text("value = 1")
    other.mkdir()
    (other / "beside.py").write_text("value = 2")
    command = [sys.executable, "-B", "-c", IMPORTS_BOTH, str(release), str(other)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_bytecode_is_kept_below_the_release_alone(tmp_path: Path) -> None:
    release, other = tmp_path / "1.0", tmp_path / "1.0-other"
    assert imported(release, other) == "True"
    assert [path.name.partition(".")[0] for path in sorted(release.rglob("*.pyc"))] == [
        "__init__",
        "code",
    ]
    assert not list(other.rglob("*.pyc"))


def test_a_release_that_cannot_be_written_is_imported_all_the_same(tmp_path: Path) -> None:
    release = tmp_path / "1.0"
    (release / "engine").mkdir(parents=True)
    (release / "engine" / "__pycache__").touch()  # where the folder for bytecode would be
    (release / "engine" / "__init__.py").touch()
    (release / "engine" / "code.py").write_text("value = 1")
    (tmp_path / "beside.py").touch()
    command = [sys.executable, "-B", "-c", IMPORTS_BOTH, str(release), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    assert not list(release.rglob("*.pyc"))
