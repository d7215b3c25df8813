"""Input kernels and samplers of vLLM's V2 runner."""

from __future__ import annotations

from typing import Any

import torch

from released.row import (
    LONG,
    Table,
    below,
    blank,
    floats,
    ints,
    longs,
    pages_of,
    reached,
    starts,
    zeros,
)

row = Table("vllm")
_GPU = "v1.worker.gpu"


@row(f"{_GPU}.block_table")
def page_tables_are_gathered(m: Any) -> None:
    sources, found = [pages_of(4, 6), pages_of(4, 3)], [blank(3, 6), blank(3, 3)]
    m._gather_block_tables_kernel[(2, 3)](
        ints(2, 0, 3), reached(*sources).to(torch.uint64), reached(*found).to(torch.uint64),
        longs(6, 3), below(3, 2, 4), 4, 3, None, None, None, MASK_SLIDING_WINDOW=False,
        BLOCK_SIZE=1024,
    )  # fmt: skip


@row(f"{_GPU}.block_table")
def slots_are_found(m: Any) -> None:
    tables = [pages_of(4, 6), pages_of(4, 3)]
    m._compute_slot_mappings_kernel[(2, 4)](
        16, ints(2, 0, 3), starts(3, 1, 2), longs(*range(6)), reached(*tables).to(torch.uint64),
        longs(6, 3), ints(4, 8), ints(1, 1), ints(0, 0), zeros(2, 16, dtype=LONG), 16, 0,
        CP_SIZE=1, CP_INTERLEAVE=1, PAD_ID=-1, TRITON_BLOCK_SIZE=1024,
    )  # fmt: skip


@row(f"{_GPU}.input_batch")
def inputs_of_a_step(m: Any) -> None:
    rows, starting, computed = ints(2, 0, 3), starts(3, 1, 2), ints(4, 0, 9, 2)
    ids, tokens, lens = blank(16), below(99, 4, 24), blank(4)
    m.prepare_prefill_inputs(ids, blank(1, 4), rows, starting, tokens, ints(7, 9, 12, 8), computed)
    m.prepare_pos_seq_lens(rows, starting, computed, zeros(16, dtype=LONG), lens)
    m.combine_sampled_and_draft_tokens(
        ids, rows, longs(5, 6, 7, 8).view(4, 1), starting, lens, ints(7, 9, 2, 3), below(99, 4, 2),
        starts(1, 1, 2), 4,
    )  # fmt: skip
    m.get_num_sampled_and_rejected(ints(2, 1, 1), lens, starts(3, 1, 2), rows, ints(7, 9, 2, 3))
    m.expand_idx_mapping(rows, 6, starting, 3)


@row(f"{_GPU}.input_batch")
def what_a_step_leaves(m: Any) -> None:
    rows, starting, computed = ints(2, 0, 3), starts(3, 1, 2), ints(4, 0, 9, 2)
    m.post_update(
        rows, computed, longs(5, 6, 7, 8).view(4, 1), blank(4, 99), below(99, 3, 3, dtype=LONG),
        ints(2, 1, 1), ints(1, 0, 1), starting, below(99, 4, 24), ints(9, 3, 12, 8),
    )  # fmt: skip
    m.post_update_num_computed_tokens(rows, computed, starting)


@row(f"{_GPU}.buffer_utils", f"{_GPU}.cp_utils")
def staged_writes(buffers: Any, ranks: Any) -> None:
    buffers._apply_write_kernel[(2, 1)](
        blank(4, 24), 24, ints(2, 0), ints(3, 0), below(99, 9), ints(5, 9), None, BLOCK_SIZE=1024,
        MULTI_GROUP=False,
    )  # fmt: skip
    ranks.prepare_dcp_local_seq_lens(blank(4), ints(9, 3, 12, 8), 3, 2, 1, 1)


_SAMPLE = f"{_GPU}.sample"


@row(f"{_SAMPLE}.gumbel")
def sampling_by_gumbel_noise(m: Any) -> None:
    rows = ints(1, 0, 2)
    m.apply_temperature(floats(3, 3000), rows, floats(3).abs() + 0.5)
    m.gumbel_sample(
        floats(3, 3000), rows, floats(3).abs() + 0.5, longs(5, 6, 7), longs(9, 0, 3), True, False
    )


@row(f"{_SAMPLE}.min_p", f"{_SAMPLE}.penalties")
def penalties_of_tokens(min_p: Any, penalties: Any) -> None:
    rows = ints(1, 0, 2)
    min_p.apply_min_p(floats(3, 3000), rows, floats(3).sigmoid())
    mask, counts = blank(3, 96), blank(3, 3000)
    penalties.bincount(rows, below(3000, 3, 24), ints(9, 3, 12), ints(12, 3, 20), mask, counts, 20)
    penalties.apply_penalties(
        floats(3, 3000), rows, below(3000, 3), blank(3), floats(3).abs() + 1, floats(3), floats(3),
        mask, counts,
    )  # fmt: skip


@row(f"{_SAMPLE}.logit_bias", f"{_SAMPLE}.bad_words")
def biases_and_bad_words(bias: Any, words: Any) -> None:
    rows = ints(1, 0, 2)
    bias.apply_logit_bias(
        floats(3, 900), rows, longs(9, 0, 3), ints(2, 0, 0), below(900, 3, 4), ints(0, 3, 1),
        below(900, 3, 4), floats(3, 4), ints(0, 2, 9), ints(1, 1, 0), below(2, 3), below(900, 3, 2),
    )  # fmt: skip
    words.apply_bad_words(
        floats(3, 900), rows, below(900, 3, 8), ints(0, 2, 3, 0, 1, 1, 0, 4, 6).view(3, 3),
        ints(2, 1, 2), below(900, 3, 24), ints(9, 3, 12), ints(12, 3, 20), below(900, 3), blank(3),
        2,
    )  # fmt: skip


@row(f"{_SAMPLE}.logprob", f"{_SAMPLE}.prompt_logprob", f"{_GPU}.metrics.logits")
def logprobs(m: Any, prompt: Any, metrics: Any) -> None:
    m.compute_token_logprobs(floats(3, 3000), below(3000, 3, 4, dtype=LONG))
    m.compute_topk_scores(floats(3, 3000), 3, below(3000, 3, dtype=LONG))
    prompt.get_prompt_logprobs_token_ids(
        6, starts(3, 1, 2), ints(2, 0, 3), ints(4, 0, 9, 2), below(99, 4, 24)
    )
    metrics.get_num_nans(floats(3, 3000).log())


@row(f"{_GPU}.structured_outputs")
def masks_of_a_grammar(m: Any) -> None:
    m._apply_grammar_bitmask_kernel[(2, 1)](
        floats(3, 70), 70, ints(2, 0), starts(1, 1, 1), below(2**31, 2, 3), 3, 70, MASK_STRIDE=1,
        BLOCK_SIZE=8192,
    )  # fmt: skip


@row(f"{_GPU}.spec_decode.rejection_sampler_utils")
def drafts_are_rejected_by_the_runner(m: Any) -> None:
    lens, rows = starts(3, 1, 2), ints(2, 0, 3)
    for block in (False, True):
        m.rejection_sample(
            floats(6, 900), floats(4, 2, 900), below(900, 6, dtype=LONG), lens, longs(*range(6)),
            rows, ints(2, 2, 2, 0, 3, 3), ints(0, 1, 2, 0, 0, 1), floats(4).abs() + 0.5,
            longs(5, 6, 7, 8), 2, use_block_verification=block,
        )  # fmt: skip


@row("v1.worker.mamba_utils")
def states_are_moved(m: Any) -> None:
    sources, targets = [floats(40), floats(24)], [zeros(40), zeros(24)]
    m.batch_memcpy(
        reached(*sources).to(torch.uint64), reached(*targets).to(torch.uint64), ints(160, 96)
    )
