"""A changed line of a Triton kernel is what the interpreter and the lanes run."""

from __future__ import annotations

import gc
import importlib
import linecache
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fuzzgraph.lanes import lanes
from fuzzgraph.mutants.drawing import candidates
from fuzzgraph.mutants.planting import live_functions, plant
from fuzzgraph.mutants.source import Source
from tests.lanes.kernels import launch

assert launch  # what a jit function is depends on it

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def shifted(out, x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    live = at < n
    tl.store(out + at, tl.load(x + at, mask=live) + 10, mask=live)
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    stock = SourceFileLoader.get_code
    (tmp_path / "planted_kernels.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("planted_kernels")
    yield module
    SourceFileLoader.get_code = stock  # type: ignore[method-assign]
    linecache.cache.pop(str(module.__file__), None)
    del sys.modules["planted_kernels"]
    gc.unfreeze()


def launched(kernels: ModuleType) -> list[float]:
    out, x = torch.zeros(4), torch.arange(4.0)
    kernels.shifted[(1,)](out, x, 3, BLOCK=4)
    return out.tolist()


@pytest.mark.parametrize("over_lanes", [False, True], ids=["interpreter", "lanes"])
@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("+ 10", "+ 11", [11.0, 12.0, 13.0, 0.0]),
        ("at < n", "at <= n", [10.0, 11.0, 12.0, 13.0]),
    ],
)
def test_a_kernel_runs_with_its_changed_line(
    kernels: ModuleType, before: str, after: str, wanted: list[float], over_lanes: bool
) -> None:
    source = Source.read(str(kernels.__file__))
    changed = {line: line.replace(before, after) for line in KERNEL.splitlines() if before in line}
    ((line, new),) = changed.items()
    candidate = next(
        one
        for one in candidates("planted_kernels", source, range(1, 20))
        if (one.mutant.before, one.mutant.after) == (line.strip(), new.strip())
    )
    assert plant(source, candidate, live_functions([source.path])) == 1
    if over_lanes:
        with lanes():
            assert launched(kernels) == wanted
    else:
        assert launched(kernels) == wanted


def test_without_a_change_it_runs_as_written(kernels: ModuleType) -> None:
    assert launched(kernels) == [10.0, 11.0, 12.0, 0.0]
