"""DeepSeek V4's backend with one part of its metadata wrong; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Target

__all__ = [
    "first_slot",
    "group_too_few",
    "index_keys_not_stored",
    "index_pages_of_the_padding",
    "index_queries_of_the_next_position",
    "older_tokens",
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
