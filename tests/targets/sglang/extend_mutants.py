"""EAGLE's draft-extend with one bug in what its backend prepares; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets.sglang.backends.draft_extend import DraftExtendTarget
from tests.targets.sglang.planted import with_changed_sessions

__all__ = [
    "last_key_of_no_row",
    "plans_of_the_capture",
    "rows_by_accepted_tokens",
    "rows_of_one_place_less",
    "selects_one_place_late",
    "window_of_the_first_pool",
]


def _target(backend: str, change: Callable[[Any], None]) -> DraftExtendTarget:
    target = DraftExtendTarget(f"sglang-{backend}-draft-extend", backend)
    return with_changed_sessions(target, change)


def _after_preparation(session: Any, change: Callable[[Any], None]) -> None:
    backend = session.backend
    prepare = backend.init_forward_metadata_out_graph

    def prepared(batch: Any, in_capture: bool = False) -> None:
        prepare(batch, in_capture=in_capture)
        change(batch)

    backend.init_forward_metadata_out_graph = prepared


def _one_less(lengths: str) -> Callable[[Any], None]:
    """Lengths of a graph's metadata count one too few."""

    def change(session: Any) -> None:
        def shortened(batch: Any) -> None:
            held = session.backend.decode_cuda_graph_metadata[batch.batch_size]
            getattr(held, lengths).sub_(1).clamp_(min=1)

        _after_preparation(session, shortened)

    return change


def last_key_of_no_row() -> DraftExtendTarget:
    """TensorRT-LLM's lengths count one key too few (MLA)."""

    return _target("trtllm-mla", _one_less("seq_lens_k"))


def rows_of_one_place_less() -> DraftExtendTarget:
    """Triton's query offsets have a place less for each row."""

    def change(session: Any) -> None:
        def narrowed(batch: Any) -> None:
            rows = batch.batch_size + 1
            offsets = session.backend.qo_indptr[:rows]
            offsets.sub_(offsets.clone().clamp_(max=1).cumsum(0))

        _after_preparation(session, narrowed)

    return _target("triton", change)


def window_of_the_first_pool() -> DraftExtendTarget:
    """TensorRT-LLM's window layer keeps its keys and values in the first layer's pool."""

    def change(session: Any) -> None:
        layers = session._model_runner.token_to_kv_pool.layers_mapping
        layers[1] = layers[0]

    return _target("trtllm-mha", change)


def plans_of_the_capture() -> DraftExtendTarget:
    """The plan by which sparse attention selects keys stays that of the capture."""

    def change(session: Any) -> None:
        session.backend._refresh_topk_v2_plan = lambda metadata: None

    return _target("nsa", change)


def selects_one_place_late() -> DraftExtendTarget:
    """Each token selects among one key too few."""

    return _target("nsa", _one_less("dsa_seqlens_expanded"))


def rows_by_accepted_tokens() -> DraftExtendTarget:
    """Tables and lengths have a row for each accepted token, where a row has all its places.

    As up to 0.5.14, whose servers captured no draft-extend on this backend (PR 29413).
    """

    def change(session: Any) -> None:
        def packed(batch: Any) -> None:
            counts = batch.spec_info.num_accept_tokens[: batch.batch_size].long()
            held = session.backend.decode_cuda_graph_metadata[batch.batch_size]
            width = len(held.dsa_seqlens_expanded) // batch.batch_size
            firsts = torch.arange(batch.batch_size, device=counts.device) * width
            rows = torch.repeat_interleave(firsts, counts)
            held.real_page_table[: len(rows)] = held.real_page_table[rows]

        _after_preparation(session, packed)

    return _target("nsa", change)
