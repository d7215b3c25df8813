"""Kernels around experts, against loops over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.launch import ModelKernel, routed, run_kernel
from fuzzgraph.kernel_models.memory import KernelMemory, Stray
from fuzzgraph.kernel_models.routing import (
    activation,
    activation_filtered,
    mask_topk_ids,
    moe_align_block_size,
    moe_sum_reduce,
    silu_and_mul,
    topk_softmax,
)


class _Strays:
    """What launches do outside of their memory."""

    def __init__(self) -> None:
        self.found: list[Stray] = []

    def stray(self, found: Stray) -> None:
        self.found.append(found)

    def misuse(self, argument: str, rule: str, got: str) -> None:
        raise AssertionError(f"{rule}; got {got}")

    def run(self, kernel: ModelKernel, **arguments: Any) -> None:
        run_kernel(KernelMemory(self), kernel, **arguments)


def chosen(
    numbers: torch.Tensor, each: int, renormalize: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.empty(len(numbers), each)
    ids = torch.empty(len(numbers), each, dtype=torch.int32)
    topk_softmax(weights, ids, numbers, renormalize)
    return weights, ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("renormalize", [False, True])
def test_the_largest_experts_come_first_with_their_parts(
    dtype: torch.dtype, renormalize: bool
) -> None:
    numbers = torch.randn(7, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    weights, ids = chosen(numbers, 3, renormalize=renormalize)
    parts = numbers.double().softmax(1)
    for row in range(7):
        order = parts[row].argsort(descending=True)[:3]
        assert ids[row].tolist() == order.tolist()
        wanted = parts[row][order]
        wanted = wanted / wanted.sum() if renormalize else wanted
        torch.testing.assert_close(weights[row].double(), wanted, atol=1e-6, rtol=1e-6)


def test_of_equal_experts_the_first_is_chosen() -> None:
    assert chosen(torch.zeros(1, 4), 2)[1].tolist() == [[0, 1]]


def test_a_row_that_nobody_wrote_gets_experts_that_exist() -> None:
    _, ids = chosen(torch.full((1, 4), torch.nan), 2)
    assert len({*ids[0].tolist()}) == 2 and (ids >= 0).all() and (ids < 4).all()


def test_numbers_of_tokens_must_agree() -> None:
    with pytest.raises(KernelRefused, match=r"topk_ids must be \[2, 2\]"):
        topk_softmax(torch.empty(2, 2), torch.empty(3, 2, dtype=torch.int32), torch.zeros(2, 4))


@pytest.mark.parametrize("live", [0, 2, 3, 5])
def test_tokens_from_the_count_on_have_no_expert(live: int) -> None:
    ids = torch.arange(6, dtype=torch.int32).view(3, 2)
    mask_topk_ids(ids, torch.tensor([live], dtype=torch.int32))
    assert ids.tolist() == [[2 * row, 2 * row + 1] if row < live else [-1, -1] for row in range(3)]


def test_a_count_of_64_bits_is_refused() -> None:
    with pytest.raises(KernelRefused, match="num_token_non_padded must be int32"):
        mask_topk_ids(torch.zeros(1, 1, dtype=torch.int32), torch.tensor([1]))


def aligned(
    ids: list[list[int]],
    experts: int,
    block: int,
    room: int | None = None,
    *,
    ignore: bool = False,
) -> tuple[list[int], list[int], int]:
    """(places, expert of each block, places in use) of a call as the engine makes it."""
    given = torch.tensor(ids, dtype=torch.int32)
    most = given.numel() + (experts + 1) * (block - 1) if room is None else room
    places = torch.full((most,), -7, dtype=torch.int32)
    of_blocks = torch.full((-(-most // block),), -7, dtype=torch.int32)
    used = torch.zeros(1, dtype=torch.int32)
    sums = torch.zeros(experts + 2, dtype=torch.int32)
    moe_align_block_size(given, experts + 1, block, places, of_blocks, used, sums, True, ignore)
    return places.tolist(), of_blocks.tolist(), int(used)


def test_each_place_lies_in_a_block_of_its_expert_once() -> None:
    ids = [[2, 0], [1, 2], [0, -1], [-1, -1]]
    places, of_blocks, used = aligned(ids, 3, 2)
    flat = [expert for row in ids for expert in row]
    for block in range(used // 2):
        for place in places[2 * block : 2 * block + 2]:
            assert place == len(flat) or flat[place] == of_blocks[block]
    assert sorted(place for place in places[:used] if place < len(flat)) == [*range(len(flat))]
    assert set(places[used:]) <= {len(flat)}
    assert of_blocks[: used // 2] == sorted(of_blocks[: used // 2])


def test_places_without_an_expert_are_left_out_if_asked() -> None:
    places, of_blocks, used = aligned([[2, -1], [-1, 0], [2, 2]], 3, 2, ignore=True)
    assert places[:used] == [3, 6, 0, 4, 5, 6]
    assert of_blocks[: used // 2] == [0, 2, 2]


def test_places_that_have_no_room_are_strays() -> None:
    seen = _Strays()
    with routed(seen.run):
        aligned([[0], [1], [2]], 3, 4, room=4)
    assert {stray.argument for stray in seen.found} == {"sorted_token_ids", "experts_ids"}


def test_rows_of_no_expert_stay_as_they_were() -> None:
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(2))
    out = torch.full((4, 16), 9.0)
    activation_filtered(rows, out, torch.tensor([0, -1, 3, -1], dtype=torch.int32), 1, "silu")
    gate, up = rows.double().chunk(2, 1)
    wanted = gate * gate.sigmoid() * up
    torch.testing.assert_close(out[[0, 2]].double(), wanted[[0, 2]], atol=1e-6, rtol=1e-6)
    assert (out[[1, 3]] == 9.0).all()


@pytest.mark.parametrize("call", [silu_and_mul, lambda a, b: activation(a, b, "silu")])
def test_without_experts_every_row_is_computed(call: object) -> None:
    rows = torch.randn(3, 16, generator=torch.Generator().manual_seed(3)).half()
    out = torch.empty(3, 8, dtype=torch.float16)
    call(rows, out)  # type: ignore[operator]
    gate, up = rows.double().chunk(2, 1)
    torch.testing.assert_close(out.double(), gate * gate.sigmoid() * up, atol=2e-3, rtol=2e-3)


def test_other_activations_are_not_followed() -> None:
    with pytest.raises(KernelNotModelled, match="type='gelu'"):
        activation(torch.zeros(1, 8), torch.zeros(1, 4), "gelu")


def test_ids_of_blocks_are_32_bits_wide() -> None:
    with pytest.raises(KernelRefused, match="expert_ids must be int32"):
        activation_filtered(torch.zeros(1, 8), torch.zeros(1, 4), torch.zeros(1).long(), 1, "silu")


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_what_experts_gave_is_added_and_scaled(factor: float) -> None:
    given = torch.randn(40, 3, 16, generator=torch.Generator().manual_seed(4)).half()
    out = torch.empty(40, 16, dtype=torch.float16)
    moe_sum_reduce(given, out, factor)
    wanted = torch.stack([given[:, each].double() for each in range(3)]).sum(0) * factor
    torch.testing.assert_close(out.double(), wanted, atol=2e-3, rtol=2e-3)


def test_sums_of_columns_apart_are_refused() -> None:
    given = torch.zeros(2, 3, 16)
    with pytest.raises(KernelRefused, match="expect output to be contiguous"):
        moe_sum_reduce(given, torch.zeros(16, 2).T, 1.0)
