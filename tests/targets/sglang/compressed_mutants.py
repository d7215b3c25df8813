"""DeepSeek V4's backend with one part of its metadata wrong; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Target
from fuzzgraph.targets.sglang.stubs.planned_topk import topk_module

__all__ = [
    "first_slot",
    "group_too_few",
    "index_keys_not_stored",
    "index_pages_of_the_padding",
    "index_queries_of_the_next_position",
    "older_tokens",
    "selection_planned_at_capture",
    "selection_planned_for_other_rows",
    "slots_by_pages_of_another_size",
    "window_too_short",
]


def _changed(change: Callable[[Any], None]) -> Dsv4Target:
    """The target, with what `change` does to the metadata of each forward."""
    target = Dsv4Target("sglang-dsv4")
    open_session = target.open

    def open_changed(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        make = session.backend.make_forward_metadata_from_raw_decode

        def made(*given: Any, **named: Any) -> Any:
            metadata = make(*given, **named)
            change(metadata)
            return metadata

        session.backend.make_forward_metadata_from_raw_decode = made
        return session

    target.open = open_changed  # type: ignore[method-assign]
    return target


def window_too_short() -> Dsv4Target:
    """The window's oldest token is left out."""

    def change(metadata: Any) -> None:
        metadata.core_attn_metadata.swa_topk_lengths.sub_(1).clamp_(min=1)

    return _changed(change)


def group_too_few() -> Dsv4Target:
    """The newest compressed key of groups of 4 is left out."""

    def change(metadata: Any) -> None:
        metadata.core_attn_metadata.c4_sparse_topk_lengths.sub_(1).clamp_(min=1)

    return _changed(change)


def first_slot() -> Dsv4Target:
    """Compressed keys are written to the padding's slot."""

    def change(metadata: Any) -> None:
        metadata.core_attn_metadata.c4_out_loc.zero_()
        metadata.core_attn_metadata.c128_out_loc.zero_()

    return _changed(change)


def older_tokens() -> Dsv4Target:
    """The compressor's plan takes each row for one token longer than it is."""

    def change(metadata: Any) -> None:
        for plan in (metadata.c4_compress_metadata, metadata.c128_compress_metadata):
            plan.plan_d[:, :1].add_(1)  # the lowest byte of a row's length

    return _changed(change)


def index_queries_of_the_next_position() -> Dsv4Target:
    """The indexer's queries are rotated as if they stood one place further on."""

    def change(metadata: Any) -> None:
        metadata.core_attn_metadata.positions_casual.add_(1)

    return _changed(change)


def index_pages_of_the_padding() -> Dsv4Target:
    """The indexer takes all pages of keys but a row's first for the padding's."""

    def change(metadata: Any) -> None:
        metadata.indexer_metadata.page_table[:, 1:].zero_()

    return _changed(change)


def _replanned(lengths: Callable[[torch.Tensor], torch.Tensor]) -> Dsv4Target:
    """The target, whose selection follows a plan of other lengths."""

    def change(metadata: Any) -> None:
        indexer = metadata.indexer_metadata
        lens = getattr(indexer, "compressed_seq_lens", None)
        lens = indexer.c4_seq_lens if lens is None else lens  # as it is called up to 0.5.19
        indexer.topk_metadata.copy_(topk_module().plan_topk_v2(lengths(lens)))

    return _changed(change)


def selection_planned_at_capture() -> Dsv4Target:
    """The selection follows the plan of a capture, whose rows have no compressed key."""
    return _replanned(torch.zeros_like)


def selection_planned_for_other_rows() -> Dsv4Target:
    """The selection's plan has each row's keys under the row at the batch's other end."""
    return _replanned(lambda lens: lens.flip(0).contiguous())


def slots_by_pages_of_another_size() -> Dsv4Target:
    """Slots of the keys that the indexer selects are counted by pages of half the size."""

    def change(metadata: Any) -> None:
        metadata.indexer_metadata.compressed_page_size //= 2

    return _changed(change)


def index_keys_not_stored() -> Dsv4Target:
    """The indexer's compressed keys are never written."""
    target = Dsv4Target("sglang-dsv4")
    open_session = target.open

    def opened(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        session.backend.forward_indexer_compressor = lambda **_: None
        return session

    target.open = opened  # type: ignore[method-assign]
    return target
