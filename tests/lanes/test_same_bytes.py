"""Every byte is what the stock interpreter leaves, on random launches of many kernels."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import triton

from fuzzgraph.lanes import LaneReport, lanes
from tests.lanes.kernels import arithmetic, attention, hazards, indices, tutorials
from tests.lanes.kernels.launch import Draw, Launch

CLEAN = {**attention.DRAWS, **indices.DRAWS, **arithmetic.DRAWS, **tutorials.DRAWS}
HEAVY = {"decode_stage1": 30, "decode_stage2": 60, "grouped_latent": 40, "unified": 30}
HEAVY |= {"matmul": 30, "flash": 40, "dropout": 60, "layer_norm": 80, "softmax": 100}
UNABLE = (
    "only 0-dimensional arrays can be converted to Python scalars",  # 3.6.0 from numpy 2.4 on
    "Block pointers have been removed",  # from 3.9.0 on
)
"""What a version of Triton says where its own interpreter leaves nothing to compare with."""
LAUNCHES = int(os.environ.get("FUZZGRAPH_LAUNCHES", "120"))
"""Launches of each kernel; fewer where the stock interpreter takes long."""


def drawn(name: str, draw: Draw, seed: int) -> Launch:
    return draw(np.random.default_rng([seed, *name.encode()]))


def outcome(launch: Launch) -> tuple[str, list[bytes]]:
    error = ""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but still in use
        try:
            launch.run()
        except Exception as raised:
            error = repr(raised)
    return error, launch.memory()


def compared(name: str, draw: Draw, seed: int) -> LaneReport:
    """The report of a launch over lanes, after it was seen to do what the stock launch does."""
    first = drawn(name, draw, seed)
    second = first.copy()
    expected = outcome(first)
    if any(words in expected[0] for words in UNABLE):
        pytest.skip(f"Triton {triton.__version__} itself cannot run it with numpy {np.__version__}")
    with lanes() as report:
        got = outcome(second)
    assert expected[0] == got[0] == "", (name, seed)
    assert got[1] == expected[1], (name, seed, first.grid, first.constants)
    return report


@pytest.mark.parametrize("name", CLEAN)
def test_lanes_leave_the_bytes_of_the_stock_interpreter_and_report_nothing(name: str) -> None:
    programs = runs = 0
    for seed in range(min(HEAVY.get(name, LAUNCHES), LAUNCHES)):
        report = compared(name, CLEAN[name], seed)
        assert report.accesses == [] and report.races == [], seed
        assert not report.fallbacks, seed
        programs += report.programs
        runs += report.runs
    assert runs < programs, "nothing ran vectorised"


@pytest.mark.parametrize("name", hazards.DRAWS)
def test_programs_that_meet_leave_the_bytes_of_the_stock_interpreter(name: str) -> None:
    for seed in range(LAUNCHES):
        report = compared(name, hazards.DRAWS[name], seed)
        assert report.accesses == []


@pytest.mark.parametrize("most", [1, 16, 200])
def test_the_bytes_do_not_depend_on_how_many_lanes_fit(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuzzgraph.lanes import launch

    monkeypatch.setattr(launch, "MOST_ELEMENTS", most)
    monkeypatch.setattr(launch, "MOST_LANES", 3)
    monkeypatch.setattr(launch, "_WIDTHS", {})
    for name in ("kv_indices", "reductions", "combined", "shared", "counted"):
        for seed in range(25):
            compared(name, {**CLEAN, **hazards.DRAWS}[name], seed)
