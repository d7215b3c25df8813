"""Experts with LoRA adapters: the truth that engines are held against."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.adapted_layer import adapted_inputs, scale_of
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.experts.adapted import (
    ADAPTED_EXPERTS,
    PRODUCTS,
    adapted_expert_coarseness,
    adapted_expert_outputs,
    adapter_of_expert,
    base_expert,
    changes_expert,
    routes_of_tokens,
)
from fuzzgraph.experts.routing import chosen_experts, expert_weights
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.world import Batch

CONFIG = EngineConfig(max_loras=3, num_experts=8, experts_per_token=2)
SHARED = EngineConfig(
    max_loras=3, num_experts=8, experts_per_token=2, experts_shared_outer_loras=True
)
by_layout = pytest.mark.parametrize("config", [CONFIG, SHARED], ids=["per expert", "shared outer"])


def batch_of(config: EngineConfig, *adapters: int) -> Batch:
    rows = [BatchRow(request=name, seq_len=3, adapter=own) for name, own in enumerate(adapters)]
    steps = (ReplayStep(rows=tuple(rows)),)
    return plan(Case(schema_version=1, config=config, steps=steps))[0]


def _merged(adapter: int, expert: int, product: str, shared_outer: bool) -> torch.Tensor:
    """W + s B A, as if the adapter were merged into the expert's weights."""
    weight = base_expert(expert, product).double()
    if changes_expert(adapter, expert, shared_outer=shared_outer):
        a, b = adapter_of_expert(adapter, expert, product, shared_outer=shared_outer)
        weight = weight + scale_of(adapter) * b.double() @ a.double()
    return weight


@by_layout
def test_each_token_is_what_experts_with_merged_adapters_give(config: EngineConfig) -> None:
    batch = batch_of(config, 2, 0, 1)
    found = adapted_expert_outputs(batch, config, torch.float64)
    shared = config.experts_shared_outer_loras
    for row, adapter in enumerate((2, 0, 1)):
        token = int(batch.input_ids[row])
        wanted = torch.zeros(found.shape[1], dtype=torch.float64)
        for expert, weight in zip(
            chosen_experts(batch, config)[row].tolist(), expert_weights(token, config), strict=True
        ):
            w1, w3, w2 = (_merged(adapter, expert, product, shared) for product in PRODUCTS)
            x = adapted_inputs()[token].double()
            gate = w1 @ x
            wanted += weight * (w2 @ (gate * torch.sigmoid(gate) * (w3 @ x)))
        torch.testing.assert_close(found[row], wanted)


def test_experts_share_the_outer_sides_and_no_others() -> None:
    for product in PRODUCTS:
        first, second = (
            adapter_of_expert(1, expert, product, shared_outer=True) for expert in (0, 1)
        )
        same = [torch.equal(one, two) for one, two in zip(first, second, strict=True)]
        assert same == ([False, True] if product == "down_proj" else [True, False])


def test_weights_are_numbers_of_bfloat16() -> None:
    for product in PRODUCTS:
        weights = [base_expert(3, product)]
        for adapter in range(1, 6):
            a, b = adapter_of_expert(adapter, 3, product, shared_outer=False)
            weights += [a, b, scale_of(adapter) * b]
        for weight in weights:
            assert torch.equal(weight.bfloat16().float(), weight)


@by_layout
def test_another_adapter_or_expert_shows_beside_what_rounding_explains(
    config: EngineConfig,
) -> None:
    shared = config.experts_shared_outer_loras
    relative, absolute = adapted_expert_coarseness(torch.bfloat16)
    outputs = {
        adapter: adapted_expert_outputs(batch_of(config, adapter), config, torch.float64)[0]
        for adapter in (0, 1, 4, 5)
        if adapter < 4 or changes_expert(adapter, 0, shared_outer=shared)
    }
    for one, gave in outputs.items():
        for other, given in outputs.items():
            beyond = (gave - given).abs() > relative * given.abs() + absolute
            assert one == other or int(beyond.sum()) > 4


def test_routes_are_those_of_the_reference() -> None:
    experts, weights = routes_of_tokens(CONFIG)
    batch = batch_of(CONFIG, 0, 1)
    assert (experts[batch.input_ids] == chosen_experts(batch, CONFIG)).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))


def test_a_step_with_adapters_has_these_experts_and_no_others() -> None:
    outputs = expected(batch_of(CONFIG, 1), CONFIG).outputs
    assert ADAPTED_EXPERTS in outputs and "experts" not in outputs


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"experts_shared_outer_loras": True, "max_loras": 1}, "is that of experts"),
        ({"lora_use_virtual_experts": True, "max_loras": 1}, "is that of experts"),
        ({"lora_use_virtual_experts": True, "num_experts": 4}, "a pool of adapters"),
    ],
)
def test_options_of_adapted_experts_need_both(settings: dict[str, Any], said: str) -> None:
    steps = (ReplayStep(rows=(BatchRow(request=0, seq_len=1),)),)
    with pytest.raises(InvalidCase, match=said):
        validate(Case(schema_version=1, config=EngineConfig(**settings), steps=steps))
