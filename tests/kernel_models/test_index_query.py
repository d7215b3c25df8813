"""Queries of DeepSeek V4's indexer: placed, quantised, their scale in the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.index_query import quantise_index_query


def call_of(**changed: Any) -> dict[str, Any]:
    torch.manual_seed(2)
    return {
        "q_input": torch.randn(3, 2, 128),
        "q_fp8": torch.empty(3, 2, 128, dtype=torch.float8_e4m3fn),
        "weight": torch.randn(3, 2),
        "weights_out": torch.zeros(3, 2, 1),
        "weight_scale": 0.5,
        "rope_cache": torch.randn(9, 64),
        "positions": torch.tensor([4, 0, 8]),
        "dtype": torch.float32,
        **changed,
    }


def test_a_query_is_placed_by_its_position_and_its_scale_goes_into_the_weight() -> None:
    given = call_of()
    quantise_index_query(**given)
    placed = given["q_input"].clone()
    placed[..., 64:] += given["rope_cache"][given["positions"]][:, None]
    scale = placed.abs().amax(-1) / 448
    want = given["weight"] * 0.5 * scale
    torch.testing.assert_close(given["weights_out"][..., 0], want)
    # e4m3 keeps 4 bits of a number
    got = given["q_fp8"].float() * scale[..., None]
    torch.testing.assert_close(got, placed, rtol=1 / 16, atol=1e-3)


def test_the_largest_number_of_a_query_is_kept() -> None:
    given = call_of()
    quantise_index_query(**given)
    assert given["q_fp8"].float().abs().amax(-1).tolist() == [[448.0] * 2] * 3


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"positions": torch.zeros(2).long()}, r"positions must be \[3\]"),
        ({"positions": torch.zeros(3)}, "positions must be int32 or int64"),
        ({"rope_cache": torch.zeros(9, 128)}, r"rope_cache must be \[any, 64\]"),
        ({"q_input": torch.zeros(3, 2, 64)}, r"q_input must be \[any, any, 128\]"),
        ({"dtype": torch.bfloat16}, "q_input must be bfloat16"),
    ],
)
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        quantise_index_query(**call_of(**changed))
