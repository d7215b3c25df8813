"""Draft-extends of Qwen's sparse attention with one line of the engine changed; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION
from tests.targets.sglang.block_index_mutants import mend_tables, read_the_ring_in_time
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_METADATA = f"{ATTENTION}.qsa.graph_metadata"
_INDEXER = f"{ATTENTION}.qsa.qsa_indexer:QSAIndexer"


def _opened() -> Any:
    return open_target("sglang-qsa-draft-extend")


def _changed(change: Callable[[Any], None]) -> Callable[[], Any]:
    return lambda: with_changed_sessions(_opened(), change)


def _layout(line: str, other: str) -> Callable[[], Any]:
    """One line of the kernel that lays rows out by the places of each request."""
    name = "_qsa_graph_layout_kernel"
    return _changed(lambda session: change_kernel(session, _METADATA, name, line, other))


def _replay(method: str, line: str, other: str) -> Callable[[], Any]:
    return _changed(lambda session: change_line(session.backend, method, line, other))


def _mend(session: Any) -> None:
    mend_tables(session)
    read_the_ring_in_time(session)


mended = _changed(_mend)
"""No bug: keys of groups are made of the ring as it was before a step, and of its own tokens."""
own_key_unseen = _layout("tl.minimum(prefix + 1 + j, limit)", "tl.minimum(prefix + j, limit)")
every_place_seen = _layout("tl.minimum(prefix + 1 + j, limit)", "limit")
"""A token selects among groups that tokens behind it complete."""
requests_of_the_first_row = _layout(
    "tl.store(row_req_pool_ptr + row, req.to(tl.int32))",
    "tl.store(row_req_pool_ptr + row, tl.load(req_pool_ptr).to(tl.int32))",
)
rows_by_accepted_tokens = _replay(
    "_stage_extend_lens", '"extend_seq_lens_tensor"', '"num_accept_tokens"'
)
"""Rows lie one behind the other, where each has all its places."""
lone_rows_not_prepared = _replay(
    "_replay_cuda_graph_metadata_gpu",
    "if bs <= 0 or num_rows <= 0:",
    "if bs <= 1 or num_rows <= 0:",
)
keys_of_open_groups_lost = with_a_line_changed(
    _opened, _INDEXER, "_forward_impl",
    "cache_loc=state_slots,",
    "cache_loc=torch.where(positions // 4 < positions.max() // 4, state_slots, 0),",
)  # fmt: skip
"""Tokens of the newest group of all rows leave no keys; shows in what a step leaves alone."""
keys_one_slot_late = with_a_line_changed(
    _opened, _INDEXER, "_compress_decode_cuda_graph",
    "group_locs,\n            metadata.graph_write_locs,",
    "group_locs,\n            metadata.graph_write_locs + 1,",
)  # fmt: skip
