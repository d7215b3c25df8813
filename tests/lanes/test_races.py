"""Programs that touch one place are told; the bytes stay those of the stock interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.lanes import Race, lanes
from fuzzgraph.lanes.access_log import Event
from fuzzgraph.lanes.races import check_races
from tests.lanes.kernels import hazards, planted


def races(run: object) -> tuple[list[Race], dict[tuple[str, str], int]]:
    with lanes() as report:
        run()  # type: ignore[operator]
    return report.races, dict(report.fallbacks)


def test_two_programs_that_write_one_place_race() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    (race,), fallbacks = races(lambda: planted.same_place[(6,)](out, STRIDE=2))
    assert (race.kernel, race.kind, race.buffer) == ("same_place", "write and write", "out")
    assert race.programs == ((0, 0, 0), (1, 0, 0))
    assert (race.offset, race.elements, race.same_value) == (0, 3, False)
    assert out.tolist() == [1, 3, 5, 0]
    assert fallbacks == {}, "lanes write in the order of programs"


def test_a_place_of_its_own_for_each_program_is_no_race() -> None:
    out = torch.zeros(6, dtype=torch.int32)
    assert races(lambda: planted.same_place[(6,)](out, STRIDE=1)) == ([], {})


def test_a_program_alone_cannot_race() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    assert races(lambda: planted.same_place[(1,)](out, STRIDE=1)) == ([], {})


def test_a_race_in_which_all_write_the_same_says_so() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    (race,), _ = races(lambda: planted.same_value[(4,)](out))
    assert race.same_value
    assert "(1 element, all of the same value; " in str(race)


def test_a_race_in_which_all_write_the_same_at_last_says_so() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    (race,), _ = races(lambda: planted.same_value_at_last[(4,)](out, READS=False))
    assert race.same_value and out.tolist() == [5]


def test_a_value_in_between_that_is_read_does_not_say_so() -> None:
    out = torch.zeros(5, dtype=torch.int32)
    (race,), _ = races(lambda: planted.same_value_at_last[(4,)](out, READS=True))
    assert not race.same_value


def test_a_race_of_different_values_does_not_say_so() -> None:
    out = torch.zeros(4, dtype=torch.int32)
    (race,), _ = races(lambda: planted.same_place[(6,)](out, STRIDE=2))
    assert "same value" not in str(race)


def test_programs_that_read_what_others_write_race_and_run_in_their_order() -> None:
    x = torch.arange(5.0)
    (race,), fallbacks = races(lambda: planted.neighbours[(5,)](x, x, 5))
    assert race.kind == "read and write"
    assert fallbacks == {}
    assert x.tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]


def test_programs_that_run_in_their_order_are_played_back() -> None:
    x = torch.arange(5.0)
    with lanes() as report:
        for _ in range(2):
            planted.neighbours[(5,)](x, x, 5)
    assert report.played >= 5 and not report.fallbacks


@pytest.mark.parametrize("alone", [False, True])
def test_an_atomic_answers_zero_where_it_was_not_carried_out(alone: bool) -> None:
    counts, out = torch.full((8,), 7), torch.full((8,), 9)
    with lanes() as report:
        planted.counted_before[(1,)](counts, out, 3, BLOCK=8, ALONE=alone)
    assert out.tolist() == [7, 7, 7, 0, 0, 0, 0, 0]
    assert bool(report.fallbacks) == alone


def test_atomics_may_meet() -> None:
    out = torch.zeros(1, dtype=torch.int32)
    assert races(lambda: planted.add_one[(9,)](out)) == ([], {})
    assert out.tolist() == [9]


@pytest.mark.parametrize("kind", [1, 2])
def test_floats_that_atomics_add_up_are_added_in_the_order_of_programs(kind: int) -> None:
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(3)) * 100
    stock, out = torch.full((3,), 0.1), torch.full((3,), 0.1)
    hazards.added_floats[(7,)](x, stock, 3, KIND=kind, BLOCK=4)
    with lanes() as report:
        hazards.added_floats[(7,)](x, out, 3, KIND=kind, BLOCK=4)
    assert out.tolist() == stock.tolist()
    assert not report.fallbacks
    assert not report.races


def test_two_arguments_over_one_memory_can_race() -> None:
    room = torch.arange(8.0)
    (race,), _ = races(lambda: planted.shifted[(4,)](room[:4], room[1:], 0))
    assert race.kind == "read and write"
    assert room.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 7.0]


def event(writes: bool, *pairs: tuple[int, int], size: int = 4, atomic: str = "") -> Event:
    """An event from (address, program) pairs."""
    places, programs = zip(*pairs, strict=True)
    return Event(
        writes,
        np.array(places, np.uint64),
        np.array(programs, np.int32),
        size,
        "k.py:1",
        None,
        atomic,
    )


def test_accesses_of_different_width_meet_where_they_overlap() -> None:
    verdict = check_races([event(True, (100, 0), size=8), event(False, (104, 1), size=2)])
    assert verdict.conflicts[0].address == 104
    assert not check_races([event(True, (100, 0), size=4), event(True, (104, 1), size=2)]).conflicts
    assert check_races([event(True, (100, 0), size=4), event(True, (103, 1), size=1)]).conflicts


def test_the_order_matters_only_if_it_is_not_that_of_the_programs() -> None:
    assert not check_races([event(True, (8, 0)), event(False, (8, 1))]).misordered
    assert check_races([event(False, (8, 1)), event(True, (8, 0))]).misordered
    assert check_races([event(True, (8, 1)), event(True, (8, 0))]).misordered


def test_places_far_apart_take_no_table_of_all_memory_between() -> None:
    far = 1 << 40
    verdict = check_races([event(True, (8, 0), (far, 0)), event(True, (16, 1), (far, 2))])
    (conflict,) = verdict.conflicts
    assert (conflict.address, conflict.programs, conflict.places) == (far, (0, 2), 1)


def test_random_logs_are_judged_like_a_walk_through_all_pairs() -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        log = []
        for _ in range(int(random.integers(1, 5))):
            count = int(random.integers(1, 5))
            pairs = [(int(a) * 2, int(p)) for a, p in random.integers(0, 5, (count, 2))]
            size = int(random.choice([1, 2, 4]))
            log.append(event(bool(random.integers(2)), *pairs, size=size))
        touched = [
            (int(place) + byte, int(program), each.writes)
            for each in log
            for place, program in zip(each.addresses, each.programs, strict=True)
            for byte in range(each.size)
        ]
        meetings = [
            (one, two)
            for index, one in enumerate(touched)
            for two in touched[index + 1 :]
            if one[0] == two[0] and one[1] != two[1] and (one[2] or two[2])
        ]
        raced = {one[0] for one, _ in meetings}
        verdict = check_races(log)
        assert bool(verdict.conflicts) == bool(raced)
        if any(one[1] > two[1] for one, two in meetings):
            assert verdict.misordered, "an order that matters must not be missed"
