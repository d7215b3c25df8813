"""The model of the gated delta rule over prompts, against the recurrence written apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.gated_delta import chunk_gated_delta_rule

KEYS, COLUMNS = 6, 3


def arguments(lengths: tuple[int, ...], key_heads: int = 2, heads: int = 4) -> dict[str, Any]:
    torch.manual_seed(5)
    tokens = sum(lengths)
    return {
        "q": torch.randn(1, tokens, key_heads, KEYS),
        "k": torch.randn(1, tokens, key_heads, KEYS),
        "v": torch.randn(1, tokens, heads, COLUMNS),
        "g": -torch.rand(1, tokens, heads),
        "beta": torch.rand(1, tokens, heads),
        "initial_state": torch.randn(len(lengths), heads, COLUMNS, KEYS),
        "output_final_state": True,
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "use_qk_l2norm_in_kernel": True,
    }


def by_definition(given: dict[str, Any], scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """float64, one head of one token after the other: S <- exp(g) S (I - beta k k^T) + beta v k^T
    (Yang, Kautz and Hatamizadeh 2024, equation 10), y = S q."""
    q, k, v, g, beta = (given[name][0].double() for name in ("q", "k", "v", "g", "beta"))
    if given["use_qk_l2norm_in_kernel"]:
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    states, out = given["initial_state"].double().clone(), torch.zeros_like(v)
    each, ends = v.shape[1] // k.shape[1], given["cu_seqlens"].tolist()
    for request in range(len(states)):
        for token in range(ends[request], ends[request + 1]):
            for head in range(v.shape[1]):
                key, step = k[token, head // each], beta[token, head]
                forget = torch.eye(KEYS).double() - step * torch.outer(key, key)
                state = g[token, head].exp() * states[request, head] @ forget
                states[request, head] = state + step * torch.outer(v[token, head], key)
                out[token, head] = states[request, head] @ (scale * q[token, head // each])
    return out, states


@pytest.mark.parametrize("lengths", [(1,), (5,), (3, 1, 4), (2, 0, 3)])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_outputs_and_states_are_those_of_the_definition(
    lengths: tuple[int, ...], key_heads: int
) -> None:
    given = arguments(lengths, key_heads)
    want_out, want_states = by_definition(given, KEYS**-0.5)
    out, states = chunk_gated_delta_rule(**given)
    torch.testing.assert_close(out[0].double(), want_out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states.double(), want_states, rtol=1e-4, atol=1e-5)


def test_keys_may_come_with_their_length_and_a_scale_may_be_given() -> None:
    given = arguments((4, 2)) | {"use_qk_l2norm_in_kernel": False}
    given["k"] = given["k"] / 4
    want_out, want_states = by_definition(given, 0.25)
    out, states = chunk_gated_delta_rule(**given, scale=0.25)
    torch.testing.assert_close(out[0].double(), want_out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states.double(), want_states, rtol=1e-4, atol=1e-5)


def test_a_prompt_in_two_parts_ends_where_it_ends_in_one() -> None:
    whole = arguments((6,))
    _, want = chunk_gated_delta_rule(**whole)
    state = whole["initial_state"]
    for part in (slice(0, 2), slice(2, 6)):
        cut = {name: whole[name][:, part] for name in ("q", "k", "v", "g", "beta")}
        offsets = torch.tensor([0, part.stop - part.start])
        given = whole | cut | {"initial_state": state, "cu_seqlens": offsets}
        _, state = chunk_gated_delta_rule(**given)
    torch.testing.assert_close(state, want)


def test_states_that_it_was_given_stay_as_they_were() -> None:
    given = arguments((3,))
    before = given["initial_state"].clone()
    chunk_gated_delta_rule(**given)
    assert torch.equal(given["initial_state"], before)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"initial_state": None}, "only packed requests with states are modelled"),
        ({"cu_seqlens": None}, "only packed requests with states are modelled"),
        ({"output_final_state": False}, "only packed requests with states are modelled"),
        ({"cu_seqlens": torch.tensor([0, 5])}, "2 states, 1 requests, 1 batches"),
    ],
)
def test_calls_that_are_not_modelled_are_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelRefused, match=said):
        chunk_gated_delta_rule(**(arguments((3, 2)) | other))


def chunks_of(lengths: tuple[int, ...]) -> tuple[list[list[int]], list[int]]:
    counts = [-(-length // 64) for length in lengths]
    indices = [[request, chunk] for request, each in enumerate(counts) for chunk in range(each)]
    return indices, torch.tensor([0, *counts]).cumsum(0).tolist()


def test_chunks_may_be_given_as_they_would_be_worked_out() -> None:
    given = arguments((3, 65, 2))
    indices, offsets = chunks_of((3, 65, 2))
    assert indices == [[0, 0], [1, 0], [1, 1], [2, 0]] and offsets == [0, 1, 3, 4]
    told: dict[str, Any] = {
        "chunk_indices": torch.tensor(indices),
        "chunk_offsets": torch.tensor(offsets),
    }
    for one, other in zip(
        chunk_gated_delta_rule(**given), chunk_gated_delta_rule(**given, **told), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (
            "chunk_offsets",
            [0, 0, 1, 3],
            r"chunk_offsets \[0, 0, 1, 3\], chunks begin at \[0, 1, 3\]",
        ),
        ("chunk_indices", [[0, 0], [1, 0], [2, 0]], "chunk_indices .*, chunks are"),
    ],
)
def test_other_chunks_than_there_are_are_refused(name: str, values: list[Any], said: str) -> None:
    given = arguments((3, 65, 2)) | {name: torch.tensor(values)}
    with pytest.raises(KernelRefused, match=said):
        chunk_gated_delta_rule(**given)
