"""`make gpu` in its CPU form: the emulated device in the place of the GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu as page

ROOT = Path(__file__).resolve().parents[2]


def gpu(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/gpu.py", *words],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip


def test_the_page_of_the_emulated_device_says_that_all_went_as_it_must(tmp_path: Path) -> None:
    done = gpu("--emulated", "--brief", "--out", str(tmp_path / "gpu"))
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "gpu" / "gpu.md").read_text("utf-8")
    assert said.strip() == done.stdout.strip()
    assert "Everything went as it must." in said
    assert "| builtin | 4 | 0 | 0 |" in said
    assert "4 of 4 give the same findings" in said
    assert "the first one of a config, whose session is opened and captured for it, " in said


def test_another_call_leaves_what_the_one_before_has_written(tmp_path: Path) -> None:
    words = "--emulated", "--brief", "--out", str(tmp_path / "gpu"), "--parts", "healthy"
    assert [gpu(*words).returncode for _ in range(2)] == [0, 0]
    pages = sorted(tmp_path.glob("gpu/*/gpu.md"))
    assert len(pages) == 2
    newest = (tmp_path / "gpu" / "gpu.md").read_bytes()
    assert newest in {page.read_bytes() for page in pages}


def test_a_part_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no room\nat all")

    monkeypatch.setattr(page, "healthy", fails)
    words = ["gpu.py", "--emulated", "--brief", "--out", str(tmp_path), "--parts", "healthy,steps"]
    monkeypatch.setattr(sys, "argv", words)
    assert page.main() == 1
    said = capsys.readouterr().out
    assert "- part healthy ended with MemoryError: no room\n" in said
    assert "## A step of the built-in engine" in said


def test_a_part_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    done = gpu("--emulated", "--brief", "--out", str(tmp_path), "--parts", "snapshots")
    assert done.returncode == 2
    assert done.stderr.strip() == "gpu: --parts 'snapshots' is none of healthy, faults, steps."


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_one_line_says_how_to_run_it(tmp_path: Path) -> None:
    done = gpu("--out", str(tmp_path / "gpu"))
    assert done.returncode == 2
    assert done.stderr.strip().endswith("sees no CUDA or HIP device. Use --emulated.")
    assert not (tmp_path / "gpu").exists()
