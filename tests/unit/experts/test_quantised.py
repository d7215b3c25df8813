"""Weights of experts in FP8 and INT8: nothing of what engines quantise rounds."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.experts import quantised
from fuzzgraph.experts.columns import ATTENDED, EXPERT_WIDTH
from fuzzgraph.experts.quantised import GROUP, INNER, Quantised
from fuzzgraph.world import VOCAB

KINDS = ("fp8_blocks", "fp8_channels", "fp8_tensors", "fp8_dynamic", "int8_channels")
EXPERTS = range(8)
by_kind = pytest.mark.parametrize("kind", KINDS)
LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


def rows(kind: str, attention: float = 2.0) -> torch.Tensor:
    """float64 [VOCAB, EXPERT_WIDTH] of all tokens behind attention that gives one number."""
    own = quantised.quantised_rows(kind)
    return torch.cat((own, torch.full((VOCAB, ATTENDED), attention)), dim=1).double()


def inner(kind: str, expert: int) -> torch.Tensor:
    """float64 [VOCAB, INNER] what comes between the products."""
    gate, up = (each.whole() @ rows(kind).T for each in quantised.gates_and_ups(kind, expert))
    return (gate * gate.sigmoid() * up).T


def requantised(numbers: torch.Tensor, kind: str, product: str) -> torch.Tensor:
    """The same numbers as an engine quantises them, and back."""
    dtype = quantised.dtype_of(kind)
    if kind == "fp8_tensors":
        scale = torch.tensor(quantised.input_scale(product, 0))
    else:
        width = GROUP if kind == "fp8_blocks" else numbers.shape[1]
        groups = (
            numbers.reshape(1, 1, -1)
            if kind == "fp8_dynamic"
            else numbers.unflatten(1, (-1, width))
        )
        scale = groups.abs().amax(-1, keepdim=True) / LARGEST[dtype]
        scale = scale.expand(groups.shape).reshape(numbers.shape)
    whole = (numbers / scale).clamp(-LARGEST[dtype], LARGEST[dtype])
    kept = whole.round() if dtype == torch.int8 else whole.float()
    return kept.to(dtype).double() * scale


@by_kind
def test_what_experts_read_of_a_token_is_quantised_without_a_loss(kind: str) -> None:
    x = rows(kind)
    read = slice(0, EXPERT_WIDTH - ATTENDED)
    assert torch.equal(requantised(x, kind, "gate")[:, read], x[:, read])


@by_kind
@pytest.mark.parametrize("expert", EXPERTS)
def test_what_comes_between_the_products_is_quantised_without_a_loss(
    kind: str, expert: int
) -> None:
    h = inner(kind, expert).half().double()
    assert (requantised(h, kind, "down") - h).abs().max() < 1e-5
    assert (inner(kind, expert) - h).abs().max() < 1e-5


@by_kind
@pytest.mark.parametrize("expert", EXPERTS)
def test_scaled_weights_give_gates_that_a_step_can_tell(kind: str, expert: int) -> None:
    gate, _ = quantised.gates_and_ups(kind, expert)
    assert set((gate.whole() @ rows(kind).T).unique().tolist()) == {-16.0, 0.0, 16.0}


@by_kind
def test_no_token_has_the_same_numbers_for_two_experts(kind: str) -> None:
    given = torch.stack([inner(kind, expert) for expert in EXPERTS])
    apart = (given[:, None] - given[None, :]).abs().sum(-1) > 1.0
    assert (apart.sum(-1) == VOCAB).sum() == len(EXPERTS) * (len(EXPERTS) - 1)


def parts(kind: str, expert: int) -> dict[str, Quantised]:
    gate, up = quantised.gates_and_ups(kind, expert)
    return {"gate": gate, "up": up, "down": quantised.down(kind, expert)}


@by_kind
@pytest.mark.parametrize("product", ["gate", "up", "down"])
def test_a_scale_tells_its_place(kind: str, product: str) -> None:
    scales = torch.stack([parts(kind, expert)[product].scale.flatten() for expert in EXPERTS])
    assert len(scales.unique()) == 3
    assert all(len(each.unique()) > 1 for each in scales.T)
    if scales.shape[1] > 1:
        assert any(len(each.unique()) > 1 for each in scales)


@by_kind
@pytest.mark.parametrize("product", ["gate", "up", "down"])
def test_weights_fit_into_their_dtype(kind: str, product: str) -> None:
    for expert in EXPERTS:
        found = parts(kind, expert)[product]
        largest = LARGEST[quantised.dtype_of(kind)]
        assert found.weight.dtype == quantised.dtype_of(kind)
        assert found.weight.float().abs().max() <= largest
        sixteenths = found.whole() * 16
        assert torch.equal(sixteenths, sixteenths.round())


def test_experts_are_the_same_whatever_holds_their_weights() -> None:
    down = [quantised.down(kind, 3).whole() for kind in KINDS]
    assert all(torch.equal(each, down[0]) for each in down)
    assert down[0].shape == (EXPERT_WIDTH, INNER)


@by_kind
def test_no_expert_gives_more_than_its_bound(kind: str) -> None:
    for expert in range(64):
        out = inner(kind, expert) @ quantised.down(kind, expert).whole().T
        assert out.abs().max() < quantised.largest_result()
