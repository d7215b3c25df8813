"""The exchange of tokens between ranks of experts, against loops over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.launch import ModelKernel, routed, run_kernel
from fuzzgraph.kernel_models.low_latency import Exchange, Handle, Packed
from fuzzgraph.kernel_models.memory import KernelMemory, Stray

RANKS, EXPERTS, MOST, COLUMNS, RANK = 3, 6, 4, 8, 1
MINE = range(2, 4)
"""The experts of the rank."""


class _Report:
    """What launches were told that breaks a rule."""

    def __init__(self) -> None:
        self.rules: list[tuple[str, str]] = []

    def stray(self, found: Stray) -> None:
        raise AssertionError(found)

    def misuse(self, argument: str, rule: str, got: str) -> None:
        self.rules.append((argument, got))

    def run(self, kernel: ModelKernel, **arguments: Any) -> None:
        run_kernel(KernelMemory(self), kernel, **arguments)


def exchange() -> Exchange:
    """Of a rank beside two others: rank 0 has two tokens, rank 2 has one."""
    found = Exchange(
        rank=RANK, ranks=RANKS, experts=EXPERTS, most=MOST, each=2, columns=COLUMNS,
        device=torch.device("cpu"),
    )  # fmt: skip
    for tensor in (found.sent, found.returned, found.others, found.given):
        tensor.fill_(torch.nan)
    found.others[0, :2], found.others[2, :1] = rows(10, 2), rows(20, 1)
    found.others_ids[0, :2] = torch.tensor([[3, 0], [2, 3]])
    found.others_ids[2, :1] = torch.tensor([[5, 2]])
    found.others_weights[0, :2] = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    found.others_weights[2, :1] = torch.tensor([[0.75, 0.25]])
    return found


def rows(first: int, count: int) -> torch.Tensor:
    """bfloat16 [count, COLUMNS] of one number each, from `first` on."""
    numbers = torch.arange(first, first + count).bfloat16()
    return numbers[:, None].repeat(1, COLUMNS)


def own() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, experts and weights of three tokens of the rank, the last of them padded."""
    ids = torch.tensor([[2, 4], [0, 3], [-1, -1]])
    return rows(1, 3), ids, torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])


def dispatched(of: Exchange) -> Packed:
    x, ids, _ = own()
    packed = of.send_tokens(x, ids)
    of.receive_tokens(packed)
    return packed


def test_each_expert_has_the_tokens_that_chose_it_and_behind_them_what_was_there() -> None:
    of = exchange()
    packed = dispatched(of)
    assert packed.rows.shape == (len(MINE), RANKS * MOST, COLUMNS)
    assert packed.counts.tolist() == [3, 3]
    arrived = [sorted(packed.rows[place, :3, 0].tolist()) for place in range(2)]
    assert arrived == [[1.0, 11.0, 20.0], [2.0, 10.0, 11.0]]


def test_nothing_has_arrived_before_it_is_received() -> None:
    of = exchange()
    x, ids, _ = own()
    assert of.send_tokens(x, ids).counts.tolist() == [0, 0]


def test_a_handle_says_which_token_of_which_rank_a_row_is() -> None:
    of = exchange()
    packed = dispatched(of)
    numbers = {0: (10, 11), RANK: (1, 2), 2: (20,)}
    for expert in range(len(MINE)):
        for rank, tokens in numbers.items():
            first, count = packed.handle.ranges[expert, rank].tolist()
            for place in range(first, first + count):
                token = int(packed.handle.source[expert, place])
                assert packed.rows[expert, place, 0] == tokens[token]


def test_results_come_back_to_their_tokens_and_are_summed_up_with_their_weights() -> None:
    of = exchange()
    packed = dispatched(of)
    _, ids, weights = own()
    results = packed.rows * torch.tensor([1.0, 10.0]).bfloat16()[:, None, None]
    half, combined = of.send_results(results, ids, weights, packed.handle)
    of.returned[half, 0, 1], of.returned[half, 4, 0] = 100.0, 40.0  # of experts elsewhere
    of.receive_results(combined, ids, weights, half)
    assert combined[:, 0].tolist() == [0.5 * 1 + 0.5 * 40, 0.25 * 100 + 0.75 * 20, 0.0]
    assert of.given[0, :2, 0].tolist() == [0.25 * 100, 0.5 * 11 + 0.5 * 110]
    assert of.given[RANK, :3, 0].tolist() == [0.5 * 1, 0.75 * 20, 0.0]
    assert of.given[2, 0, 0].item() == 0.25 * 20


def test_experts_elsewhere_compute_the_rows_that_they_were_sent() -> None:
    of = exchange()
    packed = dispatched(of)
    gates_and_ups, downs = torch.ones(EXPERTS, 4, COLUMNS), torch.ones(EXPERTS, COLUMNS, 2)
    gates_and_ups[4, :2], downs[0] = 0.5, 2.0
    of.compute_elsewhere(packed.handle, 1, gates_and_ups, downs)
    silu = torch.nn.functional.silu
    first, second = torch.tensor([8.0, 16.0]).double()  # sums over the rows of ones and of twos
    assert of.returned[1, 4, 0, 0] == (2 * silu(first / 2) * first).bfloat16()
    assert of.returned[1, 0, 1, 0] == (2 * 2 * silu(second) * second).bfloat16()
    assert of.returned[1, 2:4].isnan().all()


def test_kernels_that_follow_each_other_find_their_buffer_clean() -> None:
    report, of = _Report(), exchange()
    _, ids, weights = own()
    with routed(report.run):
        for _ in range(2):
            packed = dispatched(of)
            half, combined = of.send_results(packed.rows, ids, weights, packed.handle)
            of.receive_results(combined, ids, weights, half)
    assert report.rules == []


def test_a_buffer_that_nobody_has_cleaned_is_a_misuse() -> None:
    report, of = _Report(), exchange()
    of.used.fill_(1)
    with routed(report.run):
        dispatched(of)
    assert report.rules == [("used", "buffer 0, which a kernel has used")]
    of.clean()
    assert not of.used.any()


def test_an_expert_that_does_not_exist_is_a_misuse() -> None:
    report, of = _Report(), exchange()
    x, ids, _ = own()
    ids[1, 0] = EXPERTS
    with routed(report.run):
        of.send_tokens(x, ids)
    assert report.rules == [("topk_idx", "6 of token 1")]


def test_a_handle_of_memory_that_was_used_again_is_a_misuse() -> None:
    report, of = _Report(), exchange()
    packed = dispatched(of)
    _, ids, weights = own()
    packed.handle.ranges[0, 0] = torch.tensor([RANKS * MOST, 1])
    with routed(report.run):
        of.send_results(packed.rows, ids, weights, packed.handle)
    assert report.rules == [("handle", "1 rows from 12 on")]


def test_more_tokens_than_there_is_room_for_are_refused() -> None:
    of = exchange()
    with pytest.raises(KernelRefused, match="at most 4 rows; got 5"):
        of.send_tokens(rows(0, 5), torch.zeros(5, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("x", "ids", "rule"),
    [
        (rows(0, 1).half(), torch.zeros(1, 2, dtype=torch.int64), "x must be bfloat16"),
        (rows(0, 1), torch.zeros(1, 2, dtype=torch.int32), "topk_idx must be int64"),
        (rows(0, 1), torch.zeros(2, 2, dtype=torch.int64), r"topk_idx must be \[1, 2\]"),
    ],
)
def test_a_dispatch_of_other_tensors_is_refused(
    x: torch.Tensor, ids: torch.Tensor, rule: str
) -> None:
    with pytest.raises(KernelRefused, match=rule):
        exchange().send_tokens(x, ids)


def test_a_combine_of_rows_that_are_not_packed_is_refused() -> None:
    of = exchange()
    handle: Handle = dispatched(of).handle
    _, ids, weights = own()
    with pytest.raises(KernelRefused, match=r"x must be \[2, 12, 8\]"):
        of.send_results(torch.zeros(2, 3, COLUMNS).bfloat16(), ids, weights, handle)
