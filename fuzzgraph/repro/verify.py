"""Executes an exported file and counts the runs that show the finding."""

from __future__ import annotations

import ast
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fuzzgraph.errors import NotExecuted, RunsCutOff, UsageError
from fuzzgraph.process.interpreter import module_command, script_command

DEADLINE = 300.0
"""Seconds that one run may take."""

_WITHOUT_FUZZGRAPH = (
    "import sys, runpy; sys.modules['fuzzgraph'] = None; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
# FuzzGraph is imported before pytest could rewrite its assertions, of which it has none to show.
_PYTEST = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")

_LONGEST = 300
"""Characters of the reason why a file could not be executed."""

_KEPT = (
    "PATH", "HOME", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH", "LANG",
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
)  # fmt: skip


def verify(
    path: str | Path,
    times: int = 3,
    *,
    deadline: float = DEADLINE,
    seconds: float = math.inf,
    running: Callable[[int, int], object] = lambda number, times: None,
) -> str:
    """How often the file reproduces its finding, e.g. '3/3'.

    A run counts if it exits with code 1 and prints the finding's headline. One that exits with 0
    does not, nor does one that comes to no verdict: a traceback, another code, a run past the
    deadline. A script that does not ask for FuzzGraph runs isolated, where it cannot be imported;
    one that does gets the FuzzGraph and the import path of this process. The runs go side by side,
    for most of each is the start of a process.

    Args:
        deadline: seconds that one run may take.
        seconds: those that all of them may take together.
        running: told which run of how many is waited for.

    Raises:
        UsageError: the file cannot be read, or is no export of FuzzGraph's.
        NotExecuted: no run came to a verdict; says why, in one line.
        RunsCutOff: all runs together took longer than `seconds`; it has the rate of those that
            ended.
    """
    path = Path(path).absolute()
    constants = _constants(path)
    end = time.monotonic() + seconds
    once = partial(_executed, path, constants, min(deadline, seconds))
    with ThreadPoolExecutor(times) as side_by_side:
        runs = [side_by_side.submit(once) for _ in range(times)]
        running(1, times)
        for number, _ in enumerate(as_completed(runs), start=2):
            if number <= times:
                running(number, times)
    ends = [run.result() for run in runs]
    if time.monotonic() >= end:
        whole = [one for one in ends if not one.cut_off]
        said = f"{path}: was not executed {times} times in {seconds:g} s"
        raise RunsCutOff(said, _rate(whole) if any(map(_has_verdict, whole)) else "")
    if not any(map(_has_verdict, ends)):
        raise NotExecuted(f"could not be executed: {ends[0].without_verdict}")
    return _rate(ends)


def _has_verdict(end: _End) -> bool:
    return not end.without_verdict


def _rate(ends: Sequence[_End]) -> str:
    return f"{sum(end.shows for end in ends)}/{len(ends)}"


def shows(text: str, *, deadline: float = DEADLINE, seconds: float = math.inf) -> bool:
    """Whether the text of a script reproduces its finding once.

    Raises:
        RunsCutOff: it took longer than `seconds`.
    """
    with tempfile.TemporaryDirectory(prefix="fuzzgraph-") as folder:
        path = Path(folder) / "repro.py"
        path.write_text(text, encoding="utf-8")
        try:
            return verify(path, times=1, deadline=deadline, seconds=seconds) == "1/1"
        except NotExecuted:
            return False


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


@dataclass(frozen=True, slots=True)
class _End:
    """How one run ended."""

    shows: bool = False
    """Whether it showed the finding."""
    without_verdict: str = ""
    """Why it says neither that the finding shows nor that it is gone."""
    cut_off: bool = False
    """Whether it was ended before it came to one."""


def _executed(path: Path, constants: dict[str, object], deadline: float) -> _End:
    command, environment = _command(path, constants)
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
    except subprocess.TimeoutExpired:
        return _End(without_verdict=f"it did not end within {deadline:g} s", cut_off=True)
    except OSError as error:
        return _End(without_verdict=str(error))
    text = done.stdout.decode(errors="replace")
    if done.returncode == 1 and str(constants["HEADLINE"]) in text:
        return _End(shows=True)
    return _End(without_verdict=_reason(done.returncode, text) if done.returncode else "")


def _command(path: Path, constants: dict[str, object]) -> tuple[list[str], dict[str, str]]:
    """What runs the file, and its environment."""
    if not constants.get("NEEDS_FUZZGRAPH"):
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return [sys.executable, "-I", "-c", _WITHOUT_FUZZGRAPH, str(path)], kept
    if path.name.startswith("test_"):
        return module_command("pytest", *_PYTEST, str(path)), dict(os.environ)
    return script_command(path), dict(os.environ)


def _reason(code: int, text: str) -> str:
    """The error that a run ended with, in one line of printable characters."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("E ") for line in lines if line.startswith("E ")]  # as pytest does
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = (errors or lines or ["it said nothing"])[-1][:_LONGEST]
    return f"{how}, {''.join(filter(str.isprintable, said))}"
