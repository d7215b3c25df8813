"""A launch that is played back from a trace leaves what the kernel's own Python would leave."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from fuzzgraph.lanes import LaneReport, lanes
from tests.lanes.kernels import arithmetic, attention, hazards, indices, servers, traced, tutorials
from tests.lanes.kernels.launch import Launch
from tests.lanes.test_same_bytes import HEAVY, drawn, outcome

from fuzzgraph.lanes import trace, traces  # isort: skip  (it needs Triton, which `launch` made ready)

DRAWS = {
    **attention.DRAWS, **indices.DRAWS, **arithmetic.DRAWS, **tutorials.DRAWS, **hazards.DRAWS
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    traces.forget()
    yield
    traces.forget()


def with_other_content(launch: Launch, seed: int) -> Launch:
    """A copy of a launch whose floats are others; integers lead to memory and stay."""
    other = launch.copy()
    random = np.random.default_rng(seed)
    for tensor in tensors_in(other.args):
        if tensor.is_floating_point() and tensor.dtype.itemsize >= 2:
            flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            flat.copy_(torch.from_numpy(random.normal(size=len(flat))))
    return other


def was_compiled(one: Any) -> bool:
    paths = [one.root, *one.owners.values()]
    return any(path.run is not None for path in paths)


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, tuple):
            yield from tensors_in(value)
        elif isinstance(value, torch.Tensor):
            yield value


def over_lanes(launch: Launch) -> tuple[Any, LaneReport]:
    with lanes() as report:
        return outcome(launch), report


@pytest.mark.parametrize("compiled", [False, True], ids=["one by one", "compiled"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_launch_that_is_played_back_leaves_the_bytes_of_the_stock_interpreter(
    name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_OFTEN", 1 if compiled else 1 << 60)
    played = 0
    for seed in range(min(HEAVY.get(name, 12), 12) // (4 if name in HEAVY else 1)):
        first = drawn(name, DRAWS[name], seed)
        over_lanes(first.copy())
        for again in range(3):
            launch = with_other_content(first, again)
            expected = outcome(launch.copy())
            got, report = over_lanes(launch)
            assert got == expected, (name, seed, again)
            played += report.played
    assert {each.off for each in traces.kept()} <= {""}
    assert compiled == any(map(was_compiled, traces.kept()))
    assert not any(each.playbacks_raised for each in traces.kept())
    assert played


def run(kernel: Any, grid: int, *args: Any, block: int = 8) -> LaneReport:
    with lanes() as report, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel[(grid,)](*args, BLOCK=block)
    return report


def test_a_branch_not_taken_before_is_run_by_the_kernel_and_then_played_back() -> None:
    played = []
    for values in ([1, 2], [7, 9], [1, 9], [3, 8]):
        target = torch.zeros(2, dtype=torch.int32)
        report = run(traced.branching, 2, torch.tensor(values, dtype=torch.int32), target)
        assert target.tolist() == [value * 10 if value > 4 else value - 1 for value in values]
        assert not report.fallbacks
        played.append((report.played, report.runs))
    # Neither path is known at first, then both are; lanes that disagree run in two parts.
    assert played == [(0, 1), (0, 1), (2, 2), (2, 2)]


def test_loops_of_other_lengths_are_other_paths() -> None:
    for lengths in ([8, 8], [24, 24], [8, 24], [0, 9], [24, 0]):
        target = torch.zeros(2, dtype=torch.int32)
        run(traced.rows, 2, torch.tensor(lengths, dtype=torch.int32), target, 1)
        expected = [row + sum(range(0, length, 8)) for row, length in enumerate(lengths)]
        assert target.tolist() == expected


def test_bounds_that_give_the_same_rounds_are_one_path() -> None:
    played = []
    for length in (9, 16, 17):
        target = torch.zeros(2, dtype=torch.int32)
        report = run(traced.rows, 2, torch.full((2,), length, dtype=torch.int32), target, 1)
        assert target.tolist() == [row + sum(range(0, length, 8)) for row in range(2)]
        played.append(report.played)
    assert played == [0, 1, 0]


def test_arguments_of_one_value_are_told_apart_in_the_next_launch() -> None:
    source, target = torch.arange(8.0), torch.zeros(8)
    run(traced.scaled, 1, source, target, 8)
    target.zero_()
    assert run(traced.scaled, 1, source, target, 3).played == 1
    assert target.tolist() == [0, 2, 4, 0, 0, 0, 0, 0]


def test_a_global_that_changed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = torch.arange(8.0), torch.zeros(8)
    run(traced.scaled, 1, source, target, 8)
    monkeypatch.setitem(traced.scaled.rewrite().__globals__, "SCALE", 5)
    assert run(traced.scaled, 1, source, target, 8).played == 0
    assert target.tolist() == [5 * each for each in range(8)]


@pytest.mark.parametrize(
    ("kernel", "constants", "computed"),
    [
        (servers.by_alias, {}, lambda x: 2 * x.exp() - 1),
        (
            servers.of_the_library,
            {"ALONE": False},
            lambda x: x.log1p() + (x + 0.5).floor() + x.tanh(),
        ),
    ],
    ids=["of the language", "of the device's library"],
)
def test_a_kernel_that_calls_functions_by_other_names_is_played_back(
    kernel: Any, constants: dict[str, Any], computed: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    for number in (0.5, 1.5, 2.25):
        x, out = torch.tensor([number, 2 * number]), torch.zeros(2)
        with lanes() as report:
            kernel[(2,)](x, out, **constants)
        torch.testing.assert_close(out, computed(x))
        assert report.played == (number > 0.5)


def test_another_name_of_the_language_that_changed_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, out = torch.tensor([2.0, 3.0]), torch.zeros(2)
    with lanes():
        servers.by_alias[(2,)](x, out)
    monkeypatch.setattr(servers, "exp", tl.exp2)
    with lanes() as report:
        servers.by_alias[(2,)](x, out)
    assert report.played == 0
    torch.testing.assert_close(out, 2 * x.exp2() - 1)


def test_a_kernel_that_reads_a_list_is_never_played_back() -> None:
    source, target = torch.arange(8.0), torch.zeros(8)
    for factor in (3, 4):
        traced.FACTORS[0] = factor
        assert run(traced.scaled_by_list, 1, source, target).played == 0
        assert target.tolist() == [factor * each for each in range(8)]
    assert [trace.off for trace in traces.kept()] == ["the global FACTORS may change"]


def test_a_kernel_that_looks_past_the_operations_is_never_played_back() -> None:
    target = torch.zeros(8)
    for high in (1, 2):
        source = torch.full((8,), float(high))
        assert run(traced.peeking, 1, source, target).played == 0
        assert target.tolist() == [high * 8.0 * high] * 8
    (off,) = (trace.off for trace in traces.kept())
    assert off.startswith("values read at traced.py:")


def test_a_trace_that_leaves_an_operation_out_is_caught_by_its_bytes() -> None:
    source = torch.arange(8.0)
    target = torch.zeros(8)
    run(traced.scaled, 1, source, target, 8)
    (trace,) = traces.kept()
    stores = [step for step in trace.root.steps if "store" in step.function.__name__]
    trace.root.steps.remove(stores[0])
    target.zero_()
    assert run(traced.scaled, 1, source, target, 8).played == 1
    assert target.tolist() == [0.0] * 8


def test_a_played_back_overrun_is_reported_at_its_line_and_alike() -> None:
    source, whole = torch.arange(4.0), torch.zeros(16)
    reports = [run(traced.overrun, 1, source, whole[:4], 6) for _ in range(2)]
    assert [report.played for report in reports] == [0, 1]
    first, second = (report.accesses for report in reports)
    assert first == second and len(first) == 1
    assert first[0].source.startswith("traced.py:") and first[0].elements == 2


def test_a_played_back_race_is_reported_alike() -> None:
    source, target = torch.arange(4.0), torch.zeros(4)
    assert run(traced.meeting, 4, source, target, 4).races == []
    reports = [run(traced.meeting, 4, source, target, 2) for _ in range(2)]
    assert reports[0].races == reports[1].races and len(reports[0].races) == 1
