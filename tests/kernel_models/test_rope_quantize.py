"""Latent queries and keys: rotated by their positions, in FP8."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.rope_quantize import mla_rope_quantize_fp8

_FP8 = torch.float8_e4m3fn


def call_of(**changed: Any) -> dict[str, Any]:
    torch.manual_seed(3)
    angles = torch.randn(9, 2)
    merged = torch.zeros(3, 2, 10, dtype=_FP8)
    return {
        "q_rope": torch.randn(3, 2, 4).bfloat16(),
        "k_rope": torch.randn(3, 4).bfloat16(),
        "q_nope": torch.randn(3, 2, 6).bfloat16(),
        "k_nope": torch.randn(3, 6).bfloat16(),
        "cos_sin_cache": torch.cat((angles.cos(), angles.sin()), -1),
        "pos_ids": torch.tensor([4, 0, 8]),
        "is_neox": False,
        "q_rope_out": merged[..., 6:],
        "k_rope_out": torch.zeros(3, 4, dtype=_FP8),
        "q_nope_out": merged[..., :6],
        "k_nope_out": torch.zeros(3, 6, dtype=_FP8),
        **changed,
    }


def _turned(row: list[float], table: list[float], pairs: list[tuple[int, int]]) -> list[float]:
    found = list(row)
    for number, (one, other) in enumerate(pairs):
        angle = math.atan2(table[len(pairs) + number], table[number])
        turn = complex(row[one], row[other]) * complex(math.cos(angle), math.sin(angle))
        found[one], found[other] = turn.real, turn.imag
    return found


@pytest.mark.parametrize(
    ("is_neox", "pairs"), [(False, [(0, 1), (2, 3)]), (True, [(0, 2), (1, 3)])]
)
def test_rotary_parts_are_turned_by_the_angle_of_their_place(
    is_neox: bool, pairs: list[tuple[int, int]]
) -> None:
    given = call_of(is_neox=is_neox)
    mla_rope_quantize_fp8(**given)
    for token, place in enumerate(given["pos_ids"].tolist()):
        table = given["cos_sin_cache"][place].tolist()
        for name, part in (("k_rope", token), ("q_rope", (token, 1))):
            want = _turned(given[name][part].tolist(), table, pairs)
            got = given[f"{name}_out"][part].float()
            # e4m3 keeps 4 bits of a number
            torch.testing.assert_close(got, torch.tensor(want), rtol=1 / 16, atol=1 / 512)


def test_other_parts_are_converted_as_they_are() -> None:
    given = call_of()
    mla_rope_quantize_fp8(**given)
    for name in ("q_nope", "k_nope"):
        assert torch.equal(given[f"{name}_out"].float(), given[name].to(_FP8).float())


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"pos_ids": torch.zeros(2).long()}, r"pos_ids must be \[3\]"),
        ({"cos_sin_cache": torch.zeros(9, 4).double()}, "cos_sin_cache must be float32"),
        ({"k_rope": torch.zeros(3, 1, 4).bfloat16()}, "k_rope must be"),
        ({"q_nope": torch.zeros(3, 2, 6)}, "q_nope must be float16 or bfloat16"),
    ],
)
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        mla_rope_quantize_fp8(**call_of(**changed))


def test_a_scale_is_not_followed() -> None:
    with pytest.raises(KernelNotModelled, match=r"quant_scale_q=0\.5"):
        mla_rope_quantize_fp8(**call_of(quant_scale_q=0.5))
