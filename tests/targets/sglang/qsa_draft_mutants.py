"""EAGLE's drafts on Qwen's sparse attention with one line of the engine changed; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.backends.attention_backend import ATTENTION
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.block_index_mutants import mend_tables
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere, replace_while_running
from tests.targets.sglang.planted import with_changed_sessions

_METADATA = f"{ATTENTION}.qsa.graph_metadata"
_BACKENDS = f"{ATTENTION}.qwen_sparse_attn_backend"
_SHARED = f"{_BACKENDS}:QSAMTPSharedSparseIndices"
_INDEXER = f"{ATTENTION}.qsa.qsa_indexer:QSAIndexer"


def _mend(session: Any) -> None:
    """Tables have the page in which the context ends, and what is selected lies without gaps."""
    mend_tables(session)
    backend = engine_module(_BACKENDS).QwenSparseAttnBackend
    replace_while_running(session, backend, "lookup_mtp_sparse_indices", _without_gaps)


def _without_gaps(look_up: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def found(*given: Any) -> torch.Tensor:
        selected = look_up(*given)
        return selected.gather(1, (selected < 0).to(torch.int8).argsort(dim=1, stable=True))

    return found


def _changed(change: Callable[[Any], None]) -> Callable[[], Any]:
    def mended(session: Any) -> None:
        _mend(session)
        change(session)

    return lambda: with_changed_sessions(open_target("sglang-qsa-draft"), mended)


def _elsewhere(holder: str, name: str, line: str, other: str) -> Callable[[], Any]:
    return _changed(lambda session: change_line_elsewhere(session, holder, name, line, other))


def _kernel(line: str, other: str) -> Callable[[], Any]:
    """One line of the kernel that writes the metadata of all steps."""
    name = "_qsa_draft_graph_metadata_kernel"
    return _changed(lambda session: change_kernel(session, _METADATA, name, line, other))


def _preparation(line: str, other: str) -> Callable[[], Any]:
    """One line of the preparation of all steps."""
    holder = f"{_BACKENDS}:QwenSparseMultiStepDraftBackend"
    return _elsewhere(holder, "_make_step_forward_batch", line, other)


def _launched(line: str, other: str) -> Callable[[], Any]:
    """One line of what launches that kernel."""
    return _elsewhere(_METADATA, "launch_draft_graph_metadata", line, other)


mended = _changed(lambda session: None)
"""No planted bug."""
own_key_unseen = _kernel("seq_offset=step + 1", "seq_offset=step")
steps_of_one_length = _kernel("seq_offset=step + 1", "seq_offset=1")
padded_rows_are_live = _kernel(
    "num_padding,\n                extend_len", "0,\n                extend_len"
)
requests_of_another_step = _kernel("buf[1],", "buffers[0][1],")
"""The rows of requests of all steps are written where the first step reads them."""
pages_of_another_step = _elsewhere(
    _METADATA, "prepare_draft_graph_metadata",
    "m.indexer_metadata.graph_compressed_page_table,",
    "metadata[0].indexer_metadata.graph_compressed_page_table,",
)  # fmt: skip
"""The tables of all steps are written where the first step reads them."""
requests_kept_by_size = _launched(
    "        req_pool_indices,\n",
    "        args[1].__dict__.setdefault(('requests', bs), req_pool_indices.clone()),\n",
)
"""A graph gets the requests of its first replay."""
padding_kept_by_size = _launched(
    "int(num_padding or 0)",
    "args[1].__dict__.setdefault(('padded', bs), int(num_padding or 0))",
)
"""A graph gets the count of padded rows of its first replay."""
lengths_do_not_grow = _preparation(
    "(forward_batch.seq_lens + step + 1)", "(forward_batch.seq_lens + 1)"
)
"""In replays before 0.5.22, and in runs without a graph."""
keys_of_open_groups_lost = _elsewhere(
    _INDEXER, "_forward_impl", "cache_loc=state_slots,",
    "cache_loc=torch.where(positions % 4 == 3, state_slots, 0),",
)  # fmt: skip
"""Tokens that complete no group leave no key for the one that will."""
newest_draft_unseen = _elsewhere(
    _SHARED, "lookup", "valid = tail <= current", "valid = tail < current"
)
"""Of a selection that is shared each step sees the drafts before it alone."""
selection_of_the_first_row = _elsewhere(
    _SHARED, "lookup", "self.indices[slot, rows]", "self.indices[slot, rows[:1].expand_as(rows)]"
)
