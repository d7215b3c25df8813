"""Planted bugs of MiniCPM's sparse attention on sglang, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.minicpm import MINICPM_BACKEND, MinicpmTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_BACKEND = f"{MINICPM_BACKEND}:MiniCPMSparseBackend"
_UTILS = "sglang.srt.layers.attention.minicpm.sparse_utils"
_CACHE = "sglang.srt.layers.attention.minicpm.cache:MiniCPMCompressedCache"
_POOLS_KEYS = "compress_k_complete_kernel_new"


def _changed(change: Callable[[Any], None]) -> Callable[[], MinicpmTarget]:
    def target() -> MinicpmTarget:
        return with_changed_sessions(MinicpmTarget("sglang-minicpm", "decode"), change)

    return target


def _planted(name: str, line: str, other: str, holder: str = _BACKEND) -> Any:
    return _changed(lambda session: change_line_elsewhere(session, holder, name, line, other))


def _in_forward(line: str, other: str) -> Any:
    return _changed(lambda session: change_line(session.backend, "forward_decode", line, other))


def _in_kernel(line: str, other: str) -> Any:
    return _changed(lambda session: change_kernel(session, _UTILS, _POOLS_KEYS, line, other))


# What a replay prepares

lengths_of_the_batch_before = _planted(
    "_replay_sparse_graph_metadata",
    "decode_metadata.sparse_cache_seqlens_int32",
    "metadata.sparse_cache_seqlens_int32[:real_sparse_rows]",
)
table_of_the_batch_before = _planted(
    "_replay_sparse_graph_metadata",
    "dst.table.copy_(req_to_sparse[forward_batch.req_pool_indices])",
    "pass",
)
history_of_the_batch_before = _planted(
    "_replay_sparse_graph_metadata",
    "src.history_compress_token_nums",
    "dst.history_compress_token_nums[:real_bs]",
)
newest_token_of_the_batch_before = _planted(
    "_replay_sparse_graph_metadata",
    "metadata.base.cache_seqlens_int32[:real_bs] - 1",
    "metadata.cache_seqlens_int32_stage1[:real_bs]",
)
offsets_end_behind_live_rows = _planted(
    "_replay_sparse_graph_metadata",
    "dst_field[real_bs + 1 :].fill_(src_field[-1])",
    "pass",
)
dense_rows_without_their_pages = _planted(
    "_replay_sparse_graph_metadata",
    "metadata, forward_batch.seq_lens_cpu, self.head_group_num",
    "metadata, forward_batch.seq_lens_cpu * 0, self.head_group_num",
)
padded_rows_keep_their_lengths = _planted(
    "_replay_sparse_graph_metadata",
    "metadata.sparse_cache_seqlens_int32[real_sparse_rows:].zero_()",
    "pass",
)

# What is selected, and where it lies

first_selecting_row_sees_all = _in_forward(
    "(cache_seqlens >= self.dense_len)", "(cache_seqlens > self.dense_len)"
)
blocks_of_the_other_heads = _in_forward(
    "topk_idx,",
    "topk_idx.flip(0).contiguous(),",
)
pages_of_the_row_before = _in_forward(
    "topk_page_table = page_table\n", "topk_page_table = page_table.roll(1, 0)\n"
)
one_block_too_far = _planted(
    "compressed_attention",
    "topk_idx = topk_idx.to(torch.int32)",
    "topk_idx = topk_idx.to(torch.int32) - (topk_idx > 0).to(torch.int32)",
    MINICPM_BACKEND,
)
worst_blocks = _planted(
    "compressed_attention",
    "block_score.topk(topk, dim=-1)",
    "block_score.topk(topk, dim=-1, largest=False)",
    MINICPM_BACKEND,
)
newest_block_whole = _planted(
    "_get_sparse_cache_lens",
    "sparse_capacity - block_size + remainder,",
    "sparse_capacity + 0 * remainder,",
    _UTILS,
)

# Which keys are pooled

rows_of_one_pooled_key_less = _planted(
    "_compute_single_compression_metadata",
    "(seq_lens_cpu - kernel_size) // kernel_stride + 1,",
    "(seq_lens_cpu - kernel_size) // kernel_stride,",
    _UTILS,
)
new_pooled_keys_taken_for_old_ones = _planted(
    "_build_k1_k2_compression_metadata",
    "history_lens = token_nums - input_lens",
    "history_lens = token_nums",
    MINICPM_BACKEND,
)
coarser_keys_in_the_finer_ones_slots = _planted(
    "_build_k1_k2_compression_metadata",
    "(req_to_sparse_k2_token, k2_kernel_size, k2_kernel_stride),",
    "(req_to_sparse_k1_token, k2_kernel_size, k2_kernel_stride),",
    MINICPM_BACKEND,
)
mean_without_the_newest_key = _in_kernel(
    "for token_offset in range(kernel_size):", "for token_offset in range(kernel_size - 1):"
)
past_keys_from_the_slot_before = _in_kernel(
    "+ history_chunk_idx\n            ).to(tl.int32)",
    "+ tl.maximum(history_chunk_idx - 1, 0)\n            ).to(tl.int32)",
)
past_keys_of_the_row_before = _in_kernel(
    "+ batch_idx * compressed_k_table_cols\n                + history_chunk_idx",
    "+ tl.maximum(batch_idx - 1, 0) * compressed_k_table_cols\n                + history_chunk_idx",
)
pooled_keys_of_the_other_head = _in_kernel(
    "token_k_indices * head_num_k * head_dim\n                            + head_idx * head_dim",
    "token_k_indices * head_num_k * head_dim\n"
    "                            + (head_num_k - 1 - head_idx) * head_dim",
)
pooled_keys_are_not_kept = _in_kernel(
    "key_cache_ptr + head_offset + tl.arange(0, BLOCK_SIZE),\n                        acc,\n"
    "                        mask=tl.arange(0, BLOCK_SIZE) < head_dim,",
    "key_cache_ptr + head_offset + tl.arange(0, BLOCK_SIZE),\n                        acc,\n"
    "                        mask=tl.arange(0, BLOCK_SIZE) < 0,",
)
half_of_a_heads_columns = _in_kernel(
    "key_cache_ptr + key_base_offset + tl.arange(0, BLOCK_SIZE),\n"
    "                            mask=tl.arange(0, BLOCK_SIZE) < head_dim,",
    "key_cache_ptr + key_base_offset + tl.arange(0, BLOCK_SIZE),\n"
    "                            mask=tl.arange(0, BLOCK_SIZE) < head_dim // 2,",
)
slots_are_given_twice = _planted(
    "_alloc_reserved", "self.free_slots = self.free_slots[size:]", "pass", _CACHE
)
