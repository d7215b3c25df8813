"""Models with several layers of a kind: which there are, what each holds, how often they come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import (
    BatchRow,
    Case,
    EngineConfig,
    ReplayStep,
    attention_layers,
    attention_outputs,
    group_configs,
    recurrent_layers,
    validate,
)
from fuzzgraph.case.config_rules import validate_config
from fuzzgraph.content import attention_contents, content_for
from fuzzgraph.errors import InvalidCase, TargetFailed
from fuzzgraph.execution.pools import require_pools
from fuzzgraph.layout import plan
from fuzzgraph.ports import GroupPools, Pools
from fuzzgraph.recurrent_layers.decayed_attention import linear_slopes
from fuzzgraph.reference import expected
from fuzzgraph.reference.attention import attention, model_for
from fuzzgraph.strategies import DEFAULT
from fuzzgraph.strategies.configs import swarm_config

FULL, WINDOW, RECURRENT = "full_attention", "sliding_attention", "linear_attention"
WINDOWED: dict[str, Any] = {"swa_window": 2, "layer_types": (WINDOW, FULL, FULL, WINDOW)}
STATES: dict[str, Any] = {
    "recurrent_state": True,
    "layer_types": (RECURRENT, FULL, RECURRENT, FULL),
}


def test_the_first_layers_of_groups_come_first_and_then_the_models_order() -> None:
    layers = attention_layers(EngineConfig(**WINDOWED))
    assert [layer.output for layer in layers] == [
        "attention",
        "swa_attention",
        "attention_2",
        "swa_attention_2",
    ]
    assert [layer.place for layer in layers] == [1, 0, 2, 3]
    assert [layer.group for layer in layers] == [0, 1, 0, 1]


def test_recurrent_layers_do_not_attend() -> None:
    config = EngineConfig(**STATES)
    assert attention_outputs(config) == ("attention", "attention_2")
    assert recurrent_layers(config) == 2
    assert recurrent_layers(EngineConfig(recurrent_state=True)) == 1
    assert recurrent_layers(EngineConfig()) == 0


def test_layers_of_a_group_see_no_others() -> None:
    assert group_configs(EngineConfig(**WINDOWED))[1].layer_types == ()


def test_no_two_layers_have_the_same_keys() -> None:
    tokens = torch.arange(4)
    keys = [each.kv_planes(tokens, tokens)[0] for each in attention_contents(config_of(WINDOWED))]
    pairs = [(one, two) for one in range(4) for two in range(one)]
    assert not any(torch.equal(keys[one], keys[two]) for one, two in pairs)


def test_no_two_recurrent_layers_add_the_same_to_a_state() -> None:
    first, second = (content_for(config_of(STATES), number) for number in range(2))
    assert not torch.equal(first.weights["state_in"], second.weights["state_in"])


def test_slopes_of_lightning_attention_fall_with_the_place() -> None:
    config = config_of(STATES)
    first, second = (linear_slopes(content_for(config, number)) for number in range(2))
    torch.testing.assert_close(second / first, torch.full_like(first, 1 / 3), rtol=1e-4, atol=0)


def config_of(settings: dict[str, Any]) -> EngineConfig:
    config = EngineConfig(**settings)
    validate_config(config)
    return config


def test_the_reference_attends_in_each_layer_by_its_own_content() -> None:
    config = config_of(WINDOWED)
    step = ReplayStep(rows=(BatchRow(request=0, seq_len=7),))
    (batch,) = plan(validate(Case(schema_version=1, config=config, steps=(step,))))
    found = expected(batch, config).outputs
    shape = group_configs(config)[1]
    alone, _ = attention(batch.groups[1], shape, model_for(shape, torch.float64, 3))
    torch.testing.assert_close(found["swa_attention_2"], alone, rtol=0, atol=0)
    outputs = [found[name] for name in attention_outputs(config)]
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"swa_window": 0},
        {"layer_types": (WINDOW, WINDOW)},
        {"layer_types": (FULL, FULL)},
        {"layer_types": (FULL, WINDOW, RECURRENT)},
        {"layer_types": (FULL, *[WINDOW] * 8)},
        {"recurrent_state": True},
    ],
)
def test_layers_are_of_the_two_kinds_that_the_config_has(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidCase, match="layer_types"):
        validate_config(EngineConfig(**{**WINDOWED, **change}))


@pytest.mark.parametrize("beside", [{"modes": ("draft_extend",)}, {"modes": ("draft",)}])
def test_draft_models_name_no_layers(beside: dict[str, Any]) -> None:
    with pytest.raises(InvalidCase, match="layer_types"):
        validate_config(EngineConfig(**WINDOWED, **beside))


@pytest.mark.parametrize(
    ("settings", "pools", "said"),
    [
        (WINDOWED, {"more_groups": (GroupPools(),)}, "0 more_layers, and the config has 2 layers"),
        (STATES, {"more_layers": ((),)}, "0 more_states, and the config has 1 recurrent layers"),
    ],
)
def test_pools_of_fewer_layers_are_refused(
    settings: dict[str, Any], pools: dict[str, Any], said: str
) -> None:
    session: Any = SimpleNamespace(pools=Pools(delta_state=torch.zeros(16, 4), **pools))
    with pytest.raises(TargetFailed, match=said):
        require_pools(session, config_of(settings))


def drawn(**more: Any) -> list[EngineConfig]:
    can = Capabilities(layer_types=True, **more)
    return [swarm_config(can, DEFAULT, number) for number in range(400)]


def test_a_fifth_of_the_models_with_windows_name_their_layers() -> None:
    windowed = [each for each in drawn(swa_window=True, swa_only=True) if each.swa_window]
    named = [each for each in windowed if each.layer_types]
    assert len(windowed) / 8 < len(named) < len(windowed) / 2
    assert {each.layer_types for each in named} == {(WINDOW, FULL, FULL), (WINDOW, FULL, WINDOW)}


def test_layers_in_one_memory_are_as_many_of_each_kind() -> None:
    found = drawn(swa_window=True, swa_only=True, virtual_pages=True)
    named = [each.layer_types for each in found if each.virtual_pages and each.layer_types]
    assert set(named) == {(WINDOW, FULL, FULL, WINDOW)}


def test_recurrent_layers_and_others_take_turns() -> None:
    found = drawn(recurrent_state=True, recurrent_only=True)
    named = [each.layer_types for each in found if each.layer_types]
    assert len(found) / 8 < len(named) < len(found) / 2
    assert set(named) == {(RECURRENT, FULL, RECURRENT, FULL)}


def test_a_target_that_does_not_say_so_has_one_layer_of_each_kind() -> None:
    can = Capabilities(swa_window=True, swa_only=True)
    assert not any(swarm_config(can, DEFAULT, number).layer_types for number in range(100))


def test_rare_heads_are_rare() -> None:
    can = Capabilities(max_head_dim=16, rare_head_dims=((192, 128),))
    found = [swarm_config(can, DEFAULT, number).head_dim for number in range(400)]
    assert 2 < found.count(192) < 40
    assert all(head <= 16 or head == 192 for head in found)
