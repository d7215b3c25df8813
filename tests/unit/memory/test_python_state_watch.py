"""Moments of an engine's Python side: taken often, restored exactly."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fuzzgraph.memory import PythonStateWatch


class Metadata:
    def __init__(self, length: int) -> None:
        self.length = length


@dataclass(slots=True)
class Slotted:
    left: int
    right: object


class Engine:
    def __init__(self) -> None:
        self.count = 0
        self.metadata = Metadata(1)
        self.sizes = {1: "one", 2: "two"}
        self.log: list[int] = []
        self.slotted = Slotted(1, Metadata(5))


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_a_rebound_attribute_comes_back(engine: Engine) -> None:
    watch = PythonStateWatch({"engine": engine})
    first = engine.metadata
    engine.metadata, engine.count = Metadata(7), 3
    watch.restore(watch.first)
    assert engine.metadata is first
    assert engine.count == 0


def test_an_object_made_between_two_moments_is_remembered(engine: Engine) -> None:
    watch = PythonStateWatch({"engine": engine})
    engine.metadata = Metadata(7)
    between = watch.snapshot()
    engine.metadata.length = 9
    watch.restore(between)
    assert engine.metadata.length == 7


def test_an_object_that_was_there_first_is_rolled_back_inside(engine: Engine) -> None:
    watch = PythonStateWatch({"engine": engine})
    engine.metadata.length = 9
    watch.restore(watch.first)
    assert engine.metadata.length == 1


def test_keys_that_came_are_gone_and_keys_that_went_are_back(engine: Engine) -> None:
    watch = PythonStateWatch({"engine": engine})
    engine.sizes[3] = engine.sizes.pop(1)
    watch.restore(watch.first)
    assert engine.sizes == {1: "one", 2: "two"}


def test_a_moment_with_other_keys_is_restored_as_it_was(engine: Engine) -> None:
    watch = PythonStateWatch({"engine": engine})
    engine.sizes[3], engine.count = "three", 5
    between = watch.snapshot()
    watch.restore(watch.first)
    assert (engine.sizes, engine.count) == ({1: "one", 2: "two"}, 0)
    watch.restore(between)
    assert (engine.sizes, engine.count) == ({1: "one", 2: "two", 3: "three"}, 5)


def test_lists_are_restored_in_place(engine: Engine) -> None:
    watch = PythonStateWatch({"engine": engine})
    log = engine.log
    engine.log.append(4)
    watch.restore(watch.first)
    assert engine.log is log
    assert log == []


def test_slots_are_restored_and_followed(engine: Engine) -> None:
    watch = PythonStateWatch({"engine": engine})
    right = engine.slotted.right
    engine.slotted.left, engine.slotted.right = 2, Metadata(6)
    between = watch.snapshot()
    engine.slotted.right.length = 8
    watch.restore(between)
    assert engine.slotted.right.length == 6
    watch.restore(watch.first)
    assert engine.slotted == Slotted(1, right)


def test_a_proxy_of_a_tensor_binds_none(engine: Any) -> None:
    engine.lens = torch.zeros(2)
    engine.seen = weakref.proxy(engine.lens)
    watch = PythonStateWatch({"engine": engine})
    assert [name for _, name, _ in watch.bound_tensors()] == ["lens"]
