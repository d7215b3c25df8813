"""Planted bugs of sparse indexers, each of them the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.nsa import NSA
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere

_ATTENTION = "sglang.srt.layers.attention"
_INDEXER = f"{_ATTENTION}.dsa.dsa_indexer:Indexer"
_BACKEND = f"{_ATTENTION}.dsa_backend:DeepseekSparseAttnBackend"


_METADATA = "sglang.kernels.ops.attention.dsa.metadata"
_Change = Callable[[Any], None]


def _verifies(change: _Change) -> Any:
    """Verifies of sparse attention, each session changed before it captures."""
    target: Any = NSA.target("sglang-nsa-verify", "target_verify")
    open_session = target.open_session

    def open_changed(config: EngineConfig, graphs: GraphEngine) -> Any:
        session = open_session(config, graphs)
        change(session)
        return session

    target.open_session = open_changed
    return target


def _line(holder: str, name: str, line: str, other: str) -> _Change:
    return lambda session: change_line_elsewhere(session, holder, name, line, other)


def _kernel(name: str, line: str, other: str) -> _Change:
    return lambda session: change_kernel(session, _METADATA, name, line, other)


def lengths_in_one_column() -> Any:
    """Lengths of a column for each token are laid out for single tokens (dsa_indexer.py:1304)."""
    asked = "if use_dg_native:\n        seqlens"
    return _verifies(_line(_INDEXER, "_get_topk_paged", asked, asked.replace("if", "if not")))


def lengths_without_the_drafts() -> Any:
    """A row's scores end before its drafts, as its graph was captured and in each replay."""
    line, kernel = "base_seq + next_n,", "_fused_dsa_target_verify_metadata_kernel"
    return _verifies(_kernel(kernel, line, "base_seq,"))


def lengths_of_the_first_token() -> Any:
    """The first token of a row has the length of all, and no other has one."""
    line, kernel = (
        "draft_off * paged_mqa_ctx_lens_stride_1",
        "_fused_dsa_target_verify_metadata_kernel",
    )
    return _verifies(_kernel(kernel, line, "0 * paged_mqa_ctx_lens_stride_1"))


def pages_of_the_first_rows() -> Any:
    """Each row reads pages of what a token of the rows before it has."""
    line = "block_tables[::next_n],"
    name = "deepgemm_paged_mqa_logits_native"
    module = f"{_ATTENTION}.dsa.dsa_indexer"
    return _verifies(_line(module, name, line, "block_tables[:B],"))


def plan_of_the_replay_before() -> Any:
    """Scores are shared out by the plan of the replay before."""
    line = "metadata.paged_mqa_schedule_metadata.copy_(new_schedule)"
    before = "metadata.__dict__.setdefault('before', new_schedule.clone())"
    other = f"{line.replace('new_schedule', before)}; metadata.__dict__['before'] = new_schedule"
    return _verifies(_line(_BACKEND, "_refresh_paged_mqa_schedule_metadata", line, other))


def plan_of_single_tokens() -> Any:
    """The plan of a replay is made of a length for each token, as on other devices."""
    line = "seqlens_32_2d = metadata.paged_mqa_ctx_lens_2d"
    other = "seqlens_32_2d = metadata.paged_mqa_ctx_lens_2d.reshape(-1, 1)"
    return _verifies(_line(_BACKEND, "_apply_cuda_graph_metadata", line, other))
