"""FlashAttention 3 over FP8: its weights are rounded too, and outputs are held to that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.oracles.reference import off_truth
from fuzzgraph.ports import weights_in_fp8
from fuzzgraph.reference import rounding_of
from fuzzgraph.world import Batch

_FP8 = torch.float8_e4m3fn
_BLOCK = 128
"""Keys between two looks at the largest logit, as tiles of wide heads have them."""
_HEADS, _COLUMNS = 4, 64


def _config(keys: int) -> EngineConfig:
    return EngineConfig(
        dtype="bfloat16", kv_dtype="float8_e4m3fn", head_dim=_COLUMNS, max_context_len=keys
    )


@dataclass
class Inputs:
    """Of one row, in float32 and exact in FP8."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def _inputs(keys: int, seed: int, spread: float) -> Inputs:
    made = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(shape, generator=made) for shape in (
        (_HEADS, _COLUMNS), (keys, _HEADS, _COLUMNS), (keys, _HEADS, _COLUMNS),
    ))  # fmt: skip
    q, k, v = (each.to(_FP8).float() for each in drawn)
    return Inputs((spread * q).to(_FP8).float(), k, v.clamp(-4, 4))


def _logits(given: Inputs) -> torch.Tensor:
    products = torch.einsum("hd,khd->hk", given.q, given.k)
    return products / math.sqrt(_COLUMNS)


def _truth(given: Inputs) -> torch.Tensor:
    weights = torch.softmax(_logits(given).double(), -1)
    return torch.einsum("hk,khd->hd", weights, given.v.double())[None]


def _kernel(given: Inputs) -> torch.Tensor:
    """Tile by tile with the largest logit so far at 2**8, weights in FP8, their sum before that,
    and 13 bits of a sum of 32 products (flash-attention 3.0.0b, hopper/softmax.h)."""
    best = torch.full((_HEADS,), -math.inf)
    total, result = torch.zeros(_HEADS), torch.zeros(_HEADS, _COLUMNS)
    logits = _logits(given)
    for start in range(0, len(given.k), _BLOCK):
        tile = logits[:, start : start + _BLOCK]
        higher = torch.maximum(best, tile.amax(-1))
        scale = torch.exp(best - higher)
        best, total, result = higher, total * scale, result * scale[:, None]
        weights = torch.exp(tile - best[:, None]) * 2**8
        total = total + weights.sum(-1)
        rounded = weights.to(_FP8).float()
        for at in range(0, tile.shape[1], 32):
            values = given.v[start + at : start + at + 32]
            products = rounded[:, at : at + 32, None] * values[: len(rounded[0]) - at].transpose(
                0, 1
            )
            addends = torch.cat((result[:, None], products[:, : len(values)]), 1)
            step = torch.exp2(torch.frexp(addends.abs().amax(1, keepdim=True)).exponent - 14.0)
            result = (torch.trunc(addends / step) * step).sum(1)
    return (result / total[:, None]).bfloat16()[None]


def _step(given: Inputs, *, told: bool = True) -> StepRecord:
    config = _config(len(given.k))
    batch = Batch.__new__(Batch)
    step = StepRecord(0, "", config, batch, ())
    step.expected = {"attention": _truth(given)}
    step.value_bound, step.weights_in_fp8 = float(given.v.abs().max()), told
    return step


@pytest.mark.parametrize("keys", [1, 2, 33, 128, 129, 700, 4096])
@pytest.mark.parametrize("spread", [0.25, 1.0, 4.0])
def test_the_kernels_rounding_is_within_what_is_allowed(keys: int, spread: float) -> None:
    for seed in range(20):
        given = _inputs(keys, seed, spread)
        assert off_truth(_step(given), "attention", _kernel(given)) is None


def test_without_it_the_kernels_rounding_would_be_a_finding() -> None:
    found = [
        off_truth(_step(given, told=False), "attention", _kernel(given))
        for given in (_inputs(3, seed, 1.0) for seed in range(20))
    ]
    assert sum(worst is not None for worst in found) > 5


@pytest.mark.parametrize("keys", [33, 700])
def test_a_key_of_another_row_is_still_found(keys: int) -> None:
    """The one that a query weighs most; what others weigh is told by bits from an eager run."""
    for seed in range(20):
        given = _inputs(keys, seed, 4.0)
        stray = Inputs(given.q, given.k, given.v.clone())
        heaviest = _logits(given)[0].argmax()
        stray.v[heaviest] = -given.v[heaviest]
        assert off_truth(_step(given), "attention", _kernel(stray)) is not None


def test_what_is_allowed_grows_with_keys_and_stays_far_below_a_value() -> None:
    few, many = (
        rounding_of("attention", _config(keys), fp8_values=1.0).absolute for keys in (32, 4096)
    )
    assert 2**-4 < few < many < 0.1


def test_a_layer_behind_attention_rounds_what_is_off_already() -> None:
    behind = EngineConfig(row_mixing="fp8_scale", max_context_len=32)
    before, after = (
        rounding_of("mixed", behind, fp8_values=given).absolute for given in (0.0, 1.0)
    )
    assert after - before > rounding_of("attention", behind, fp8_values=1.0).absolute


def test_outputs_without_attention_are_allowed_no_more() -> None:
    config = _config(32)
    assert rounding_of("experts", config, 4.0) == rounding_of("experts", config)


class _Kernels:
    name = "kernels"
    weights_in_fp8 = True


def test_models_of_kernels_round_no_weights_and_keep_what_they_are_held_to() -> None:
    asked = [
        weights_in_fp8(target, config, torch.device(device))  # type: ignore[arg-type]
        for target in (_Kernels(), Observation)
        for config in (_config(32), EngineConfig())
        for device in ("cuda", "cpu")
    ]
    assert asked == [True, *[False] * 7]
