"""Executes an exported file and counts the runs that show the finding."""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from fuzzgraph.errors import OutOfTime, UsageError

__all__ = ["shows", "verify"]

DEADLINE = 300.0
"""Seconds that one run may take."""

_WITHOUT_FUZZGRAPH = (
    "import sys, runpy; sys.modules['fuzzgraph'] = None; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
_KEPT = ("PATH", "HOME", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH", "LANG")


def verify(
    path: str | Path,
    times: int = 3,
    *,
    deadline: float = DEADLINE,
    seconds: float = math.inf,
    running: Callable[[int, int], object] = lambda number, times: None,
) -> str:
    """How often the file reproduces its finding, e.g. '3/3'.

    A run counts if it exits with code 1 and prints the finding's headline; a traceback, another
    code or a run past the deadline does not. A script that does not ask for FuzzGraph runs
    isolated, where it cannot be imported. The runs go side by side, for most of each is the start
    of a process.

    Args:
        deadline: seconds that one run may take.
        seconds: those that all of them may take together.
        running: told which run of how many is waited for.

    Raises:
        UsageError: the file cannot be read, or is no export of FuzzGraph's.
        OutOfTime: all runs together took longer than `seconds`.
    """
    path = Path(path).absolute()
    constants = _constants(path)
    end = time.monotonic() + seconds
    once = partial(_reproduces, path, constants, min(deadline, seconds))
    with ThreadPoolExecutor(times) as side_by_side:
        runs = [side_by_side.submit(once) for _ in range(times)]
        running(1, times)
        for number, _ in enumerate(as_completed(runs), start=2):
            if number <= times:
                running(number, times)
    hits = sum(run.result() for run in runs)
    if time.monotonic() >= end:
        raise OutOfTime(f"{path}: was not executed {times} times in {seconds:g} s")
    return f"{hits}/{times}"


def shows(text: str, *, deadline: float = DEADLINE, seconds: float = math.inf) -> bool:
    """Whether the text of a script reproduces its finding once.

    Raises:
        OutOfTime: it took longer than `seconds`.
    """
    with tempfile.TemporaryDirectory(prefix="fuzzgraph-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(text, encoding="utf-8")
        return verify(path, times=1, deadline=deadline, seconds=seconds) == "1/1"


def _constants(path: Path) -> dict[str, object]:
    """Literals that the module assigns at its top; nothing is run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be verified ({error}). Give a file written by 'fuzzgraph export'."
        ) from None
    found: dict[str, object] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                found[name] = value
    if not isinstance(found.get("HEADLINE"), str):
        raise UsageError(
            f"{path}: has no HEADLINE to look for. Give a script or test file written by"
            " 'fuzzgraph export'."
        )
    return found


def _reproduces(path: Path, constants: dict[str, object], deadline: float) -> bool:
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if constants.get("NEEDS_FUZZGRAPH"):
        command = [sys.executable, str(path)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        if path.name.startswith("test_"):
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    else:
        command = [sys.executable, "-I", "-c", _WITHOUT_FUZZGRAPH, str(path)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=deadline,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return False
    text = done.stdout.decode(errors="replace")
    return done.returncode == 1 and str(constants["HEADLINE"]) in text
