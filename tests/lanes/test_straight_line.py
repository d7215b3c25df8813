"""A path that is one function over arrays does what its operations do one by one.

Generated kernels run in three ways: by their own Python, by playback that calls each operation,
and by playback of whole functions. Memory, records and errors must be the same, byte for byte.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.lanes import LaneReport, lanes
from tests.lanes.kernels import generated, launch

assert launch  # Triton is ready
from fuzzgraph.lanes import launch as lane_launch  # isort: skip  # noqa: E402
from fuzzgraph.lanes import trace, traces  # isort: skip  # noqa: E402
from fuzzgraph.lanes.straight_line import accesses, arithmetic, shapes, writing  # isort: skip  # noqa: E402

KERNELS = int(os.environ.get("FUZZGRAPH_LAUNCHES", "120")) // 8
LAUNCHES = 6
NEVER = 1 << 60


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    traces.forget()
    yield
    traces.forget()


Seen = tuple[str, bytes, list[Any], list[Any], list[Any], int]


def seen(kernel: Any, content: int) -> tuple[Seen, LaneReport]:
    """What one launch left and reported, addresses counted from the start of its memory."""
    memory = generated.memory(content)
    error = ""
    with lanes(fresh=[memory.fresh]) as report, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kernel[(generated.PROGRAMS,)](*memory.args, BLOCK=generated.BLOCK, WIDE=generated.WIDE)
        except Exception as raised:
            error = repr(raised)
    strays = [replace(each, address=each.address - memory.start) for each in report.accesses]
    races = [replace(each, address=each.address - memory.start) for each in report.races]
    fallbacks = sorted(report.fallbacks.items())
    left = memory.whole.tobytes()
    return (error, left, strays, races, fallbacks, report.unchecked), report


def launched(kernel: Any, seed: int) -> tuple[list[Seen], list[LaneReport]]:
    """Launches of one kernel, one after the other, from no trace on."""
    traces.forget()
    each = [seen(kernel, 1000 * seed + number) for number in range(LAUNCHES)]
    return [one for one, _ in each], [report for _, report in each]


def differing(seeds: range, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The generated kernels whose whole functions do not do what their operations do."""
    for seed in seeds:
        kernel = generated.kernel(seed, folder)
        monkeypatch.setattr(trace, "_OFTEN", NEVER)
        wanted, _ = launched(kernel, seed)
        monkeypatch.setattr(trace, "_OFTEN", 1)
        if launched(kernel, seed)[0] != wanted:
            yield seed


def test_generated_kernels_leave_and_report_the_same_in_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: Counter[str] = Counter()
    for seed in range(KERNELS):
        kernel = generated.kernel(seed, tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(lane_launch, "trace_of", lambda *_: None)
            wanted, reports = launched(kernel, seed)
            assert not any(report.played for report in reports)
        monkeypatch.setattr(trace, "_OFTEN", NEVER)
        assert launched(kernel, seed)[0] == wanted, seed
        monkeypatch.setattr(trace, "_OFTEN", 1)
        got, played = launched(kernel, seed)
        assert got == wanted, seed
        shown.update(features(wanted, reports, played))
    assert set(FEATURES) <= set(shown), shown


FEATURES = (
    "outside", "unmapped", "between", "unwritten", "race", "raised", "split", "fallback", "played"
)  # fmt: skip
"""What the kernels together have to show; else the test would prove less than it says."""


def features(
    wanted: list[Seen], reports: list[LaneReport], played: list[LaneReport]
) -> Iterator[str]:
    for error, _, found, races, fallbacks, _ in wanted:
        yield from (access.where for access in found)
        yield from ["raised"] * bool(error) + ["race"] * bool(races)
        yield from ["fallback"] * bool(fallbacks)
    yield from ["split"] * sum(report.splits > 0 for report in reports)
    yield from ["played"] * sum(report.played > 0 for report in played)


def _mask_dropped(made: Any, step: Any, ptrs: Any, mask: Any, other: Any, *_: Any) -> None:
    accesses.load(made, step, ptrs)


def _default_dropped(made: Any, step: Any, ptrs: Any, mask: Any, other: Any, *_: Any) -> None:
    accesses.masked_load(made, step, ptrs, mask, accesses._NONE)


def _store_mask_dropped(made: Any, step: Any, ptrs: Any, value: Any, *_: Any) -> None:
    accesses.store(made, step, ptrs, value)


def _swapped(made: Any, step: Any, lhs: Any, rhs: Any) -> None:
    arithmetic.binary(made, step, rhs, lhs)


def _not_moved(made: Any, step: Any, ptr: Any, offset: Any) -> None:
    made.of(offset)
    made.broadcast(step, ptr)


def _other_program(made: Any, step: Any, axis: Any) -> None:
    made.define(step, "builder.ids[0] * 0")


MUTANTS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "a load's mask": (accesses.masked_load, _mask_dropped),
    "a load's default": (accesses.masked_load, _default_dropped),
    "a store's mask": (accesses.masked_store, _store_mask_dropped),
    "the operands' order": (arithmetic.binary, _swapped),
    "a pointer's offset": (arithmetic.move_pointer, _not_moved),
    "the program": (shapes.program_id, _other_program),
}
"""What is wrong -> what writes it down, and what is put in its place."""


@pytest.mark.parametrize("wrong", MUTANTS)
def test_a_function_that_gets_one_thing_wrong_is_noticed(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, mutant = MUTANTS[wrong]
    for key, writer in list(writing._WRITERS.items()):
        if writer is replaced:
            monkeypatch.setitem(writing._WRITERS, key, mutant)
    assert any(True for _ in differing(range(6), tmp_path, monkeypatch))


def test_every_kind_of_step_is_written_down_by_some_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: Counter[str] = Counter()

    def counted(writer: Callable[..., None]) -> Callable[..., None]:
        def write(*args: Any) -> None:
            writer(*args)
            written[writer.__name__] += 1

        return write

    for key, writer in list(writing._WRITERS.items()):
        monkeypatch.setitem(writing._WRITERS, key, counted(writer))
    assert list(differing(range(4), tmp_path, monkeypatch)) == []
    assert set(written) == {
        "binary", "cast", "move_pointer", "reduction", "program_id", "splat", "broadcast",
        "expand_dims", "masked_load", "masked_store", "load", "store",
    }  # fmt: skip
