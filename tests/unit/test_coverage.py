"""Coverage of dimension values and pairs: counted, joined, kept small."""

from __future__ import annotations

from fuzzgraph.run.coverage import Coverage, CoverageMap, pairs_of


def test_a_case_covers_its_names_and_every_pair_of_them() -> None:
    covered = CoverageMap()
    assert covered.add(["a", "b", "c"]) == 3
    assert covered.add(["a", "b"]) == 0
    assert covered.add(["c", "d"]) == 1
    record = covered.record()
    assert record.cases == {"a": 2, "b": 2, "c": 2, "d": 1}
    assert record.pairs == covered.pairs == 4
    assert record.met()["d"] == {"c"}


def test_what_two_runs_covered_adds_up_whatever_the_order_of_their_names() -> None:
    one, other = CoverageMap(), CoverageMap()
    one.add(["a", "b"])
    other.add(["b", "c"])
    other.add(["a", "b"])
    one.absorb(other.record())
    assert one.record().cases == {"a": 2, "b": 3, "c": 1}
    assert one.record().met()["b"] == {"a", "c"}


def test_a_damaged_record_covers_less_and_breaks_nothing() -> None:
    record = Coverage(cases={"a": 1, "b": 1}, together=("not hex", "f01"))
    assert record.met() == {"a": frozenset(), "b": {"a"}}
    covered = CoverageMap()
    covered.absorb(record)
    assert covered.dimensions == 2


def test_pairs_of_a_case_are_named_once() -> None:
    assert list(pairs_of(["c", "a", "b"])) == [("a", "b"), ("a", "c"), ("b", "c")]
