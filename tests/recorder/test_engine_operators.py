"""Operators that an engine registers for functions of Python: a graph holds what they launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory

Register = Callable[[torch.library.Library, str, Callable[..., Any]], None]


def by_library(key: str) -> Register:
    """As vLLM's `direct_register_custom_op` and sglang's do it."""

    def register(library: torch.library.Library, name: str, function: Callable[..., Any]) -> None:
        library.define(f"{name}(Tensor x, Tensor(a!) out) -> ()")
        library.impl(name, function, key)

    return register


def by_custom_op(library: torch.library.Library, name: str, function: Callable[..., Any]) -> None:
    schema = "(Tensor x, Tensor(a!) out) -> ()"
    qualified = f"{library.ns}::{name}"
    torch.library.custom_op(qualified, function, mutates_args=("out",), schema=schema)


WAYS = {
    "CPU": by_library("CPU"),
    "CompositeExplicitAutograd": by_library("CompositeExplicitAutograd"),
    "custom_op": by_custom_op,
}


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("fuzzgraph_tests", "FRAGMENT")
    yield made
    made._destroy()


class Layer:
    """An engine's layer behind an operator; it looks up what to do in Python, as a layer looks its
    metadata up in the context of the current forward."""

    def __init__(self) -> None:
        self.factor = 2.0
        self.calls = 0

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self.calls += 1
        out.copy_(x * self.factor)


def captured(operator: Callable[..., Any], recorder: Recorder, buffers: list[torch.Tensor]) -> Any:
    return recorder.capture(lambda: operator(*buffers), key="k")


def opened() -> tuple[Recorder, list[torch.Tensor]]:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        buffers = [torch.ones(2), torch.zeros(2)]
    return Recorder(memory), buffers


@pytest.mark.parametrize("way", WAYS)
def test_a_replay_keeps_what_an_operator_looked_up_when_it_was_captured(
    library: torch.library.Library, way: str
) -> None:
    layer, (recorder, buffers) = Layer(), opened()
    name = f"looks_up_{way}{torch.is_inference_mode_enabled():d}"
    WAYS[way](library, name, layer.forward)
    graph = captured(getattr(torch.ops.fuzzgraph_tests, name), recorder, buffers)
    layer.factor, layer.calls = 3.0, 0
    buffers[0].fill_(5)
    graph.replay()
    assert buffers[1].tolist() == [10.0, 10.0]
    assert layer.calls == 0


def test_what_an_operator_launches_is_in_the_trace_and_not_the_operator(
    library: torch.library.Library,
) -> None:
    layer, (recorder, buffers) = Layer(), opened()
    name = f"traced{torch.is_inference_mode_enabled():d}"
    by_library("CPU")(library, name, layer.forward)
    graph = captured(getattr(torch.ops.fuzzgraph_tests, name), recorder, buffers)
    names = [op.name for op in graph.trace if op.replayed]
    assert names == ["aten.mul.Tensor", "aten.copy_.default"]


def test_an_operator_may_not_do_what_a_capture_forbids(library: torch.library.Library) -> None:
    def reads_back(x: torch.Tensor, out: torch.Tensor) -> None:
        out.fill_(x[0].item())

    recorder, buffers = opened()
    name = f"reads_back{torch.is_inference_mode_enabled():d}"
    by_library("CPU")(library, name, reads_back)
    with pytest.raises(CaptureError, match="a device graph forbids it|device graph"):
        captured(getattr(torch.ops.fuzzgraph_tests, name), recorder, buffers)


def test_an_operator_of_torch_itself_is_one_operation() -> None:
    recorder, (x, out) = opened()
    graph = recorder.capture(lambda: torch.add(x, 1, out=out), key="k")
    assert [op.name for op in graph.trace] == ["aten.add.out"]
