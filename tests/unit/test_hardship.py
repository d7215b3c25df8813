"""What a machine may do to a campaign: fill its disk, move its clock, run another one beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph import corpus
from fuzzgraph.campaign import run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.open_target import Opened
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import Event, FindingNew, Progress, Setup
from fuzzgraph.run.spec import Budget, RunSpec
from tests.fakes import FakeRunner, FakeTarget, case

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.unit.hardship"]


def started(*words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, *COMMAND, *words],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> tuple[int, Any]:
    said, complaint = process.communicate()
    assert said, complaint
    return process.returncode, json.loads(said)


def seen(out: Path) -> set[str]:
    events = read_log(out / "events.jsonl")[0]
    return {event.id for event in events if isinstance(event, FindingNew)}


def test_a_file_that_cannot_grow_ends_the_run_and_a_resume_finishes_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said = told(started(str(out), "--largest", "40000"))
    assert (code, said["reason"]) == (3, "failed")
    assert "File too large" in said["error"]
    before = seen(out)
    assert before
    assert before <= set(said["found"]), "what the log has seen is told"
    code, said = told(started(str(out)))
    assert (code, said["reason"]) == (1, "examples")
    assert before <= set(said["found"])
    assert len(said["found"]) == 10


def _tmpfs(size: str, folder: Path) -> tuple[str, ...]:
    """A command in front of another one that gives it a small disk of its own."""
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" && shift 0 && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(folder))


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_tmpfs("64k", folder), "true"], capture_output=True).returncode == 0


def test_a_full_disk_ends_the_run_with_what_was_found_in_one_line(tmp_path: Path) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("needs user namespaces, to mount a small disk")
    code, said = told(started(str(tmp_path / "run"), before=_tmpfs("200k", tmp_path)))
    assert (code, said["reason"]) == (3, "failed")
    assert "No space left on device" in said["error"]
    assert "\n" not in said["error"]
    assert said["found"]


def test_a_disk_that_is_full_from_the_start_is_refused_in_one_line(tmp_path: Path) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("needs user namespaces, to mount a small disk")
    fill = f'head -c 8192 /dev/zero > {tmp_path}/x; exec "$@"'
    small = (*_tmpfs("8k", tmp_path), "sh", "-c", fill, "sh")
    code, said = told(started(str(tmp_path / "run"), before=small))
    assert code == 2
    assert "No space left on device" in said["refused"]
    assert "\n" not in said["refused"]


def test_two_campaigns_on_one_corpus_folder_lose_no_entry_of_each_other(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for seed in range(8):
        corpus.add(shared, case(2, seed=seed))
    both = [
        started(str(tmp_path / f"run{seed}"), "--seed", str(seed), "--corpus", str(shared))
        for seed in (1, 2)
    ]
    for process in both:
        code, said = told(process)
        assert (code, said["reason"], said["bad"]) == (1, "examples", [])
    loaded = corpus.load(shared)
    digests = {entry.digest for entry in loaded.entries}
    assert loaded.bad == []
    for seed in (1, 2):
        own = {entry.digest for entry in corpus.load(tmp_path / f"run{seed}" / "corpus").entries}
        assert own
        assert own <= digests
    assert list(shared.glob(".*.part")) == []


def test_a_clock_that_jumps_neither_ends_nor_prolongs_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, jumps = time.time, iter(range(1, 1 << 30))
    monkeypatch.setattr(time, "time", lambda: real() + (-1) ** next(jumps) * 86400.0)
    events: list[Event] = []
    opened = Opened(Setup(), FakeTarget(), FakeRunner(), lambda: None)
    plan = RunSpec(out=str(tmp_path), seed=1, budget=Budget(1.0), progress_seconds=0.0)
    summary = run_campaign(plan, events.append, opened=opened, export=no_export)
    seconds = [event.seconds for event in events if isinstance(event, Progress)]
    assert summary.reason == "time"
    assert seconds == sorted(seconds)
    assert seconds[0] < 1.0 <= seconds[-1] < 3600.0


def test_no_module_measures_by_the_wall_clock() -> None:
    texts = {path: path.read_text() for path in (ROOT / "fuzzgraph").rglob("*.py")}
    assert len(texts) > 100
    assert [str(path) for path, text in texts.items() if "time.time(" in text] == []
