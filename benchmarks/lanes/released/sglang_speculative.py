"""Speculative decoding and sampling of sglang."""

from __future__ import annotations

from typing import Any

import torch

from released.row import LONG, Table, below, blank, floats, ints, longs, slots, zeros

row = Table("sglang")
_SPEC = "kernels.ops.speculative"
_SAMPLING = "kernels.ops.sampling"


@row(f"{_SPEC}.cache_locs")
def slots_of_drafts(m: Any) -> None:
    table, rows, lens = slots(4, 24), longs(2, 0, 3), longs(9, 4, 17)
    m.assign_draft_cache_locs_contiguous_func(rows, table, lens, zeros(12, dtype=LONG), 2, 2)
    m.assign_extend_cache_locs_func(
        rows, table, lens, lens + 2, batch_size=3, draft_token_num=2, device="cuda"
    )
    m.assign_extend_cache_locs_uniform_func(rows, table, lens, 3, 2, "cuda")


@row(f"{_SPEC}.cache_locs")
def kv_indices_of_drafts(m: Any) -> None:
    lens, topk, steps = longs(9, 4, 17), 2, 3
    positions = lens.repeat_interleave(topk)
    m.generate_draft_decode_kv_indices[(steps, 3, topk)](
        longs(2, 0, 3), slots(4, 24), lens, blank(steps, 120), blank(steps, 8), positions, 24, 120,
        8, 4, 4, 16, 1, NUM_STEPS=steps,
    )  # fmt: skip


@row(f"{_SPEC}.cache_locs")
def compact_table_of_drafts(m: Any) -> None:
    m.rebuild_compact_draft_req_to_token_func(
        draft_req_to_token=blank(4, 24), target_req_to_token=slots(4, 24),
        req_pool_indices=longs(2, 0, 3), suffix_start=longs(3, 0, 5),
        draft_prefix_lens=longs(6, 4, 12), verify_out_cache_loc_2d=slots(3, 4, dtype=LONG),
        batch_size=3, block_size=4,
    )  # fmt: skip


@row(f"{_SPEC}.spec_tree")
def trees_are_built(m: Any) -> None:
    rows, topk, depth, tokens = 2, 2, 3, 4
    lens = ints(9, 4)
    m.sgl_build_tree_kernel_triton(
        longs(-1, 0, 1, 2, 3, 4, 5).repeat(rows, 1), longs(0, 1, 3).repeat(rows, 1), lens,
        torch.ones(int((lens + tokens).sum()) * tokens, dtype=torch.bool),
        zeros(rows * tokens, dtype=LONG), *(zeros(rows, tokens, dtype=LONG) - 1 for _ in range(3)),
        topk, depth, tokens,
    )  # fmt: skip


@row(f"{_SPEC}.spec_tree")
def trees_are_verified(m: Any) -> None:
    index = torch.arange(8).view(2, 4)
    following = longs(1, 2, -1, -1).repeat(2, 1)
    beside = longs(-1, 3, -1, -1).repeat(2, 1)
    m.verify_tree_greedy_triton(
        blank(8), blank(2, 3) - 1, blank(2), below(3, 2, 4, dtype=LONG), index, following, beside,
        below(3, 2, 4, dtype=LONG),
    )  # fmt: skip


@row(f"{_SPEC}.reject_sampling")
def drafts_are_sampled(m: Any) -> None:
    target, draft = floats(2, 4, 100).softmax(-1), floats(2, 4, 100).abs().softmax(-1)
    for block in (False, True):
        m.chain_speculative_sampling_triton(
            blank(8), blank(2, 4) - 1, blank(2), below(100, 2, 4, dtype=LONG),
            torch.arange(8).view(2, 4), None, None, floats(2, 4).sigmoid(), floats(2).sigmoid(),
            target, draft, 1.0, 1.0, True, block_verification=block,
        )  # fmt: skip


@row(f"{_SPEC}.topk1")
def best_draft_token(m: Any) -> None:
    m.draft_topk1_postprocess(floats(3, 5000), longs(4, 0, 9), zeros(3, 4, dtype=LONG), 1)


@row(f"{_SPEC}.eagle")
def what_a_verify_leaves(m: Any) -> None:
    lens, predicted = ints(2, 1, 4), below(99, 12)
    accepted = torch.arange(12, dtype=torch.int32).view(3, 4)
    m.fill_bonus_tokens_func(predicted.view(3, 4), lens, blank(3), 4, 3)
    m.prepare_verify_commit_outputs(predicted, accepted, lens, longs(30, 5, 62), 4, 32)
    m.prepare_draft_extend_inputs(lens, predicted, 4)
    m.prepare_draft_extend_layout(longs(30, 5, 62), 4, True)
    m.prepare_draft_extend_lengths(longs(30, 5, 62), 4, 1)


@row(f"{_SPEC}.eagle")
def chains_of_drafts(m: Any) -> None:
    m.build_chain_tree(
        below(99, 3, dtype=LONG), below(99, 3, 3, dtype=LONG), longs(9, 4, 17), None,
        longs(2, 0, 3), slots(4, 24), True,
    )  # fmt: skip


@row(f"{_SPEC}.eagle")
def slots_of_accepted_drafts(m: Any) -> None:
    accepted = ints(0, 2, -1, 5, -1, 7)
    m.fill_accept_out_cache_loc_func(accepted, slots(8, dtype=LONG), zeros(8, dtype=LONG), 6)


@row(f"{_SPEC}.multi_layer_eagle")
def drafts_of_several_layers(m: Any) -> None:
    tokens = below(99, 9, dtype=LONG)
    m.rotate_input_ids(tokens, ints(0, 4, 7), ints(4, 3, 2), longs(5, 6, 7).view(3, 1))
    m.wide_row_softmax_triton(floats(3, 9000), floats(3, 1).abs() + 0.5, zeros(3, 9000))


@row(f"{_SPEC}.gather_spec_extras")
def extras_of_requests(m: Any) -> None:
    m.gather_spec_extras(
        longs(2, 0), floats(4, 3), below(99, 4, 3, dtype=LONG), below(99, 4), floats(4, 16)
    )


@row(f"{_SPEC}.dflash")
def drafts_of_dflash(m: Any) -> None:
    m.compute_dflash_correct_drafts_and_bonus(
        candidates=below(2, 3, 4, dtype=LONG), target_predict=below(2, 3, 4, dtype=LONG)
    )
    m.selector_walk_triton(
        candidate_ids=below(99, 3, 4, 2, dtype=LONG), scores=floats(3, 4, 2, 2),
        uniforms=floats(3, 4).sigmoid(), temperatures=floats(3).abs() + 0.5,
        greedy_mask=below(2, 3).bool(),
    )  # fmt: skip


@row(f"{_SAMPLING}.temperature_softmax")
def softmax_at_a_temperature(m: Any) -> None:
    m.temperature_softmax(floats(3, 40000), floats(3, 1).abs() + 0.5)


@row(f"{_SAMPLING}.renorm_triton")
def renormalised_probabilities(m: Any) -> None:
    probabilities = floats(3, 900).softmax(-1)
    m.top_k_renorm_probs_triton(probabilities, 20)
    m.top_p_renorm_probs_triton(probabilities, 0.8)


@row(f"{_SAMPLING}.murmur_hash")
def hashes_of_seeds(m: Any) -> None:
    m.murmur_hash32_kernel[(3, 1)](
        longs(5, 6, 7), longs(1, 0, 9), longs(*range(10)), zeros(3, 10, dtype=torch.uint32), 3, 10,
        BLOCK_SIZE=16,
    )  # fmt: skip


@row("kernels.ops.grammar.bitmask_ops")
def masks_of_a_grammar(m: Any) -> None:
    m.apply_token_bitmask_inplace_triton(floats(3, 70), below(2**31, 3, 3), [2, 0])
