"""Fuzzes each release in a subprocess of its own, so that several are fuzzed in parallel.

The process is `fuzzgraph known-bugs run` for that one release; what it leaves is its summary.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

from fuzzgraph.errors import UNREADABLE, FuzzGraphError, UsageError
from fuzzgraph.known_bugs.scoring import Search
from fuzzgraph.process.interpreter import module_command
from fuzzgraph.run.events import RunSummary
from fuzzgraph.strict_json import decode_json


def run_folder(out: Path, search: Search) -> Path:
    """Folder of the run on one release, below that of the whole score."""
    ahead = "-overlap" * search.overlap
    return out / f"{search.target.rpartition(':')[2]}-{search.release}{ahead}"


class SubprocessRunner:
    """A `FuzzRelease`. On leaving it terminates the processes that still run.

    Args:
        options: of `known-bugs run`, which every process gets.
        out: folder of the whole score; each run makes its own in it.
    """

    def __init__(self, options: list[str], out: Path) -> None:
        self._options = options
        self._out = out
        self._running: set[subprocess.Popen[str]] = set()

    def __call__(self, search: Search) -> RunSummary:
        folder = run_folder(self._out, search)
        command = module_command(
            "fuzzgraph", "known-bugs", "run", *search.has, *search.lacks,
            *self._options, "--only", search.name, "--out", str(folder),
        )  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._running.add(process)
        try:
            _, said = process.communicate()
        finally:
            self._running.discard(process)
        return _summary(folder / "summary.json", process.returncode, said)

    def __enter__(self) -> SubprocessRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in list(self._running):
            process.terminate()  # it writes its summary and ends


def _summary(path: Path, code: int, said: str) -> RunSummary:
    """What the run left, also where it failed.

    Raises:
        UsageError: it refused to run. FuzzGraphError: it ended without a summary.
    """
    last = (said.strip().splitlines() or [f"exit code {code}"])[-1]
    if code == 2:
        raise UsageError(last.removeprefix("fuzzgraph: UsageError: "))
    try:
        return decode_json(path.read_bytes(), RunSummary)
    except (OSError, *UNREADABLE):
        raise FuzzGraphError(f"{path} was not written: {last}") from None
