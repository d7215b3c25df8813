"""Kernels over FP8 that round weights as well: outputs are held to what that can come to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from msgspec.structs import replace

from fuzzgraph.case import EngineConfig
from fuzzgraph.fp8_weights import FLASH_ATTENTION_3, TRITON, TRITON_DECODES, Fp8Weights
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.oracles.reference import off_truth, too_far_apart
from fuzzgraph.ports import fp8_weights_of
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


def _kernel(given: Inputs, largest: float = 2.0**8, sums: bool = True) -> torch.Tensor:
    """Tile by tile with the largest logit so far at `largest`, weights in FP8, their sum before
    that, and with `sums` 13 bits of a sum of 32 products."""
    best = torch.full((_HEADS,), -math.inf)
    total, result = torch.zeros(_HEADS), torch.zeros(_HEADS, _COLUMNS)
    logits = _logits(given)
    for start in range(0, len(given.k), _BLOCK):
        tile = logits[:, start : start + _BLOCK]
        higher = torch.maximum(best, tile.amax(-1))
        scale = torch.exp(best - higher)
        best, total, result = higher, total * scale, result * scale[:, None]
        weights = torch.exp(tile - best[:, None]) * largest
        total = total + weights.sum(-1)
        rounded = weights.to(_FP8).float()
        for at in range(0, tile.shape[1], 32):
            values = given.v[start + at : start + min(at + 32, tile.shape[1])]
            products = rounded[:, at : at + 32, None] * values.transpose(0, 1)
            result = _added(torch.cat((result[:, None], products), 1), sums)
    return (result / total[:, None]).bfloat16()[None]


def _added(addends: torch.Tensor, cut_off: bool) -> torch.Tensor:
    """[heads, columns] of [heads, addends, columns]."""
    if cut_off:
        step = torch.exp2(torch.frexp(addends.abs().amax(1, keepdim=True)).exponent - 14.0)
        addends = torch.trunc(addends / step) * step
    return addends.sum(1)


KERNELS = [
    pytest.param(FLASH_ATTENTION_3, "cuda", 2.0**8, id="FlashAttention 3"),
    pytest.param(TRITON, "cuda", 1.0, id="Triton on a device"),
    pytest.param(TRITON, "cpu", 1.0, id="Triton over lanes"),
]
each_kernel = pytest.mark.parametrize(("rounding", "device", "largest"), KERNELS)


def _step(given: Inputs, rounding: Fp8Weights | None) -> StepRecord:
    step = StepRecord(0, "", _config(len(given.k)), Batch.__new__(Batch), ())
    step.expected = {"attention": _truth(given)}
    step.value_bound = float(given.v.abs().max())
    if rounding is not None:
        weights = torch.softmax(_logits(given).double(), -1)
        errors = rounding.errors(weights[:, None], given.v.double().transpose(0, 1))
        step.weight_errors = lambda: {"attention": errors.transpose(0, 1)}
    return step


@each_kernel
@pytest.mark.parametrize("keys", [1, 2, 33, 128, 129, 700, 4096])
@pytest.mark.parametrize("spread", [0.25, 1.0, 4.0])
def test_the_kernels_rounding_is_within_what_is_allowed(
    rounding: Fp8Weights, device: str, largest: float, keys: int, spread: float
) -> None:
    there = rounding.on(torch.device(device))
    for seed in range(8):
        given = _inputs(keys, seed, spread)
        got = _kernel(given, largest, sums=device == "cuda")
        assert off_truth(_step(given, there), "attention", got) is None


def test_without_it_the_kernels_rounding_would_be_a_finding() -> None:
    found = [
        off_truth(_step(given, None), "attention", _kernel(given))
        for given in (_inputs(3, seed, 1.0) for seed in range(20))
    ]
    assert sum(worst is not None for worst in found) > 5


@each_kernel
@pytest.mark.parametrize("keys", [3, 33, 700])
def test_a_value_of_another_row_is_still_found(
    rounding: Fp8Weights, device: str, largest: float, keys: int
) -> None:
    """The one that a query weighs most; others are told by bits from an eager run."""
    there = rounding.on(torch.device(device))
    for seed in range(20):
        given = _inputs(keys, seed, 4.0)
        stray = Inputs(given.q, given.k, given.v.clone())
        heaviest = _logits(given)[0].argmax()
        stray.v[heaviest] = -given.v[heaviest]
        got = _kernel(stray, largest, sums=device == "cuda")
        assert off_truth(_step(given, there), "attention", got) is not None


def test_two_results_of_the_engine_may_both_be_off() -> None:
    """Of these tiles one begins where the other does not, so that weights round otherwise."""
    given = _inputs(700, 1, 4.0)
    turned = Inputs(given.q, given.k.flip(0), given.v.flip(0))
    got, want = _kernel(given), _kernel(turned)
    step = _step(given, FLASH_ATTENTION_3.on(torch.device("cuda")))
    assert not torch.equal(got, want)
    assert too_far_apart(step, "attention", got, want) is None
    assert too_far_apart(step, "attention", got, want + 1) is not None


class _Kernels:
    name = "kernels"
    fp8_weights = FLASH_ATTENTION_3


class _OwnKernels(_Kernels):
    fp8_weights = TRITON


class _Decodes(_Kernels):
    fp8_weights = TRITON_DECODES


def test_decodes_of_one_query_head_for_each_of_keys_round_no_weights() -> None:
    told = [
        fp8_weights_of(_Decodes(), config, torch.device("cpu"))  # type: ignore[arg-type]
        for config in (
            _config(32),
            replace(_config(32), num_q_heads=4, num_kv_heads=2),
            replace(_config(32), platform="rocm"),
        )
    ]
    assert told == [None, TRITON_DECODES, TRITON_DECODES]


def test_keys_that_a_row_does_not_see_add_nothing_to_what_it_is_allowed() -> None:
    """Their places are those of a longer row, and what lies there may be of any size."""
    there = FLASH_ATTENTION_3.on(torch.device("cuda"))
    assert there is not None
    weights, values = torch.tensor([[0.75, 0.25]]).double(), torch.tensor([[1.0], [-2.0]]).double()
    alone = there.errors(weights, values)
    beside = there.errors(
        torch.cat((weights, torch.zeros(1, 4000)), -1),
        torch.cat((values, torch.full((4000, 1), 9.0))),
    )
    assert torch.equal(alone, beside)


def test_models_of_kernels_round_no_weights_and_kernels_do_wherever_they_run() -> None:
    asked = [
        fp8_weights_of(target, config, torch.device(device)) is not None  # type: ignore[arg-type]
        for target in (_Kernels(), _OwnKernels(), Observation)
        for config in (_config(32), EngineConfig())
        for device in ("cuda", "cpu")
    ]
    assert asked == [*(True, False, False, False), *(True, True, False, False), *[False] * 4]
