"""Which attributes of records are read, by whom they are, however they are read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from fuzzgraph.relays import is_relay
from fuzzgraph.targets.offline.reads import ReadWatch


@dataclass
class Draft:
    topk: int = 1
    tokens: int = 4


@dataclass
class Batch:
    ids: int = 0
    lens: int = 1
    draft: Draft = field(default_factory=Draft)


PATHS = ("batch.ids", "batch.lens", "batch.draft.topk")


def unread(read: Callable[[Any], object], batch: object = None) -> set[str]:
    watch, batch = ReadWatch(), batch or Batch()
    watch.add("prepare.batch", batch)
    with watch:
        read(batch)
    return set(watch.unread("prepare", PATHS))


def test_what_nobody_reads_is_unread() -> None:
    assert unread(lambda _: None) == set(PATHS)


def test_what_is_read_of_a_record_in_a_record_is_read() -> None:
    assert unread(lambda batch: batch.draft.topk) == {"batch.ids", "batch.lens"}


def test_who_copies_a_record_may_read_all_of_it() -> None:
    for copied in (copy.copy, replace, vars):
        assert unread(copied) <= {"batch.draft.topk"}  # of a record that was not copied


def test_a_record_of_another_path_is_another_record() -> None:
    other = Batch()
    assert unread(lambda _: other.ids) == set(PATHS)


def test_a_record_handed_over_under_two_names_is_read_under_both() -> None:
    watch, batch = ReadWatch(), Batch()
    watch.add("prepare.batch", batch)
    watch.add("prepare.draft", batch.draft)
    with watch:
        assert batch.draft.topk
    assert watch.unread("prepare", ("batch.draft.topk", "draft.topk")) == set()


def test_reads_outside_of_a_call_do_not_count() -> None:
    watch, batch = ReadWatch(), Batch()
    watch.add("prepare.batch", batch)
    with watch:
        pass
    assert batch.ids == 0
    assert watch.unread("prepare", PATHS) == set(PATHS)


def test_a_record_whose_class_cannot_be_asked_counts_as_read() -> None:
    assert unread(lambda _: None, SimpleNamespace(ids=1, lens=2)) == set()


def test_what_is_no_attribute_of_a_record_is_not_unread() -> None:
    watch = ReadWatch()
    with watch:
        pass
    assert watch.unread("prepare", ("rows",)) == set()


@pytest.mark.parametrize("own", [False, True])
def test_a_class_is_afterwards_what_it_was(own: bool) -> None:
    @dataclass
    class Record:
        ids: int = 3

    def plain(self: object, name: str) -> Any:
        return object.__getattribute__(self, name)

    if own:
        Record.__getattribute__ = plain  # type: ignore[method-assign]
    before = vars(Record).get("__getattribute__")
    record = Record()
    watch = ReadWatch()
    watch.add("prepare.batch", record)
    with pytest.raises(ZeroDivisionError), watch:
        assert record.ids / 0
    assert vars(Record).get("__getattribute__") is before


def test_an_attribute_that_is_missing_is_the_error_of_who_asks() -> None:
    batch, watch = Batch(), ReadWatch()
    watch.add("prepare.batch", batch)
    with watch:
        assert is_relay(Batch.__getattribute__.__code__)  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match="'Batch' object has no attribute 'mask'"):
            _ = batch.mask  # type: ignore[attr-defined]
