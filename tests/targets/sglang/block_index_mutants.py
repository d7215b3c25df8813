"""Qwen's sparse attention with one change in its preparation or its kernels; opened by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION
from fuzzgraph.targets.sglang.backends.qsa import target
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

__all__ = [
    "groups_end_one_late",
    "keys_of_open_groups_lost",
    "keys_of_the_row_before",
    "lengths_round_up",
    "lone_rows_not_prepared",
    "members_of_the_group_before",
    "mend_tables",
    "mended",
    "newest_draft_lost",
    "newest_token_unseen",
    "pages_of_the_padding",
    "read_the_ring_in_time",
    "ring_of_the_padding",
    "tokens_of_the_first_row",
    "verify_mended",
]

_METADATA = f"{ATTENTION}.qsa.graph_metadata", "_qsa_graph_row_metadata_kernel"
_EXPANSION = f"{ATTENTION}.qsa.kernel", "_expand_qsa_block_indices_kernel"
_GATHERING = f"{ATTENTION}.qsa.sparse_attn", "_compact_kv"
_INDEXER = f"{ATTENTION}.qsa.qsa_indexer:QSAIndexer"
_STORED = "cache_loc=state_slots,"
_ROUNDED_UP = "tl.cdiv(req_to_token_row_stride, FULL_PAGE)"
_TABLE = "req_to_token_ptr + token_row + idx * FULL_PAGE"


def _target(change: Callable[[Any], None]) -> Any:
    return with_changed_sessions(target("sglang-qsa", "decode"), change)


def _kernel(kernel: tuple[str, str], line: str, other: str) -> Any:
    return _target(lambda session: change_kernel(session, *kernel, line, other))


def mended() -> Any:
    """No bug: tables have the page as well in which the context ends."""
    return _target(mend_tables)


def groups_end_one_late() -> Any:
    """The key of a group is written by the token behind it."""
    return _kernel(_METADATA, "(seq_len % RATIO == 0)", "(seq_len % RATIO == 1)")


def ring_of_the_padding() -> Any:
    """All requests keep their newest keys where padded rows do."""
    kept = "state_slots_ptr + row, req * RATIO + (current"
    return _kernel(_METADATA, kept, "state_slots_ptr + row, 0 * req + (current")


def members_of_the_group_before() -> Any:
    """A group's key is the mean of tokens that begin one before it."""
    return _kernel(_METADATA, "current - (RATIO - 1 - k)", "current - (RATIO - k)")


def lengths_round_up() -> Any:
    """A group that is not whole is scored."""
    return _kernel(_METADATA, "compressed = seq_len // RATIO", "compressed = seq_len // RATIO + 1")


def pages_of_the_padding() -> Any:
    """Tables of pages are those of the padding's request row."""
    return _kernel(_METADATA, _TABLE, "req_to_token_ptr + idx * FULL_PAGE")


def newest_token_unseen() -> Any:
    """Of the tokens behind the last whole group, the newest is not selected."""
    return _kernel(_EXPANSION, "(tail_offset < tail_count)", "(tail_offset < tail_count - 1)")


def tokens_of_the_first_row() -> Any:
    """What rows have selected is gathered from the first row's tokens."""
    return _kernel(_GATHERING, "tl.load(req_indices + batch)", "tl.load(req_indices)")


def keys_of_the_row_before() -> Any:
    """Rows are packed where the row before them is."""
    return _kernel(
        _GATHERING, "pack_start = tl.load(cu_k + batch)", "pack_start = tl.load(cu_k + batch) - 1"
    )


def lone_rows_not_prepared() -> Any:
    """Graphs of one row keep what was prepared for them last."""

    def change(session: Any) -> None:
        change_line(
            session.backend,
            "_replay_cuda_graph_metadata_gpu",
            "if bs <= 0 or num_rows <= 0:",
            "if bs <= 1 or num_rows <= 0:",
        )

    return _target(change)


def _stored(name: str, mode: Mode, where: str) -> Any:
    """The target, which keeps a token's key where this is so, and else where padded rows do."""
    other = f"cache_loc=torch.where({where}, state_slots, 0),"
    opened = functools.partial(target, name, mode)
    return with_a_line_changed(opened, _INDEXER, "_forward_impl", _STORED, other)()


def keys_of_open_groups_lost() -> Any:
    """Tokens that complete no group leave no key for the one that will."""
    return _stored("sglang-qsa", "decode", "positions % 4 == 3")


def newest_draft_lost() -> Any:
    """The last draft of the longest row leaves no key, unless it completes a group."""
    kept = "(positions % 4 == 3) | (positions < positions.max())"
    return _stored("sglang-qsa-verify", "target_verify", kept)


def verify_mended() -> Any:
    """No bug: keys of groups are made of the ring as it was before a verify, and of its drafts."""

    def change(session: Any) -> None:
        mend_tables(session)
        read_the_ring_in_time(session)

    return with_changed_sessions(target("sglang-qsa-verify", "target_verify"), change)


def mend_tables(session: Any) -> None:
    """Give tables the page in which the context ends."""
    change_kernel(session, *_METADATA, "req_to_token_row_stride // FULL_PAGE", _ROUNDED_UP)


def read_the_ring_in_time(session: Any) -> None:
    """Make keys of groups of the ring before a step and of its tokens, `draft_tokens` of a row."""
    indexer, width = session._attention.indexer, session._config.draft_tokens
    project, compress = indexer.project_qk, indexer._fused_compress_store
    kept: dict[str, torch.Tensor] = {}

    def project_behind(hidden: Any, positions: Any, **given: Any) -> Any:
        pool = given["pool"]
        ring, places = pool.get_qsa_key_state_buffer(0), pool.qsa_rope_position_buffer
        kept.update(ring=ring.clone(), places=places.clone())
        found = project(hidden, positions, **given)
        kept.update(keys=found[1].to(ring.dtype), positions=positions.long()[:, None].expand(-1, 3))
        return found

    def compress_both(pool: Any, group_locs: Any, write_locs: Any, **_: Any) -> None:
        metadata = session.backend.forward_metadata.indexer_metadata
        positions = metadata.decode_logical_positions.long()
        rows = metadata.token_to_batch_idx.long()
        if not metadata.is_cuda_graph:
            rows = metadata.compress_sequence_ids.long()
        before = torch.arange(3, -1, -1)
        drafted = positions[rows][:, None] - before >= positions[rows // width * width][:, None]
        own = len(kept["ring"]) + (rows[:, None] - before).clamp_min(0)
        compress(
            pool,
            torch.where(drafted, own, group_locs.long()),
            write_locs,
            source_keys=torch.cat((kept["ring"], kept["keys"])),
            source_rope=torch.cat((kept["places"], kept["positions"])),
        )

    indexer.project_qk, indexer._fused_compress_store = project_behind, compress_both
