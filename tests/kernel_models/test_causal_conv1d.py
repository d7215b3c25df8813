"""The model of the convolution of a decode, against sums written apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.causal_conv1d import causal_conv1d_update

ROWS, COLUMNS, SLOTS, PADDING = 3, 5, 7, -1


def arguments(taps: int = 3, kept: int = 2, tokens: int = 1) -> dict[str, Any]:
    torch.manual_seed(3)
    return {
        "x": torch.randn(ROWS, COLUMNS, tokens),
        "conv_state": torch.randn(SLOTS, COLUMNS, kept),
        "weight": torch.randn(COLUMNS, taps),
        "bias_": torch.randn(COLUMNS),
        "silu_activation": False,
        "cache_seqlens": None,
        "conv_state_indices": torch.tensor([4, 2, 5], dtype=torch.int32),
        "pad_slot_id": PADDING,
    }


def by_definition(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(outputs, states): each number by its own sum over the last tokens of its column."""
    out, states = given["x"].clone(), given["conv_state"].clone()
    indices = given["conv_state_indices"]
    slots = list(range(ROWS)) if indices is None else indices.tolist()
    for row, slot in enumerate(slots):
        if slot == PADDING:
            continue
        for column in range(COLUMNS):
            weights = given["weight"][column].tolist()
            seen = given["conv_state"][slot, column].tolist()
            for token, new in enumerate(given["x"][row, column].tolist()):
                seen = [*seen, new]
                bias = 0.0 if given["bias_"] is None else float(given["bias_"][column])
                last = seen[-len(weights) :]
                total = bias + sum(w * s for w, s in zip(weights, last, strict=True))
                if given["silu_activation"]:
                    total = total / (1 + math.exp(-total))
                out[row, column, token] = total
            states[slot, column] = torch.tensor(seen[-given["conv_state"].shape[2] :])
    return out, states


@pytest.mark.parametrize(("taps", "kept"), [(2, 1), (3, 2), (4, 3), (3, 5)])
@pytest.mark.parametrize("tokens", [1, 3, 6])
@pytest.mark.parametrize("change", [{}, {"bias_": None}, {"silu_activation": True}])
def test_outputs_and_states_are_those_of_the_definition(
    taps: int, kept: int, tokens: int, change: dict[str, Any]
) -> None:
    given = {**arguments(taps, kept, tokens), **change}
    out, states = by_definition(given)
    causal_conv1d_update(**given)
    torch.testing.assert_close(given["x"], out)
    torch.testing.assert_close(given["conv_state"], states)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    given = arguments()
    for name in ("x", "conv_state", "weight", "bias_"):
        given[name] = given[name].to(dtype)
    out, _ = by_definition({**given, "x": given["x"].double()})
    causal_conv1d_update(**given)
    assert torch.equal(given["x"], out.to(dtype))


def test_a_row_whose_slot_is_the_padding_one_stays_as_it_is() -> None:
    given = arguments()
    given["conv_state_indices"][1] = PADDING
    out, states = by_definition(given)
    before = given["x"][1].clone()
    causal_conv1d_update(**given)
    assert torch.equal(given["x"][1], before)
    torch.testing.assert_close(given["x"], out)
    torch.testing.assert_close(given["conv_state"], states)


def test_without_slots_each_row_has_its_own() -> None:
    given = {**arguments(), "conv_state_indices": None}
    given["conv_state"] = given["conv_state"][:ROWS].clone()
    out, states = by_definition(given)
    causal_conv1d_update(**given)
    torch.testing.assert_close(given["x"], out)
    torch.testing.assert_close(given["conv_state"], states)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"conv_state_indices": torch.tensor([4, 2, 5])}, "conv_state_indices must be int32"),
        ({"conv_state_indices": torch.zeros(2, dtype=torch.int32)}, "must be \\[3\\]"),
        ({"conv_state": torch.zeros(SLOTS, COLUMNS, 1)}, "2 inputs must be kept; got 1"),
        ({"conv_state": torch.zeros(SLOTS, COLUMNS, 2).half()}, "conv_state must be float32"),
        ({"weight": torch.zeros(COLUMNS, 5)}, "weights must be of 2 to 4 tokens; got 5"),
        ({"x": torch.zeros(ROWS, COLUMNS)}, "x must be \\[any, any, any\\]"),
    ],
)
def test_calls_that_the_host_code_refuses_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelRefused, match=said):
        causal_conv1d_update(**{**arguments(), **change})


def test_a_buffer_that_goes_round_is_not_followed() -> None:
    with pytest.raises(KernelNotModelled):
        causal_conv1d_update(**{**arguments(), "cache_seqlens": torch.zeros(ROWS).int()})
