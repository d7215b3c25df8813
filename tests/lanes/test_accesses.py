"""Accesses outside are told with line, program, buffer and offset, and do not end the run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fuzzgraph.lanes import Access, LaneReport, lanes
from fuzzgraph.lanes.argument_regions import Named
from tests.lanes.kernels import planted


def line_of(comment: str) -> str:
    """`planted.py:12`, the line that ends with this comment."""
    lines = Path(planted.__file__).read_text().split("\n")
    return f"planted.py:{next(n for n, text in enumerate(lines, 1) if text.endswith(comment))}"


def room(*sizes: int) -> list[torch.Tensor]:
    """Float tensors behind each other in one storage, numbered through."""
    flat = torch.arange(float(sum(sizes)))
    return list(flat.split(list(sizes)))


def only(report: LaneReport) -> Access:
    (access,) = report.accesses
    return access


def test_a_read_past_the_view_names_line_program_buffer_and_offset() -> None:
    x, behind, out = room(6, 4, 12)
    with lanes() as report:
        planted.copy[(3,)](x, out, 9, BLOCK=4)
    access = only(report)
    assert (access.kernel, access.source) == ("copy", line_of("# the line"))
    assert (access.kind, access.where, access.buffer) == ("read", "outside", "x")
    assert (access.program, access.programs) == ((1, 0, 0), 2)
    assert (access.offset, access.low, access.high) == (6, 6, 8)
    assert (access.elements, access.extent) == (3, 6)
    assert behind.tolist() == [6.0, 7.0, 8.0, 9.0]


def test_what_the_hardware_would_do_still_happens() -> None:
    out, behind, x = room(6, 4, 12)
    with lanes() as report:
        planted.copy[(3,)](x, out, 9, BLOCK=4)
    access = only(report)
    assert (access.kind, access.buffer, access.elements) == ("write", "out", 3)
    assert behind.tolist() == [16.0, 17.0, 18.0, 9.0]


def test_an_access_in_front_of_the_view_has_a_negative_offset() -> None:
    _, x, out = room(2, 4, 4)
    with lanes() as report:
        planted.shifted[(4,)](x, out, -2)
    access = only(report)
    assert (access.offset, access.low, access.high, access.elements) == (-2, -2, -1, 2)
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_outside_of_all_known_memory_reads_zero_and_writes_nothing() -> None:
    x, out = torch.arange(4.0), torch.full((4,), 9.0)
    with lanes() as report:
        planted.shifted[(4,)](x, out, 1 << 40)
        planted.shifted[(8,)](torch.zeros(8), out, 0)
    read, write = report.accesses
    assert (read.where, read.kind, read.elements) == ("unmapped", "read", 4)
    assert (write.where, write.kind, write.elements) == ("unmapped", "write", 4)
    assert out.tolist() == [0.0] * 4


def test_a_pointer_to_one_buffer_may_not_reach_another() -> None:
    x, y, out = room(4, 4, 1)
    with lanes() as report:
        planted.from_other[(1,)](x, y, out)
    access = only(report)
    assert (access.buffer, access.where, access.offset) == ("x", "outside", 4)
    assert out.tolist() == [4.0]


def test_gaps_between_the_rows_of_a_view_do_not_belong_to_it() -> None:
    (flat,) = room(12)
    x, out = flat.view(3, 4)[:, :3], torch.zeros(11)
    with lanes() as report:
        planted.copy[(11,)](x, out, 11, BLOCK=1)
    access = only(report)
    assert (access.where, access.offset, access.elements) == ("between", 3, 2)
    assert out.tolist() == list(map(float, range(11)))


def test_masked_elements_are_no_accesses() -> None:
    x, _, out = room(5, 3, 8)
    with lanes() as report:
        planted.copy[(2,)](x, out, 5, BLOCK=4)
    assert report.accesses == []


def test_a_branch_that_a_program_does_not_take_is_no_access() -> None:
    x, out = torch.ones(2), torch.zeros(6)
    with lanes() as report:
        planted.guarded_by_branch[(6,)](x, out, 2)
    assert report.accesses == [] and report.splits == 1
    assert out.tolist() == [1.0, 1.0, 7.0, 7.0, 7.0, 7.0]


def test_a_branch_that_reads_too_far_is_told_once() -> None:
    x, _, out = room(2, 4, 6)
    with lanes() as report:
        planted.guarded_by_branch[(6,)](x, out, 4)
    assert (only(report).elements, only(report).program) == (2, (2, 0, 0))


def test_a_program_whose_last_loop_is_over_makes_no_access() -> None:
    x, out = torch.arange(6.0), torch.zeros(6)
    lens, starts = torch.tensor([1, 3, 2]), torch.tensor([0, 1, 4])
    with lanes() as report:
        planted.ragged_copy[(3,)](x, starts, lens, out)
    assert out.tolist() == x.tolist()
    assert (report.accesses, report.races, report.runs) == ([], [], 1)


def test_the_line_of_a_device_function_is_named() -> None:
    x, _, out = room(4, 1, 4)
    with lanes() as report:
        planted.by_helper[(4,)](x, out, 1)
    assert only(report).source == line_of("# the helper's line")
    assert only(report).kernel == "by_helper"


def test_a_launch_that_falls_back_is_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    x, _, out = room(4, 2, 4)
    with lanes() as report:
        planted.printing[(4,)](x, out, 2)
    assert report.fallbacks == {("printing", "device_print"): 1}
    access = only(report)
    assert (access.program, access.programs, access.elements) == ((2, 0, 0), 2, 2)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_an_atomic_is_an_access() -> None:
    out, behind, x = room(3, 2, 3)
    with lanes() as report:
        planted.add_atomically[(3,)](x, out, 1)
    access = only(report)
    assert (access.kind, access.offset, access.elements) == ("write", 3, 1)
    assert behind.tolist() == [3.0 + 7.0, 4.0]


def test_records_of_loops_and_launches_add_up() -> None:
    x, _, out = room(4, 2, 4)
    with lanes() as report:
        for _ in range(3):
            planted.shifted[(4,)](x, out, 2)
    assert only(report).elements == 6
    assert report.take_accesses() and report.accesses == []


class Payloads:
    """Regions by address, as guarded memory would name them."""

    def __init__(self, read_whole: torch.Tensor | None = None, **tensors: torch.Tensor) -> None:
        self.read_whole = read_whole
        self.known = {
            name: (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)
            for name, tensor in tensors.items()
        }

    def region_at(self, address: int) -> Named | None:
        for name, (start, end) in self.known.items():
            if start - 8 <= address < end + 8:
                return name, start, end
        return None

    def end_from(self, address: int) -> int:
        row = self.read_whole
        return row.data_ptr() + row.nbytes if row is not None and row.data_ptr() == address else 0

    def spans(self) -> list[tuple[int, int]]:
        return [(min(s for s, _ in self.known.values()), max(e for _, e in self.known.values()))]


def test_a_view_wider_than_its_region_is_held_against_the_payload() -> None:
    payload, _, out = room(4, 4, 6)
    wide = payload.as_strided((6,), (1,))
    with lanes(regions=Payloads(cache=payload, out=out)) as report:
        planted.copy[(1,)](wide, out, 6, BLOCK=8)
    access = only(report)
    assert (access.buffer, access.region, access.offset, access.extent) == ("x", "cache", 4, 4)
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(("length", "wrong"), [(4, 0), (6, 2)], ids=["inside", "too far"])
def test_a_row_of_which_a_part_was_passed_may_be_read_to_its_end(length: int, wrong: int) -> None:
    table, _, out = room(8, 4, 8)
    regions = Payloads(read_whole=table[:4], table=table, out=out)
    with lanes(regions=regions) as report:
        planted.copy[(1,)](table[:2], out, length, BLOCK=8)
    assert sum(access.elements for access in report.accesses) == wrong


@pytest.mark.parametrize(("length", "wrong"), [(4, 0), (6, 2)], ids=["inside", "too far"])
def test_loaded_pointers_are_held_against_the_region_they_lead_to(length: int, wrong: int) -> None:
    source, _, out = room(4, 8, 8)
    table = torch.tensor([source.data_ptr()])
    lens = torch.tensor([length], dtype=torch.int32)
    with lanes(regions=Payloads(source=source, out=out)) as report:
        planted.gather_rows[(1,)](table, lens, out, BLOCK=8)
    assert sum(access.elements for access in report.accesses) == wrong
    if wrong:
        assert (only(report).buffer, only(report).region) == ("?", "source")
    assert report.unchecked == 0


def test_loaded_pointers_to_memory_that_nobody_named_are_followed_and_counted() -> None:
    source, out = torch.arange(4.0), torch.zeros(4)
    table = torch.tensor([source.data_ptr()])
    with lanes() as report:
        planted.gather_rows[(1,)](table, torch.tensor([4]), out, BLOCK=4)
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (report.unchecked, report.accesses) == (4, [])
    with lanes(vouched=[source]) as report:
        planted.gather_rows[(1,)](table, torch.tensor([4]), out, BLOCK=4)
    assert report.unchecked == 0


def test_a_loaded_pointer_into_nowhere_is_told_and_not_followed() -> None:
    out = torch.full((4,), 3.0)
    with lanes() as report:
        planted.gather_rows[(1,)](torch.tensor([4096]), torch.tensor([4]), out, BLOCK=4)
    assert (only(report).where, only(report).buffer) == ("unmapped", "?")
    assert out.tolist() == [0.0] * 4


def test_reading_what_nobody_wrote_is_told_on_request() -> None:
    out, total = torch.zeros(8), torch.zeros(1)
    with lanes(fresh=[out]) as report:
        planted.first_half_then_all[(1,)](out, total, HALF=4)
    access = only(report)
    assert (access.where, access.kind, access.offset, access.elements) == (
        "unwritten",
        "read",
        4,
        4,
    )
    with lanes(fresh=[out]) as report:
        planted.mark[(2,)](out, 8, BLOCK=4)
        planted.first_half_then_all[(1,)](out, total, HALF=4)
    assert report.accesses == []


def test_a_tensor_without_elements_may_be_passed_and_not_touched() -> None:
    empty, out = torch.zeros(0), torch.zeros(3)
    with lanes() as report:
        planted.copy[(1,)](empty, out, 0, BLOCK=4)
        assert report.accesses == []
        planted.copy[(1,)](empty, out, 3, BLOCK=4)
    assert (only(report).buffer, only(report).extent, only(report).elements) == ("x", 0, 3)


def test_the_report_reads_as_lines() -> None:
    x, _, out = room(4, 2, 4)
    with lanes() as report:
        planted.shifted[(4,)](x, out, 2)
        planted.same_place[(4,)](out, STRIDE=2)
    access, race = report.lines()
    assert re.fullmatch(
        r"shifted at planted\.py:\d+, program \(2, 0, 0\): read outside x at \+4 of 4 elements"
        r" \(2 in all, \+4 to \+5\)",
        access,
    )
    assert race.startswith("same_place: programs (0, 0, 0) and (1, 0, 0) write and write out at +0")


def test_reports_of_random_planted_reads_are_exact() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        size, programs, by = (int(n) for n in random.integers(1, 9, 3))
        x, _, out = room(size, 20, 9)
        with lanes() as report:
            planted.shifted[(programs,)](x, out, by)
        wrong = [row for row in range(programs) if row + by >= size]
        if not wrong:
            assert report.accesses == []
            continue
        access = only(report)
        assert access.program == (wrong[0], 0, 0)
        assert (access.low, access.high) == (wrong[0] + by, wrong[-1] + by)
        assert (access.elements, access.programs) == (len(wrong), len(wrong))
