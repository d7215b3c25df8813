"""`make gpu` in its CPU form: the emulated device in the place of the GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def gpu(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/gpu.py", *words],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip


def test_the_page_of_the_emulated_device_says_that_all_went_as_it_must(tmp_path: Path) -> None:
    done = gpu("--emulated", "--brief", "--out", str(tmp_path / "gpu"))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "gpu" / "gpu.md").read_text("utf-8")
    assert page.strip() == done.stdout.strip()
    assert "Everything went as it must." in page
    assert "| builtin | 4 | 0 | 0 |" in page
    assert "4 of 4 give the same findings" in page
    assert "the first one of a config, whose session is opened and captured for it, " in page


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_one_line_says_how_to_run_it(tmp_path: Path) -> None:
    done = gpu("--out", str(tmp_path / "gpu"))
    assert done.returncode == 2
    assert done.stderr.strip().endswith("sees no CUDA or HIP device. Use --emulated.")
    assert not (tmp_path / "gpu").exists()
