"""Planted bugs of MiniMax's sparse attention on sglang, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.minimax import SPARSE_BACKEND, MinimaxTarget
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line, replace_while_running
from tests.targets.sglang.planted import T, with_a_line_changed, with_changed_sessions

_SPARSE = f"{SPARSE_BACKEND}:MiniMaxSparseAttnBackend"
_POOL = "sglang.srt.mem_cache.memory_pool:MiniMaxSparseKVPool"
_DECODE = "sglang.kernels.ops.attention.minimax_sparse.decode"
_SCORES = f"{_DECODE}.flash_with_topk_idx", "_decode_score_paged_kernel"
_ATTENTION = f"{_DECODE}.topk_sparse", "_gqa_share_sparse_decode_kernel_impl"
"""Kernels for blocks within a page, as 0.5.23 has them on a Hopper."""


def _opened() -> MinimaxTarget:
    return MinimaxTarget("sglang-minimax", "decode")


def _planted(holder: str, name: str, line: str, other: str) -> Callable[[], MinimaxTarget]:
    return with_a_line_changed(_opened, holder, name, line, other)


def _changed_kernel(change: Callable[[Any], None]) -> MinimaxTarget:
    return with_changed_sessions(_opened(), change)


def _scores(line: str, other: str) -> MinimaxTarget:
    return _changed_kernel(lambda session: change_kernel(session, *_SCORES, line, other))


def _attention(line: str, other: str) -> MinimaxTarget:
    def change(session: Any) -> None:
        module, name = _ATTENTION
        kernels = engine_module(module)
        wrapped = kernels._gqa_share_sparse_decode_pinned

        # The engine launches the kernel by these heuristics, which hold it.
        replace_while_running(session, wrapped, "fn", lambda _: getattr(kernels, name))
        change_kernel(session, module, name, line, other)

    return _changed_kernel(change)


scores_as_long_as_at_capture = _planted(
    _SPARSE,
    "init_forward_metadata_out_graph",
    "self._max_seqlen_k = self.max_context_len",
    "self._max_seqlen_k = int(forward_batch.seq_lens_cpu.max().item())",
)
lengths_without_the_new_token = _planted(
    _SPARSE,
    "forward_decode",
    "forward_batch.seq_lens,\n            self._max_seqlen_k,",
    "forward_batch.seq_lens - 1,\n            self._max_seqlen_k,",
)
stores_where_it_was_captured = _planted(
    _SPARSE,
    "forward_decode",
    "forward_batch.out_cache_loc,",
    "forward_batch.out_cache_loc * 0,",
)
rows_of_the_other_end = _planted(
    _SPARSE,
    "forward_decode",
    "forward_batch.req_pool_indices,\n            forward_batch.seq_lens,\n",
    "forward_batch.req_pool_indices.flip(0),\n            forward_batch.seq_lens,\n",
)
keys_of_the_layer_before = _planted(
    _POOL,
    "set_fused_kv_index_buffer",
    "main.get_key_buffer(layer.layer_id).flatten(1)",
    "main.get_key_buffer(layer.layer_id - 1).flatten(1)",
)
index_keys_not_stored = _planted(
    _POOL,
    "set_fused_kv_index_buffer",
    "idx_k_cache = self.get_index_k_buffer(layer.layer_id).flatten(1)",
    "idx_k_cache = self.get_index_k_buffer(layer.layer_id).flatten(1).clone()",
)
newest_block_not_local = _planted(
    _SPARSE,
    "forward_decode",
    "self.init_blocks,\n            self.local_blocks,",
    "self.local_blocks,\n            self.init_blocks,",
)


def dense_metadata_of_the_capture() -> MinimaxTarget:
    return with_dense_metadata_of_the_capture(_opened())


def with_dense_metadata_of_the_capture(target: T) -> T:
    """A replay prepares the sparse layer alone."""

    def change(session: Any) -> None:
        change_line(
            session.backend,
            "init_forward_metadata_out_graph",
            "self.dense.init_forward_metadata_out_graph(forward_batch, in_capture)",
            "in_capture and self.dense.init_forward_metadata_out_graph(forward_batch, in_capture)",
        )

    return with_changed_sessions(target, change)


def first_block_scored() -> MinimaxTarget:
    """Each block has the score of the first block's keys."""
    return _scores("slot0 = tl.load(r2t_base + tok0)", "slot0 = tl.load(r2t_base)")


def keys_of_the_first_request_scored() -> MinimaxTarget:
    """Each row scores the keys of the batch's first request."""
    line = "sid = (tl.load(slot_ids + pid_b).to(tl.int64)"
    return _scores(line, "sid = (tl.load(slot_ids).to(tl.int64)")


def key_behind_the_last_attended() -> MinimaxTarget:
    """A row attends to one key, of zeros, behind its last."""
    line = "qk += tl.where(off_n[None, :] < seq_len - c,"
    return _attention(line, "qk += tl.where(off_n[None, :] <= seq_len - c,")


def last_block_not_attended() -> MinimaxTarget:
    """The last of the blocks that a row has selected is left out."""
    line = "real_topk = tl.sum(valid_idx != -1, axis=0)"
    return _attention(line, f"{line} - 1")
