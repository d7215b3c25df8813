"""Planted bugs of prompts of Qwen's sparse attention, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_MODULE = f"{ATTENTION}.qwen_sparse_attn_backend"
_BACKEND = f"{_MODULE}:QwenSparseAttnBackend"
_METADATA, _ATTENTION = f"{ATTENTION}.qsa.metadata", f"{ATTENTION}.qsa.sparse_attn"
_INDEXER = f"{ATTENTION}.qsa.qsa_indexer:QSAIndexer"
_LAYER = "sglang.srt.models.qwen4_exp:Qwen4ExpAttentionDecoderLayer"
_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"


def _opened() -> Any:
    return open_target("sglang-qsa-prefill")


def _planted(holder: str, name: str, line: str, other: str) -> Callable[[], Any]:
    return with_a_line_changed(_opened, holder, name, line, other)


def _kernel(module: str, name: str, line: str, other: str) -> Callable[[], Any]:
    def change(session: Any) -> None:
        change_kernel(session, module, name, line, other)

    return lambda: with_changed_sessions(_opened(), change)


first_group_not_made = _planted(
    _BACKEND, "_qsa_build_write_plan",
    "start_blocks=prefix_lens // ratio,", "start_blocks=prefix_lens // ratio + 1,",
)  # fmt: skip
groups_of_the_first_prompt = _planted(
    _BACKEND, "_qsa_build_write_plan",
    "torch.cumsum(extend_lens, 0) - extend_lens", "torch.zeros_like(extend_lens)",
)  # fmt: skip
group_that_ends_unseen = _planted(
    _METADATA, "build_qsa_row_ranges",
    "query_positions.to(device=sequence_lengths.device, dtype=torch.int32) + 1",
    "query_positions.to(device=sequence_lengths.device, dtype=torch.int32)",
)  # fmt: skip
"""Of the token that is a group's last."""
first_pending_token_lost = _planted(
    _MODULE, "build_pending_ring_slots",
    "pending = positions >= (lengths", "pending = positions > (lengths",
)  # fmt: skip
"""Shows in what a step leaves alone."""
selection_of_the_capture = _planted(
    _LAYER, "_compute_qsa_topk_indices",
    "output=output,", "output=output if output is None else output.clone(),",
)  # fmt: skip
past_of_the_first_prompt_decides = _planted(
    _BACKEND, "forward_extend", "if not any(prefix_lens):", "if not prefix_lens[0]:"
)
prompts_of_the_other_end = _planted(
    _BACKEND, "forward_extend",
    "req_indices=forward_batch.req_pool_indices,",
    "req_indices=forward_batch.req_pool_indices.flip(0),",
)  # fmt: skip
columns_of_the_shortest_prompt = _planted(
    f"{_METADATA}:QSAIndexerMetadata", "prefill_max_row_keys",
    "max(int(length) for length in lengths)", "min(int(length) for length in lengths)",
)  # fmt: skip
lengths_from_the_batchs_start = _planted(
    _INDEXER, "select_prefill_tokens",
    "chunk_lengths = row_ends[chunk_slice] - chunk_starts", "chunk_lengths = row_ends[chunk_slice]",
)  # fmt: skip
keys_one_slot_late = _planted(
    _INDEXER, "update_key_state_and_compress",
    "compressed_locs = metadata.write_locs", "compressed_locs = metadata.write_locs + 1",
)  # fmt: skip
streams_of_the_capture = _planted(
    _RUNNER, "_restore_qwen_bcg_hc_output",
    "output, self.layer_model.last_hc_hidden_states = output", "output, _ = output",
)  # fmt: skip
keys_of_the_first_prompt_scored = _kernel(
    f"{ATTENTION}.qsa.kernel", "_gather_qsa_compressed_keys_kernel",
    "token_slot_table + sequence.to(tl.int64) * table_stride", "token_slot_table",
)  # fmt: skip
newest_token_unseen = _kernel(
    f"{ATTENTION}.qsa.kernel", "_expand_qsa_block_indices_kernel",
    "(tail_offset < tail_count)", "(tail_offset < tail_count - 1)",
)  # fmt: skip
past_of_the_first_prompt_packed = _kernel(
    _ATTENTION, "_pack_qsa_prefill_kv",
    "req = tl.load(req_indices + batch)", "req = tl.load(req_indices)",
)  # fmt: skip
keys_of_the_first_prompt_attended = _kernel(
    _ATTENTION, "_sparse_gqa_chunk_prefill",
    "k_start = tl.load(cu_k + batch)", "k_start = tl.load(cu_k)",
)  # fmt: skip
