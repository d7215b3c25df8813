"""Engines whose outputs are wrong while their declared metadata is right; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends import aiter, flashinfer, nsa, triton
from tests.targets.sglang.changed_lines import change_line_elsewhere

__all__ = [
    "first_blocks_filled",
    "index_keys_not_stored",
    "index_pages_of_the_padding",
    "lone_rows_unwritten",
    "longer_extends",
    "newest_key_unselected",
    "next_slots",
    "plan_of_the_capture",
    "rotated_rows_left_out",
    "wrong_scale",
]


def _changed(target: Any, change: Callable[[Any], None]) -> Any:
    """The target with every session changed before it captures."""
    open_session = target.open

    def open_changed(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        change(session)
        return session

    target.open = open_changed
    return target


def first_blocks_filled() -> Any:
    """What fills FlashInfer's lists stops behind the first 512 entries of a row."""

    def change(session: Any) -> None:
        backend, prepare = session.backend, session.prepare_replay

        def prepare_first_blocks(batch: Any) -> None:
            held = backend.cuda_graph_kv_indices[0].clone()
            prepare(batch)
            filled = backend.cuda_graph_kv_indices[0]
            offsets = backend.kv_indptr[0][: batch.raw_bs + 1].tolist()
            for begin, end in pairwise(offsets):
                filled[begin + 512 : end] = held[begin + 512 : end]

        session.prepare_replay = prepare_first_blocks

    return _changed(flashinfer.FLASHINFER.target("sglang-flashinfer", "decode"), change)


def rotated_rows_left_out() -> Any:
    """A batch whose rows Triton attention deals out among the dies of a GPU loses its last row."""

    def change(session: Any) -> None:
        change_line_elsewhere(
            session, "sglang.kernels.ops.attention.decode_attention", "_decode_att_m_fwd",
            "grid = (batch, head_num, MAX_KV_SPLITS)",
            "grid = (batch - _rotate_batch(batch, uneven_batch), head_num, MAX_KV_SPLITS)",
        )  # fmt: skip

    return _changed(triton.TritonTarget("sglang-triton", "decode"), change)


def lone_rows_unwritten() -> Any:
    """AITER writes no KV for a batch of one row."""

    def change(session: Any) -> None:
        pool = session._model_runner.token_to_kv_pool
        write = pool.set_kv_buffer

        def write_many(layer: Any, loc: Any, k: Any, *others: Any, **named: Any) -> None:
            if len(k) > 1:
                write(layer, loc, k, *others, **named)

        pool.set_kv_buffer = write_many

    return _changed(aiter.target("sglang-aiter", "decode"), change)


def wrong_scale() -> Any:
    """A layer on AITER has twice its scale when it verifies."""

    def change(session: Any) -> None:
        session._attention.layer.scaling *= 2

    return _changed(aiter.target("sglang-aiter-verify", "target_verify"), change)


def plan_of_the_capture() -> Any:
    """AITER's replays follow the plan that the last capture made."""

    def change(session: Any) -> None:
        plan, capture = session.backend.make_mla_meta_data, session.capture

        def capture_and_keep() -> None:
            capture()
            session.backend.make_mla_meta_data = stale

        def stale(*args: Any, **named: Any) -> None:
            if session.ran_eagerly:
                plan(*args, **named)

        session.capture = capture_and_keep

    return _changed(aiter.target("sglang-aiter", "decode"), change)


def newest_key_unselected() -> Any:
    """The selection of sparse attention leaves each query's own token out."""

    def change(session: Any) -> None:
        given = session.backend.get_indexer_metadata

        def shorter(layer_id: int, forward_batch: Any) -> Any:
            metadata = given(layer_id, forward_batch)
            kind = type(metadata)

            class Shorter(kind):  # type: ignore[misc, valid-type]
                def get_seqlens_expanded(self) -> Any:
                    return kind.get_seqlens_expanded(self) - 1

            object.__setattr__(metadata, "__class__", Shorter)
            return metadata

        session.backend.get_indexer_metadata = shorter

    return _changed(nsa.target("sglang-nsa", "decode"), change)


def next_slots() -> Any:
    """Sparse attention reads the slot after each one that was selected."""

    def change(session: Any) -> None:
        attend = session.backend._forward_flashmla_sparse

        def shifted(*, page_table_1: Any, **named: Any) -> Any:
            return attend(page_table_1=page_table_1 + (page_table_1 >= 0), **named)

        session.backend._forward_flashmla_sparse = shifted

    return _changed(nsa.target("sglang-nsa", "decode"), change)


def index_keys_not_stored() -> Any:
    """The indexer of sparse attention never writes its keys."""

    def change(session: Any) -> None:
        session._attention.indexer._store_index_k_cache = lambda *_: None

    return _changed(nsa.target("sglang-nsa", "decode"), change)


def index_pages_of_the_padding() -> Any:
    """The indexer takes all pages of keys but a row's first for the padding's."""

    def change(session: Any) -> None:
        given = session.backend.get_indexer_metadata

        def first_page(layer_id: int, forward_batch: Any) -> Any:
            metadata = given(layer_id, forward_batch)
            kind = type(metadata)

            class FirstPage(kind):  # type: ignore[misc, valid-type]
                def get_page_table_64(self) -> Any:
                    table = kind.get_page_table_64(self).clone()
                    table[:, 1:] = 0
                    return table

            object.__setattr__(metadata, "__class__", FirstPage)
            return metadata

        session.backend.get_indexer_metadata = first_page

    return _changed(nsa.target("sglang-nsa", "decode"), change)


def longer_extends() -> Any:
    """Without a graph sparse attention takes each row for two new tokens (dsa_backend.py:1164)."""

    def change(session: Any) -> None:
        prepare = session.backend.init_forward_metadata

        def lengthened(forward_batch: Any) -> None:
            prepare(forward_batch)
            lens = session.backend.forward_metadata.dsa_extend_seq_lens_list
            lens[:] = [2] * len(lens)

        session.backend.init_forward_metadata = lengthened

    return _changed(nsa.target("sglang-nsa", "decode"), change)
