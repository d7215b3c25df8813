"""The model of the selective scan over prompts, against the recurrence written apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.selective_scan import selective_scan_fwd

COLUMNS, NUMBERS, SLOTS, SKIPPED = 4, 3, 6, 0


def arguments(lengths: tuple[int, ...], groups: int = 1) -> dict[str, Any]:
    torch.manual_seed(5)
    tokens = sum(lengths)
    return {
        "u": torch.randn(COLUMNS, tokens),
        "delta": torch.randn(COLUMNS, tokens),
        "A": -torch.rand(COLUMNS, NUMBERS),
        "B": torch.randn(groups, NUMBERS, tokens),
        "C": torch.randn(groups, NUMBERS, tokens),
        "D": torch.randn(COLUMNS),
        "z": torch.randn(COLUMNS, tokens),
        "delta_bias": torch.randn(COLUMNS),
        "delta_softplus": True,
        "query_start_loc": torch.tensor([0, *lengths]).cumsum(0).int(),
        "cache_indices": torch.tensor([4, 2, 5][: len(lengths)], dtype=torch.int32),
        "has_initial_state": torch.tensor([True, False, True][: len(lengths)]),
        "ssm_states": torch.randn(SLOTS, COLUMNS, NUMBERS),
        "skipped": SKIPPED,
    }


def by_definition(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """One number of one column after the other: h <- exp(step A) h + step B u, y = C h + D u (Gu
    and Dao 2023, algorithm 2), gated by z sigmoid(z)."""
    states, out = given["ssm_states"].double().clone(), given["z"].double().clone()
    ends, group = given["query_start_loc"].tolist(), COLUMNS // len(given["B"])
    for row, slot in enumerate(given["cache_indices"].tolist()):
        if slot == SKIPPED:
            continue
        for column in range(COLUMNS):
            held = states[slot, column].tolist()
            held = held if given["has_initial_state"][row] else [0.0] * NUMBERS
            for token in range(ends[row], ends[row + 1]):
                raw = float(given["delta"][column, token] + given["delta_bias"][column])
                step = math.log1p(math.exp(raw))
                taken = float(given["u"][column, token])
                found = float(given["D"][column]) * taken
                for number in range(NUMBERS):
                    decay = math.exp(step * float(given["A"][column, number]))
                    more = step * float(given["B"][column // group, number, token]) * taken
                    held[number] = decay * held[number] + more
                    found += float(given["C"][column // group, number, token]) * held[number]
                gate = float(given["z"][column, token])
                out[column, token] = found * gate / (1 + math.exp(-gate))
            states[slot, column] = torch.tensor(held, dtype=torch.float64)
    return out, states


@pytest.mark.parametrize("lengths", [(1,), (5,), (3, 1, 4), (2, 0, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_outputs_and_states_are_those_of_the_definition(
    lengths: tuple[int, ...], groups: int
) -> None:
    given = arguments(lengths, groups)
    out, states = by_definition(given)
    selective_scan_fwd(**given)
    torch.testing.assert_close(given["z"].double(), out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given["ssm_states"].double(), states, rtol=1e-4, atol=1e-5)


def test_without_a_gate_outputs_take_the_place_of_the_steps() -> None:
    given, gated = arguments((3, 2)), arguments((3, 2))
    gated["z"] = torch.full((COLUMNS, 5), 30.0)
    selective_scan_fwd(**{**given, "z": None})
    selective_scan_fwd(**gated)
    torch.testing.assert_close(given["delta"], gated["z"] / 30)


def test_a_request_without_a_slot_is_not_computed() -> None:
    given = arguments((3, 2))
    given["cache_indices"][1] = SKIPPED
    out, states = by_definition(given)
    selective_scan_fwd(**given)
    torch.testing.assert_close(given["z"].double(), out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given["ssm_states"].double(), states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"has_initial_state": torch.tensor([True])}, "2 slots, 1 flags for 2 requests"),
        ({"cache_indices": torch.tensor([1, 2])}, "cache_indices must be int32"),
        ({"delta": torch.zeros(COLUMNS, 4)}, "sizes do not fit"),
    ],
)
def test_calls_that_the_host_code_refuses_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelRefused, match=said):
        selective_scan_fwd(**{**arguments((3, 2)), **change})


@pytest.mark.parametrize(
    "change", [{"query_start_loc": None}, {"cu_chunk_seqlen": torch.zeros(3, dtype=torch.int32)}]
)
def test_what_the_model_does_not_follow_is_no_finding(change: dict[str, Any]) -> None:
    with pytest.raises(KernelNotModelled):
        selective_scan_fwd(**{**arguments((3, 2)), **change})
