"""Layers with LoRA adapters: the truth that engines are held against."""

from __future__ import annotations

import torch

from fuzzgraph.adapted_layer import (
    LAYERS,
    adapted_columns,
    adapted_inputs,
    adapted_outputs,
    adapter_weights,
    base_weight,
    rank_of,
    scale_of,
)
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected, yardstick
from fuzzgraph.world import Batch

CONFIG = EngineConfig(max_loras=3)
PARTS = [part for layer in LAYERS for part in layer.parts]


def batch_of(*adapters: int) -> Batch:
    rows = [BatchRow(request=name, seq_len=3, adapter=own) for name, own in enumerate(adapters)]
    steps = (ReplayStep(rows=tuple(rows)),)
    return plan(Case(schema_version=1, config=CONFIG, steps=steps))[0]


def test_each_row_is_its_token_under_its_own_adapter() -> None:
    batch = batch_of(2, 0, 1)
    found = adapted_outputs(batch, CONFIG, torch.float64)
    for row, adapter in enumerate((2, 0, 1)):
        x, start = adapted_inputs()[batch.input_ids[row]].double(), 0
        for part in PARTS:
            weight = base_weight(part).double()
            if adapter:
                a, b = adapter_weights(adapter, part)
                weight = weight + scale_of(adapter) * b.double() @ a.double()
            stop = start + part.columns
            torch.testing.assert_close(found[row, start:stop], weight @ x, rtol=0, atol=0)
            start = stop
        assert start == adapted_columns(CONFIG)


def test_adapters_have_ranks_and_scales_of_their_own() -> None:
    assert len({rank_of(adapter) for adapter in range(5)}) == 5
    assert len({(rank_of(adapter), scale_of(adapter)) for adapter in range(1, 13)}) == 12


def test_every_adapter_shows_in_every_layer_at_every_token() -> None:
    for part in PARTS:
        for adapter in range(1, 6):
            a, b = (weight.double() for weight in adapter_weights(adapter, part))
            assert (adapted_inputs().double() @ a.T @ b.T).abs().sum(1).gt(0).float().mean() > 0.9


def test_sums_are_exact_in_float32() -> None:
    batch = batch_of(1, 2, 3)
    exact, single = (
        adapted_outputs(batch, CONFIG, torch.float64),
        adapted_outputs(batch, CONFIG, torch.float32),
    )
    assert torch.equal(exact, single.double())


def test_the_reference_has_it_where_there_are_adapters() -> None:
    batch = batch_of(1)
    assert "lora" in expected(batch, CONFIG).outputs
    assert "lora" in yardstick(batch, CONFIG)
    assert "lora" not in expected(batch, EngineConfig()).outputs
