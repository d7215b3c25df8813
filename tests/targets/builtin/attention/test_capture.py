"""Both kernels can be captured: nothing read back, no shape that depends on values."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.targets.builtin.attention import AttentionBatch, kernel
from tests.targets.builtin.attention.launches import Launch, Shape, draw, expected

SHAPES = {
    "decode": Shape(kv_lens=(5, 2, 9)),
    "pages and window": Shape(page_map="page_table", page_size=4, window=3),
    "fp8": Shape(fp8=True),
    "mask": Shape(q_lens=(2, 0, 3), kv_lens=(4, 1, 7), masked=True, spare_tokens=1),
    "split": Shape(q_lens=(2, 1, 3), kv_lens=(4, 1, 7), chunk=2),
}


def _guarded(value: Any) -> Any:
    """The same record with its tensors allocated anew."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if hasattr(value, "__dataclass_fields__"):
        return replace(value, **{f.name: _guarded(getattr(value, f.name)) for f in fields(value)})
    return value


def captured(launch: Launch, name: Any) -> tuple[GuardedMemory, Any, AttentionBatch]:
    memory = GuardedMemory()
    run = kernel(name)
    with memory.intercept("engine"):
        q, k, out = (part.clone() for part in (launch.q, launch.k, launch.out))
        v = launch.v.clone()
        batch = _guarded(launch.batch)
    run(q, k, v, out, batch)

    def forward() -> torch.Tensor:
        run(q, k, v, out, batch)
        return out

    graph = Recorder(memory).capture(forward, key=name)
    out.fill_(77.0)
    return memory, graph, batch


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_replay_computes_what_attention_defines(name: str, shape: str) -> None:
    if name == "triton" and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    launch = draw(SHAPES[shape], seed=6)
    memory, graph, _ = captured(launch, name)

    graph.replay()

    assert float((graph.outputs.double() - expected(launch)).abs().max()) < 2e-5
    assert memory.zones_intact()


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_a_replay_follows_new_lengths_in_the_captured_buffers(name: str) -> None:
    if name == "triton" and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    launch = draw(SHAPES["decode"], seed=7)
    _, graph, batch = captured(launch, name)
    shape = replace(launch.shape, kv_lens=(3, 2, 0))
    shorter = replace(launch, shape=shape)
    batch.kv_lens.copy_(torch.tensor(shape.kv_lens))

    graph.replay()

    assert float((graph.outputs.double() - expected(shorter)).abs().max()) < 2e-5
