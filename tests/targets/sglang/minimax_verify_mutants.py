"""Planted bugs of MiniMax's verifies with ROCm, and of its decodes on other GPUs than Hoppers and
with KV in FP8: each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.backends.minimax import SPARSE_BACKEND
from tests.targets.sglang.minimax_mutants import with_dense_metadata_of_the_capture
from tests.targets.sglang.planted import with_a_held_kernel_changed, with_a_line_changed

_SPARSE = f"{SPARSE_BACKEND}:MiniMaxSparseAttnBackend"
_POOL = "sglang.srt.mem_cache.memory_pool:MiniMaxSparseKVPool"
_DECODE = "sglang.kernels.ops.attention.minimax_sparse.decode"
_VERIFY, _HOPPER, _OTHER = "sglang-minimax-verify", "sglang-minimax", "sglang-minimax-flashinfer"


def _planted(target: str, holder: str, name: str, line: str, other: str) -> Callable[[], Any]:
    return with_a_line_changed(partial(open_target, target), holder, name, line, other)


def _kernel(target: str, module: str, name: str, line: str, other: str) -> Callable[[], Any]:
    opened = partial(open_target, target)
    return with_a_held_kernel_changed(opened, f"{_DECODE}.{module}", name, line, other)


# Verifies

drafts_without_their_own_key = _planted(
    _VERIFY, _SPARSE, "_init_rocm_linear_verify_metadata",
    "        1,\n        ndt + 1,", "        0,\n        ndt,",
)  # fmt: skip
drafts_see_later_drafts = _planted(
    _VERIFY, _SPARSE, "_init_rocm_linear_verify_metadata",
    "+ offsets[None, :])", "+ offsets[None, :] * 0 + ndt)",
)  # fmt: skip
requests_repeated_as_a_whole = _planted(
    _VERIFY, _SPARSE, "_init_rocm_linear_verify_metadata",
    "forward_batch.req_pool_indices.repeat_interleave(ndt)",
    "forward_batch.req_pool_indices.repeat(ndt)",
)  # fmt: skip
scores_as_long_as_at_capture = _planted(
    _VERIFY, _SPARSE, "init_forward_metadata_out_graph",
    "(self.is_npu or self.is_hip)", "self.is_npu",
)  # fmt: skip
scores_without_the_drafts_eagerly = _planted(
    _VERIFY, _SPARSE, "init_forward_metadata_out_graph",
    "self._max_seqlen_k += self.speculative_num_draft_tokens", "pass",
)  # fmt: skip
lengths_of_the_requests = _planted(
    _VERIFY, _SPARSE, "forward_extend",
    "verify_batch.seq_lens = meta.seq_lens",
    "verify_batch.seq_lens = forward_batch.seq_lens.repeat_interleave(len(q) // "
    "len(forward_batch.seq_lens))",
)  # fmt: skip
rows_frozen_at_capture = _planted(
    _VERIFY, _SPARSE, "forward_extend",
    "verify_batch.req_pool_indices = meta.req_pool_indices",
    "verify_batch.req_pool_indices = torch.zeros_like(meta.req_pool_indices)",
)  # fmt: skip


def dense_metadata_of_the_capture() -> Any:
    return with_dense_metadata_of_the_capture(open_target(_VERIFY))


verified_index_keys_not_stored = _planted(
    _VERIFY, _POOL, "set_fused_kv_index_buffer",
    "self.set_index_k_buffer(layer, loc, cache_idx_k, idx_k_scale)", "pass",
)  # fmt: skip

# KV in FP8

fused_store_beside_another_dtype = _planted(
    _OTHER, _POOL, "_can_fuse_kv_index_store",
    "and main.dtype == index_pool.dtype", "and main.dtype != index_pool.dtype",
)  # fmt: skip
"""Survived where no case had KV in FP8 beside index keys in bfloat16."""
fused_store_whatever_the_scales = _planted(
    _HOPPER, _POOL, "_can_fuse_kv_index_store",
    "        unit_scales\n", "        True\n",
)  # fmt: skip
keys_without_their_scale = _planted(
    _HOPPER, _SPARSE, "forward_decode", "k_scale=layer.k_scale_float,", "k_scale=None,"
)
values_by_the_scale_of_keys = _planted(
    _HOPPER, _SPARSE, "forward_decode",
    " v_scale=layer.v_scale_float,", " v_scale=layer.k_scale_float,",
)  # fmt: skip
index_keys_by_the_scale_of_keys = _planted(
    _HOPPER, _POOL, "set_fused_kv_index_buffer",
    "self.set_index_k_buffer(layer, loc, cache_idx_k, idx_k_scale)",
    "self.set_index_k_buffer(layer, loc, cache_idx_k, k_scale)",
)  # fmt: skip

# Other GPUs than Hoppers

keys_of_the_first_block_scored = _kernel(
    _OTHER, "flash_with_topk_idx", "_decode_score_kernel",
    "prefetch_pos = chunk_start + off_n", "prefetch_pos = off_n",
)  # fmt: skip
"""Each block has the score of a row's first keys."""
first_block_attended_for_each = _kernel(
    _OTHER, "topk_sparse", "_gqa_share_sparse_decode_kernel",
    "req_to_token_ptr + sid * stride_r2t_b + c, mask=c < seq_len, other=0",
    "req_to_token_ptr + sid * stride_r2t_b, mask=c < seq_len, other=0",
)  # fmt: skip
"""Where a block lies within a page: keys of a row's first block stand for those of each."""
newest_key_not_scored = _kernel(
    _VERIFY, "flash_with_topk_idx", "_decode_score_kernel",
    "num_blocks = (seq_len + block_size - 1) // block_size",
    "num_blocks = (seq_len + block_size - 2) // block_size",
)  # fmt: skip
"""A block whose first key is a row's own is no block of it."""
