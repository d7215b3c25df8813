"""What a run in a process of its own left is its summary, whatever the process says at its end."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzzgraph.errors import FuzzGraphError, UsageError
from fuzzgraph.known_bugs import Search, SubprocessRunner, run_folder, score
from fuzzgraph.run.events import RunSummary
from fuzzgraph.run.spec import RunSpec
from tests.unit.known_bugs.test_scoring import bug

SEARCH = Search("fake", "1.1", lacks={"b": bug(broken=(), fixed=("1.1",))})


def ending(
    monkeypatch: pytest.MonkeyPatch, folder: Path, code: int, said: str, summary: bytes | None
) -> None:
    """Processes that leave that summary and exit with that code."""

    class Ended:
        returncode = code

        def __init__(self, command: list[str], **options: Any) -> None:
            if summary is not None:
                folder.mkdir(parents=True)
                (folder / "summary.json").write_bytes(summary)

        def communicate(self) -> tuple[None, str]:
            return None, said

    monkeypatch.setattr(subprocess, "Popen", Ended)


def test_a_process_whose_run_failed_ends_the_score_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = RunSummary(
        fuzzgraph="0", spec=RunSpec(seed=1), reason="failed", error="WorkerFailed: boom"
    )
    folder = run_folder(tmp_path, SEARCH)
    ending(monkeypatch, folder, 3, "fuzzgraph: WorkerFailed: boom", msgspec.json.encode(failed))
    with pytest.raises(FuzzGraphError, match=r"^fake==1\.1: .*\(WorkerFailed: boom\)"):
        score({"b": bug(broken=(), fixed=("1.1",))}, SubprocessRunner([], tmp_path))


@pytest.mark.parametrize(
    "summary",
    [None, b"", b'{"error":"\xff"}', b'{"a":' + b"[" * 100_000],
    ids=["none", "cut short", "no text", "nested endlessly"],
)
def test_a_process_without_a_summary_that_can_be_read_is_an_error_with_its_last_words(
    summary: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending(monkeypatch, run_folder(tmp_path, SEARCH), -9, "first\nlast words\n", summary)
    with pytest.raises(FuzzGraphError, match="was not written: last words"):
        SubprocessRunner([], tmp_path)(SEARCH)


def test_a_process_that_refuses_to_run_is_the_callers_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "fuzzgraph: UsageError: seed=-1 is negative. Give another."
    ending(monkeypatch, run_folder(tmp_path, SEARCH), 2, said, None)
    with pytest.raises(UsageError, match=r"^seed=-1 is negative"):
        SubprocessRunner([], tmp_path)(SEARCH)
