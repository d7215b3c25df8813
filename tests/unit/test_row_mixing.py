"""The layer behind attention: finite rows stay what they are, NaN and infinity reach all rows."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.execution.pool_memory import kv_signature
from fuzzgraph.reference.shard import _dropped
from fuzzgraph.row_mixing import (
    LARGEST_VALUE,
    coarseness,
    mix_rows,
    mixed_outputs,
    served,
    split_mixed,
    with_mixed,
)

FP8 = EngineConfig(row_mixing="fp8_scale")
NAN = EngineConfig(row_mixing="nan")
both = pytest.mark.parametrize("config", [FP8, NAN], ids=["fp8_scale", "nan"])


def rows(count: int, *, largest: float = 4.0, seed: int = 0) -> torch.Tensor:
    """[count, 2, 4] of values up to `largest`, small ones among them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(count, 2, 4, generator=generator) * 2 - 1
    return values**5 * largest


def test_without_a_layer_attention_is_handed_on() -> None:
    attended = rows(2)
    assert mix_rows(attended, EngineConfig()) is attended
    assert with_mixed(attended, EngineConfig()) is attended
    assert mixed_outputs(EngineConfig()) == ()


def test_rows_added_with_a_factor_of_zero_leave_the_others_as_they_are() -> None:
    attended = rows(3)
    attended[0, 0, 0], attended[2, 0, 0] = -0.0, -4.0
    mixed = mix_rows(attended, NAN)
    assert torch.equal(mixed, attended)
    # The sign of a zero must not follow the other rows: results are compared bit for bit.
    other = attended.clone()
    other[2] = -other[2]
    assert torch.equal(mixed[0].view(torch.int32), mix_rows(other, NAN)[0].view(torch.int32))


@both
@pytest.mark.parametrize("undefined", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_reaches_every_row(config: EngineConfig, undefined: float) -> None:
    attended = rows(3)
    attended[2] = undefined
    assert mix_rows(attended, config)[:2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("largest", [4.0, LARGEST_VALUE])
def test_a_healthy_padded_row_coarsens_live_rows_by_no_more_than_is_allowed(
    dtype: torch.dtype, largest: float
) -> None:
    relative, absolute = coarseness("mixed", FP8)
    for seed in range(50):
        attended = rows(4, seed=seed).to(dtype)
        attended[3] = rows(1, largest=largest, seed=1000 + seed)[0].to(dtype)
        attended[3, 0, 0] = largest
        off = (mix_rows(attended, FP8).double() - attended.double()).abs()
        rounding = torch.finfo(dtype).eps * attended.double().abs()
        assert (off <= relative * attended.double().abs() + absolute + rounding).all()


def test_what_is_far_from_all_that_attention_computes_costs_live_rows_more() -> None:
    relative, absolute = coarseness("mixed", FP8)
    attended = rows(2)
    attended[1] = 1.0e9
    off = (mix_rows(attended, FP8)[0] - attended[0]).abs()
    assert (off > relative * attended[0].abs() + absolute).any()


def test_another_padded_row_changes_the_bits_of_live_rows() -> None:
    first, second = rows(2), rows(2)
    first[1], second[1] = 1008.0, -624.0
    assert not torch.equal(mix_rows(first, FP8)[0], mix_rows(second, FP8)[0])


def test_the_largest_value_is_more_than_any_that_may_enter() -> None:
    config = EngineConfig(num_q_heads=2, num_kv_heads=2, max_encoder_len=8)
    content = content_for(config)
    values = content.plane_table[1].abs().max() + content.encoder_table[1].abs().max()
    assert values <= LARGEST_VALUE
    assert max(map(abs, kv_signature(1, 2)[:2])) <= LARGEST_VALUE


@both
def test_an_empty_batch_has_nothing_to_mix(config: EngineConfig) -> None:
    assert mix_rows(rows(0), config).shape == (0, 2, 4)


@both
def test_one_tensor_carries_both_outputs(config: EngineConfig) -> None:
    attended = rows(3, seed=4)[:, :1].flatten(1)
    outputs = split_mixed(with_mixed(attended, config), config)
    assert list(outputs) == ["attention", "mixed"]
    assert torch.equal(outputs["attention"].flatten(1), attended)
    assert torch.equal(outputs["mixed"].flatten(1), mix_rows(attended, config))


@pytest.mark.parametrize("counted", range(7))
def test_the_router_drops_what_the_reference_drops(counted: int) -> None:
    ids = torch.tensor([4, 2, 7, 8, 1, 6])
    live = min(counted, len(ids))
    taken = served(ids, torch.tensor([counted]))
    dropped = set(range(live)) - set(_dropped(ids[:live].tolist()))
    assert taken.nonzero().flatten().tolist() == sorted(dropped)


def test_a_token_too_many_makes_room_for_a_live_one() -> None:
    ids = torch.tensor([2, 4, 6, 8])
    right, wrong = served(ids, 3), served(ids, 4)
    assert right.tolist() == [True, False, False, False]
    assert wrong.tolist() == [True, True, False, False]
