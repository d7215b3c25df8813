"""The models of DeepSeek V4's compressor over several tokens of a row, against plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.kv_compressor import compress_decode, plan_compress_decode
from fuzzgraph.kernel_models.kv_compressor_extend import compress_extend, plan_compress_extend
from fuzzgraph.kernel_models.page_store import store_compressed

WIDTH = 3
NOTHING_C, NOTHING_W = [-1, 0, -1, -1], [-1, -1]


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def page_map() -> torch.Tensor:
    table = torch.zeros(3, 300, dtype=torch.int32)
    table[1], table[2] = torch.arange(300) + 512, torch.arange(300) + 1024
    return table


def planned(ratio: int, lens: tuple[int, ...], new: int, **changed: Any) -> Any:
    """Both plans of rows of the requests 1 and 2, whose slots start at 512 and 1024."""
    given: dict[str, Any] = {
        "req_pool_indices": longs(1, 2)[: len(lens)],
        "req_to_token": page_map(),
        "full_to_state": torch.arange(2048) + 256,
        "seq_lens": longs(*lens),
        "extend_lens": longs(*([new] * len(lens))),
        "pin_buffer": torch.empty(0, dtype=torch.uint8),
        "num_q_tokens": new * len(lens),
        "compress_ratio": ratio,
        "swa_page_size": 256,
        "ring_size": 16 if ratio == 4 else 256,
        "use_req_ring": False,
        "use_cuda_graph": True,
        **changed,
    }
    plan_c, plan_w = plan_compress_extend(**given)
    return plan_c.view(torch.int32).tolist(), plan_w.view(torch.int32).tolist()


def unpacked(plan_c: list[list[int]]) -> list[tuple[int, ...]]:
    """(length, token, states that were there, page of the group before, its own page)."""
    return [(a, b & 0xFFFF, b >> 16, c, d) for a, b, c, d in plan_c if a != -1]


def test_a_group_of_4_takes_what_was_there_and_then_the_calls_own_tokens() -> None:
    plan_c, plan_w = planned(4, (9, 6), 3)
    # row 0: positions 6 to 8, the second of which ends a group; slot 519 is window slot 775, in
    # page 3 at place 7 of its ring. Row 1: positions 3 to 5, the first of which ends a group.
    assert unpacked(plan_c) == [(8, 1, 6, 48 // 4, 55 // 4), (4, 3, 7, 80 // 4, 83 // 4)]
    assert plan_c[2:] == [NOTHING_C] * 4
    assert plan_w == [[0, 54], [1, 55], [2, 56], [3, 83], [4, 84], [5, 85]]


@pytest.mark.parametrize(("most_drafts", "kept"), [(4, [1, 2, 3, 4]), (None, [0, 1, 2, 3, 4])])
def test_the_last_four_tokens_were_kept_alone_before(
    most_drafts: int | None, kept: list[int]
) -> None:
    _, plan_w = planned(4, (8,), 5, most_drafts=most_drafts)
    assert [token for token, _ in plan_w if token != -1] == kept


def test_a_group_of_128_has_a_ring_of_its_request() -> None:
    plan_c, plan_w = planned(128, (129,), 3)
    assert unpacked(plan_c) == [(128, 1, 126, 2, 2 + 127 // 128)]
    assert plan_w == [[0, 256 + 126], [1, 256 + 127], [2, 256 + 128]]


def test_a_group_of_128_had_a_ring_of_each_page_before() -> None:
    _, plan_w = planned(128, (129,), 3, rings_of_requests=False)
    page, place = (512 + 126 + 256) // 256, (512 + 126 + 256) % 256
    assert plan_w[0] == [0, page * 256 + place]


def test_the_last_group_of_a_page_is_kept_for_a_prefix() -> None:
    _, plan_w = planned(4, (280,), 28, ring_size=8)
    assert [token for token, _ in plan_w[:5]] == [0, 1, 2, 3, 24]  # positions 252 to 255, and 276


def test_no_state_is_read_where_the_call_has_all_of_them() -> None:
    plan_c, _ = planned(4, (16,), 12)
    assert [row[2:] for row in unpacked(plan_c)] == [(4, 48 // 4, 55 // 4), (0, -1, 0), (0, -1, 0)]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"seq_lens": longs(9, 6).int()}, "seq_lens must be int64"),
        ({"extend_lens": longs(3)}, r"extend_lens must be \[2\]"),
        ({"num_q_tokens": 1}, "need a plan of as many tokens"),
        ({"swa_page_size": 128, "ring_size": 256}, "ring_size must divide a page"),
        ({"use_req_ring": True, "compress_ratio": 128}, "use_req_ring needs groups of 4"),
    ],
)
def test_a_plan_of_other_arguments_is_refused(changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(KernelRefused, match=rule):
        planned(changed.pop("compress_ratio", 4), (9, 6), 3, **changed)


@pytest.mark.parametrize(("ratio", "past", "new"), [(4, 6, 3), (4, 1, 8), (128, 126, 4)])
def test_several_tokens_leave_what_they_leave_one_after_the_other(
    ratio: int, past: int, new: int
) -> None:
    element, parts = WIDTH * (4 if ratio == 4 else 2), 2 if ratio == 4 else 1
    ring = 16 if ratio == 4 else 256
    torch.manual_seed(past)
    states = torch.randn(12 * ring // ratio, ratio, element)
    tokens, ape = torch.randn(past + new, element), torch.randn(ratio * parts, WIDTH)
    built: dict[str, Any] = dict(ratio=ratio, width=WIDTH, dtypes=(torch.float32,) * 3)
    places: dict[str, Any] = dict(
        req_pool_indices=longs(1), req_to_token=page_map(), full_to_state=torch.arange(2048) + 256,
        compress_ratio=ratio, swa_page_size=256, ring_size=ring,
    )  # fmt: skip
    stepwise, cache = states.clone(), torch.zeros(1024, WIDTH)
    together = torch.zeros(1024, WIDTH)
    stored: dict[str, Any] = dict(
        norm_weight=torch.ones(WIDTH), norm_eps=0.0, freq_cis=torch.randn(300, WIDTH),
        compress_ratio=ratio, page_size=8, width=WIDTH, dtype=torch.float32,
        slot_dtype=torch.int64,
    )  # fmt: skip
    for at in range(past + new):
        plan = plan_compress_decode(seq_lens=longs(at + 1), **places)
        out = torch.zeros(1, WIDTH)
        compress_decode(stepwise, tokens[at : at + 1], out, ape, plan, **built)
        if at == past - 1:
            states = stepwise.clone()
        if at >= past:
            slot, pages = longs(at), cache.view(-1, 8 * WIDTH).view(torch.uint8)
            store_compressed(out, plan, out_loc=slot, kvcache=pages, is_decode=True, **stored)
    lens: dict[str, Any] = dict(
        seq_lens=longs(past + new), extend_lens=longs(new), num_q_tokens=new
    )
    plan_c, plan_w = plan_compress_extend(
        **places, **lens, pin_buffer=torch.empty(0, dtype=torch.uint8), use_req_ring=False,
        use_cuda_graph=True,
    )  # fmt: skip
    out = torch.zeros(new, WIDTH)
    compress_extend(states, tokens[past:], out, ape, plan_c, plan_w, **built)
    slots, pages = torch.arange(past, past + new), together.view(-1, 8 * WIDTH).view(torch.uint8)
    store_compressed(out, plan_c, out_loc=slots, kvcache=pages, is_decode=False, **stored)
    torch.testing.assert_close(states, stepwise)
    torch.testing.assert_close(together, cache)
    assert cache.any()
