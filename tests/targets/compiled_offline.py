"""What the compilers of devices say of the kernels that a target launches, without a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.lanes.versions import refusal

COMPILE = Path(__file__).parents[2] / "benchmarks" / "compile_offline.py"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "gfx942", "gfx950")


def compiled(
    target: str, shape: str, path: Path | None = None, architectures: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """A line for each kernel and architecture, of two drawn cases with these head dims."""
    triton = pytest.importorskip("triton")
    if refusal(triton.__version__):
        pytest.skip(refusal(triton.__version__))
    command = [sys.executable, str(COMPILE), "--one", target, "--cases", "2", "--shapes", shape]
    command += ["--path", str(path)] if path else []
    command += ["--architectures", ",".join(architectures)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line for line in lines if line.get("unread") or line.get("kept")] == []
    return [line for line in lines if "kernel" in line]


def refused(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] != "compiled"]
