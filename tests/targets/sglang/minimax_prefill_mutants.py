"""Planted bugs of prompts of MiniMax's sparse attention, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.backends.minimax import SPARSE_BACKEND
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import (
    with_a_held_kernel_changed,
    with_a_line_changed,
    with_changed_sessions,
)

_SPARSE = f"{SPARSE_BACKEND}:MiniMaxSparseAttnBackend"
_POOL = "sglang.srt.mem_cache.memory_pool:MiniMaxSparseKVPool"
_PREFILL = "sglang.kernels.ops.attention.minimax_sparse.prefill"
_TARGET = "sglang-minimax-prefill"


def _opened() -> Any:
    return open_target(_TARGET)


def _planted(holder: str, name: str, line: str, other: str) -> Callable[[], Any]:
    return with_a_line_changed(_opened, holder, name, line, other)


def _kernel(module: str, name: str, line: str, other: str) -> Callable[[], Any]:
    return with_a_held_kernel_changed(_opened, f"{_PREFILL}.{module}", name, line, other)


lengths_of_another_object = _planted(
    _SPARSE, "init_forward_metadata_out_graph",
    'extend_lens = getattr(forward_batch, "extend_seq_lens_cpu", None)',
    'extend_lens = getattr(self.req_to_token, "extend_seq_lens_cpu", None)',
)  # fmt: skip
"""Survived where no case had prompts: of these the first token alone has scores."""
past_forgotten = _planted(
    _SPARSE, "_resolve_extend_meta",
    "prefix_lens = forward_batch.extend_prefix_lens.to(torch.int32)",
    "prefix_lens = torch.zeros_like(seq_lens)",
)  # fmt: skip
scores_of_the_new_tokens_alone = _planted(
    _SPARSE, "init_forward_metadata_out_graph",
    "self._max_seqlen_k = int(forward_batch.seq_lens_cpu.max().item())",
    "self._max_seqlen_k = self._max_seqlen_q",
)  # fmt: skip
rows_of_the_other_end = _planted(
    _SPARSE, "forward_extend",
    "forward_batch.req_pool_indices,\n            cu_seqlens,",
    "forward_batch.req_pool_indices.flip(0),\n            cu_seqlens,",
)  # fmt: skip


def dense_metadata_of_the_first_batch() -> Any:
    """A prompt prepares the sparse layer alone."""

    def change(session: Any) -> None:
        change_line(
            session.backend,
            "init_forward_metadata",
            "self.dense.init_forward_metadata(forward_batch)",
            "self.dense.forward_metadata or self.dense.init_forward_metadata(forward_batch)",
        )

    return with_changed_sessions(_opened(), change)


index_keys_not_stored = _planted(
    _POOL, "set_fused_kv_index_buffer",
    "idx_k_cache = self.get_index_k_buffer(layer.layer_id).flatten(1)",
    "idx_k_cache = self.get_index_k_buffer(layer.layer_id).flatten(1).clone()",
)  # fmt: skip
keys_of_the_layer_before = _planted(
    _POOL, "set_fused_kv_index_buffer",
    "main.get_key_buffer(layer.layer_id).flatten(1)",
    "main.get_key_buffer(layer.layer_id - 1).flatten(1)",
)  # fmt: skip
keys_of_the_first_request_scored = _kernel(
    "flash_with_topk_idx", "_flash_attn_fwd_with_block_score_kernel",
    "tl.load(slot_ids + pid_b).to(tl.int64)", "tl.load(slot_ids).to(tl.int64)",
)  # fmt: skip
newest_block_not_local = _kernel(
    "flash_with_topk_idx", "_topk_index_kernel",
    "max(0, valid_blocks - local_blocks)", "max(0, valid_blocks - local_blocks + 1)",
)  # fmt: skip
last_block_not_selected = _kernel(
    "flash_with_topk_idx", "_topk_index_kernel",
    "(prefix_len + pid_q * sample_interval + block_size) // block_size",
    "(prefix_len + pid_q * sample_interval + block_size - 1) // block_size",
)  # fmt: skip
"""Of a token whose key is the first of a block."""
own_key_not_attended = _kernel(
    "topk_sparse", "_gqa_share_sparse_fwd_kernel",
    "qk += tl.where(off_q_k[:, None, :] >= c,", "qk += tl.where(off_q_k[:, None, :] > c,",
)  # fmt: skip
later_keys_attended = _kernel(
    "topk_sparse", "_gqa_share_sparse_fwd_kernel",
    "qk += tl.where(off_q_k[:, None, :] >= c,", "qk += tl.where(off_q_k[:, None, :] + 1 >= c,",
)  # fmt: skip
