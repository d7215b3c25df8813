"""Planted bugs of sparse indexers, each of them the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Target
from fuzzgraph.targets.sglang.backends.dsv41 import Dsv41Target
from fuzzgraph.targets.sglang.backends.nsa import NSA
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.dsv4_prefill import Dsv4PrefillTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere, changed_method
from tests.targets.sglang.planted import with_changed_sessions

_ATTENTION = "sglang.srt.layers.attention"
_INDEXER = f"{_ATTENTION}.dsa.dsa_indexer:Indexer"
_BACKEND = f"{_ATTENTION}.dsa_backend:DeepseekSparseAttnBackend"


_METADATA = "sglang.kernels.ops.attention.dsa.metadata"
_WEIGHTS = "weights = weights.squeeze(2)"
"""In indexers of both models."""
_Change = Callable[[Any], None]


def _verifies(change: _Change) -> Any:
    """Verifies of sparse attention, each session changed before it captures."""
    return with_changed_sessions(NSA.target("sglang-nsa-verify", "target_verify"), change)


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


def weights_of_other_rows() -> Any:
    """Each query has the weights of the one that stands as far from the other end."""
    return _verifies(_line(_INDEXER, "_get_topk_paged", _WEIGHTS, f"{_WEIGHTS}.flip(0)"))


_METADATA_V4 = f"{_ATTENTION}.dsv4.metadata"
_SELECTION_V4 = f"{_ATTENTION}.dsv4.v41_indexer.full_topk"


def _in_chunks(target: Any, *line: str) -> Any:
    """The same of layers of DeepSeek V4 and V4.1."""
    open_session = target.open_session

    def open_changed(config: EngineConfig, graphs: GraphEngine) -> Any:
        session = open_session(config, graphs)
        change_line_elsewhere(session, *line)
        return session

    target.open_session = open_changed
    return target


def _scored(line: str, other: str, target: Any = None) -> Any:
    """DeepSeek V4, by default its decodes, whose indexer is another one before a session looks it
    up."""
    target = target or Dsv4Target("sglang-dsv4")
    open_session = target.open_session

    def open_changed(config: EngineConfig, graphs: GraphEngine) -> Any:
        holder: Any = engine_module(f"{_ATTENTION}.dsv4.indexer").C4IndexerBackendMixin
        name = "forward_c4_indexer"
        with replaced_names([holder], {name: changed_method(holder, name, line, other)}):
            return open_session(config, graphs)

    target.open_session = open_changed
    return target


def v4_weights_of_other_rows() -> Any:
    """Each query of DeepSeek V4 has the weights of the one that stands as far from the other
    end."""
    return _scored(_WEIGHTS, f"{_WEIGHTS}.flip(0)")


def v4_weights_of_other_heads() -> Any:
    """The two heads of each query of DeepSeek V4 have each other's weights."""
    return _scored(_WEIGHTS, f"{_WEIGHTS}.flip(1)")


def pages_of_all_rows() -> Any:
    """A chunk's rows select among pages of the batch's first ones (dsv4/indexer.py:502)."""
    line = "            seq_lens,\n            page_table,\n            out_page_indices,\n"
    line += "            metadata.compressed_page_size,\n            metadata.topk"
    other = line.replace("            page_table", "            metadata.page_table")
    return _in_chunks(
        Dsv41Target("sglang-dsv41"),
        _SELECTION_V4,
        "topk_transform_paged_from_metadata",
        line,
        other,
    )


def plan_of_the_first_chunk() -> Any:
    """Rows of each chunk are selected by the plan of the first one."""
    line, other = "topk_plans[chunk_idx] if", "topk_plans[0] if"
    return _scored(line, other)


def schedule_of_the_first_chunk() -> Any:
    """Rows of each chunk are scored by the schedule of the first one."""
    line, other = "deep_gemm_metadata[chunk_idx]", "deep_gemm_metadata[0]"
    return _scored(line, other)


def chunks_without_their_last_row() -> Any:
    """Each chunk ends a row before the next one begins."""
    line, other = (
        "min(start + rows_per_chunk, num_rows)",
        "min(start + rows_per_chunk - 1, num_rows)",
    )
    return _in_chunks(Dsv4Target("sglang-dsv4"), _METADATA_V4, "iter_row_chunks", line, other)


def pages_of_the_first_chunk() -> Any:
    """Rows of each chunk are scored by pages of the first one's."""
    line, other = (
        "_c4sl[rows],\n                page_table[rows],",
        "_c4sl[rows],\n                page_table[: _c4sl[rows].shape[0]],",
    )
    return _scored(line, other)


def scores_of_the_first_rows() -> Any:
    """Rows of a prompt's chunks have the scores of the first chunk's (dsv4/indexer.py:1019)."""
    line, other = " rows=rows,", " rows=slice(rows.stop - rows.start),"
    return _scored(line, other, Dsv4PrefillTarget("sglang-dsv4-prefill"))


def pages_of_the_first_multiprocessors() -> Any:
    """More rows than there are multiprocessors are scored in parts, by pages of the first part."""
    line, other = "block_table[start:end],", "block_table[: end - start],"
    return _verifies(_line(_INDEXER, "_get_topk_paged", line, other))
