"""DeepSeek V4.1 with several graphs of a size, and with layers that read those before, one line of
the engine changed; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.attention_model import in_forward_context
from fuzzgraph.targets.sglang.backends.dsv41 import Dsv41Target
from fuzzgraph.targets.sglang.forward_batch.data_ranks import pad_for_ranks
from tests.targets.sglang.changed_lines import (
    change_line,
    change_line_elsewhere,
)
from tests.targets.sglang.planted import with_changed_sessions

__all__ = [
    "blocks_by_the_length_before",
    "blocks_of_the_first_rows",
    "capture_of_the_newest_metadata",
    "drafts_left_out_of_the_limit",
    "every_key_up_to_twice_the_limit",
    "lengths_on_the_host_for_those_on_the_device",
    "newest_block_as_any_other",
    "one_block_too_few",
    "one_graph_for_all",
    "one_request_for_all_rows",
    "pages_of_the_other_ratio",
    "planned_before_it_is_padded",
    "slots_of_blocks_for_their_numbers",
]

_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"
_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner"
_VARIANTS = "sglang.srt.layers.attention.graph_variants"
_TABLE = "sglang.srt.layers.attention.dsv4.v41_indexer.sparse_table"
_TABLES = f"{_TABLE}:SparseTableBackend"


def _line(mode: Mode, holder: str, name: str, line: str, other: str) -> Dsv41Target:
    """Another line elsewhere in the engine, as `change_line_elsewhere` says it."""
    return _target(mode, lambda session: change_line_elsewhere(session, holder, name, line, other))


def _of_backend(method: str, line: str, other: str) -> Dsv41Target:
    """The backend's method of a decode with another line."""
    return _target("decode", lambda session: change_line(session.backend, method, line, other))


def _target(mode: Mode, change: Callable[[Any], None]) -> Dsv41Target:
    name = "sglang-dsv41-verify" if mode == "target_verify" else "sglang-dsv41"
    return with_changed_sessions(Dsv41Target(name, mode), change)


def capture_of_the_newest_metadata() -> Dsv41Target:
    """deepseek_v4_backend.py line 2853: a graph is captured over metadata that its size's first
    graph has replaced."""
    return _of_backend(
        "init_forward_metadata_out_graph",
        "metadata\n            if isinstance",
        "temp_metadata\n            if isinstance",
    )


def lengths_on_the_host_for_those_on_the_device() -> Dsv41Target:
    """deepseek_v4_backend.py line 1156: what a size's second graph finds has other lengths."""
    return _line(
        "target_verify",
        f"{_BACKEND}:DSV4RawVerifyMetadata",
        "copy_",
        "self.extend_seq_lens = other.extend_seq_lens",
        "self.extend_seq_lens = other.seq_lens_cpu",
    )


def one_graph_for_all() -> Dsv41Target:
    """The graph of short requests is replayed for long ones as well."""
    return _line(
        "decode",
        _RUNNER,
        "_resolve_attention_variant",
        "return variants.select(forward_batch)",
        "return variants.capture_labels[0]",
    )


def every_key_up_to_twice_the_limit() -> Dsv41Target:
    """The graph that selects every key is taken for requests with more of one ratio's."""

    def change(session: Any) -> None:
        engine = session.runner._engine
        variants = engine.attention_graph_variants
        if variants is not None:
            limits = tuple((label, 2 * limit) for label, limit in variants.graph_limits)
            kind = type(variants)
            engine.attention_graph_variants = kind(limits, variants.capture_labels, 0)

    return _target("decode", change)


def drafts_left_out_of_the_limit() -> Dsv41Target:
    """A verify is counted without its drafts where its graph is chosen."""

    def change(session: Any) -> None:
        engine = session.runner._engine
        variants = engine.attention_graph_variants
        if variants is not None:
            kind = type(variants)
            engine.attention_graph_variants = kind(
                variants.graph_limits, variants.capture_labels, 0
            )

    return _target("target_verify", change)


def pages_of_the_other_ratio() -> Dsv41Target:
    """Where every key is selected, slots of keys are those of groups of the other size."""
    return _of_backend(
        "init_forward_metadata_in_graph",
        "compress_ratio=ratio,",
        "compress_ratio=3 - ratio,",
    )


def one_block_too_few() -> Dsv41Target:
    """A candidate is lost: rows have the length of one block less."""
    return _line(
        "decode",
        _TABLES,
        "publish_decode",
        "candidate_row_lens(seq_lens, self.topk_blocks)",
        "candidate_row_lens(seq_lens, self.topk_blocks - 1)",
    )


def blocks_by_the_length_before() -> Dsv41Target:
    """The best blocks are those of a row with eight keys less."""
    return _line(
        "decode",
        _TABLES,
        "publish_decode",
        "amax_topk_blocks(logits, seq_lens, nblocks, self.topk_blocks)",
        "amax_topk_blocks(logits, seq_lens - 8, nblocks - 1, self.topk_blocks)",
    )


def newest_block_as_any_other() -> Dsv41Target:
    """The newest block is left out where others are better."""
    return _line(
        "decode",
        "sglang.kernels.ops.attention.dsv4.candidate_blocks",
        "amax8_varlen",
        "module.amax8_varlen(scores, seq_lens, out, topk)",
        "module.amax8_varlen(scores, seq_lens, out, topk); out[out == float('inf')] = -1.0",
    )


def slots_of_blocks_for_their_numbers() -> Dsv41Target:
    """What a layer selects among candidates are numbers of keys, taken for slots."""
    return _line(
        "decode",
        _TABLES,
        "consume_decode",
        "logits, published.valid_lens, published.phys_blocks",
        "logits, published.valid_lens, published.blocks",
    )


def one_request_for_all_rows() -> Dsv41Target:
    """Rows of several requests are scored as if they had one row of pages."""
    return _line(
        "decode",
        _TABLES,
        "_get_request_ids",
        "return buf[:rows]",
        "return torch.zeros_like(buf[:rows])",
    )


def planned_before_it_is_padded() -> Dsv41Target:
    """eager_runner.py without its third condition: a verify without a graph, which its worker has
    planned, is not planned again when it is padded for other ranks."""

    def change(session: Any) -> None:
        prepare = session._prepare_eagerly

        def forward() -> None:
            given = session._last_batch
            if given.forward_mode.is_idle():
                return
            prepare()
            with in_forward_context(session.backend, given):
                pad_for_ranks(given, session._model_runner)
                session._attention.forward(given.input_ids, given.positions, given)

        session._forward_eagerly = forward

    return _target("target_verify", change)


def blocks_of_the_first_rows() -> Dsv41Target:
    """All rows have the blocks of the first."""
    return _line(
        "target_verify",
        _TABLES,
        "publish_decode",
        "phys_blocks=phys_blocks,",
        "phys_blocks=phys_blocks[:1].expand_as(phys_blocks),",
    )
