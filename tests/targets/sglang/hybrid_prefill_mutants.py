"""Planted bugs of hybrid models' prefills, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.runners.hybrid_prefill import (
    DeltaNetPrefillSession,
    DeltaNetPrefillTarget,
    FlatGatesPrefillTarget,
)
from fuzzgraph.targets.sglang.stubs import hybrid_pools, model_runner
from tests.targets.sglang.planted import with_changed_sessions

Change = Callable[[Any], None]
"""What becomes of the recurrent backend of an opened session."""


def _planted(kind: type[DeltaNetPrefillTarget], name: str, change: Change) -> DeltaNetPrefillTarget:
    target = kind(name)
    return with_changed_sessions(
        target, lambda session: change(session.backend.linear_attn_backend)
    )


def _delta_net(change: Change) -> DeltaNetPrefillTarget:
    return _planted(DeltaNetPrefillTarget, "sglang-gdn-prefill", change)


def _in_graph(change: Change) -> DeltaNetPrefillTarget:
    return _planted(FlatGatesPrefillTarget, "sglang-kda-glm-prefill", change)


def _around_kernel(recurrent: Any, name: str, wrap: Callable[..., Any]) -> None:
    """Puts a function around one of the backend's kernels."""
    kernels = recurrent.kernel_dispatcher
    kernel = getattr(kernels, name)
    setattr(kernels, name, lambda *args, **kwargs: wrap(kernel, *args, **kwargs))


def inputs_in_float32() -> DeltaNetPrefillTarget:
    """The convolution keeps its inputs in another dtype than the model computes in."""
    target = DeltaNetPrefillTarget("sglang-gdn-prefill")
    open_session, state_pool = target.open_session, hybrid_pools.state_pool

    def wide_pool(config: EngineConfig, *rest: Any) -> Any:
        return state_pool(msgspec.structs.replace(config, dtype="float32"), *rest)

    def open_wide(config: EngineConfig, graphs: Any) -> DeltaNetPrefillSession:
        with patch.object(model_runner, "state_pool", wide_pool):
            return open_session(config, graphs)

    target.open_session = open_wide  # type: ignore[method-assign]
    return target


def states_not_written() -> DeltaNetPrefillTarget:
    """The state behind a prompt is not put back into its slot."""

    def change(recurrent: Any) -> None:
        kernel = recurrent.kernel_dispatcher.extend_kernel
        _around_kernel(
            recurrent,
            "extend",
            lambda _, *args, **kwargs: kernel.extend(*args, **kwargs, inplace_update=False),
        )

    return _delta_net(change)


def past_of_the_convolution_lost() -> DeltaNetPrefillTarget:
    """No row is said to have inputs of the convolution from before."""

    def change(recurrent: Any) -> None:
        convolve = recurrent._convolve_prefill

        def forgetting(layer: Any, forward_batch: Any, *args: Any) -> Any:
            before = forward_batch.extend_prefix_lens
            forward_batch.extend_prefix_lens = torch.zeros_like(before)
            try:
                return convolve(layer, forward_batch, *args)
            finally:
                forward_batch.extend_prefix_lens = before

        recurrent._convolve_prefill = forgetting

    return _delta_net(change)


def slots_of_the_first_rows() -> DeltaNetPrefillTarget:
    """Rows are taken for slots."""

    def change(recurrent: Any) -> None:
        pool = recurrent.req_to_token_pool
        pool.get_mamba_indices = lambda rows: rows.to(torch.int32)

    return _delta_net(change)


def gates_of_the_token_before() -> DeltaNetPrefillTarget:
    """Each token is forgotten as the one before it should be."""

    def change(recurrent: Any) -> None:
        _around_kernel(
            recurrent,
            "extend",
            lambda extend, *args, g, **kwargs: extend(*args, g=g.roll(1, 1), **kwargs),
        )

    return _delta_net(change)


def tables_made_once() -> DeltaNetPrefillTarget:
    """Tables of a graph stay as the capture left them."""

    def change(recurrent: Any) -> None:
        def keep(meta: Any, forward_batch: Any) -> None:
            recurrent.prefill_graph_metadata = meta

        recurrent.refresh_prefill_graph_metadata = keep

    return _in_graph(change)


def _refreshed(then: Callable[[Any, int], None]) -> DeltaNetPrefillTarget:
    """The target that changes a graph's tables behind each refresh, given the number of rows."""

    def change(recurrent: Any) -> None:
        refresh = recurrent.refresh_prefill_graph_metadata

        def refresh_and_change(meta: Any, forward_batch: Any) -> None:
            refresh(meta, forward_batch)
            then(meta, forward_batch.batch_size)

        recurrent.refresh_prefill_graph_metadata = refresh_and_change

    return _in_graph(change)


def no_row_has_a_past() -> DeltaNetPrefillTarget:
    """Inputs of the convolution from before are not read."""
    return _refreshed(lambda meta, rows: meta.has_initial_state.fill_(False))


def slots_in_another_order() -> DeltaNetPrefillTarget:
    """Slots of the rows are written the other way round."""

    def turn(meta: Any, rows: int) -> None:
        meta.cache_indices[:rows] = meta.cache_indices[:rows].flip(0)

    return _refreshed(turn)


def one_token_fewer() -> DeltaNetPrefillTarget:
    """The last token of a batch counts as padding."""
    return _refreshed(lambda meta, rows: meta.num_logical_tokens.sub_(1))


def offsets_one_row_late() -> DeltaNetPrefillTarget:
    """Chunks of a row are looked up behind those of the next."""
    return _refreshed(lambda meta, rows: meta.chunk_offsets[1:].sub_(1))


def _prepared(then: Callable[[Any], None]) -> DeltaNetPrefillTarget:
    """The target whose metadata is changed once a batch of prompts is prepared."""

    def change(recurrent: Any) -> None:
        prepare = recurrent.init_forward_metadata

        def prepare_and_change(forward_batch: Any) -> None:
            prepare(forward_batch)
            if recurrent.forward_metadata.has_mamba_track_mask:
                then(recurrent.forward_metadata)

        recurrent.init_forward_metadata = prepare_and_change

    return _delta_net(change)


def state_of_the_chunk_before_kept() -> DeltaNetPrefillTarget:
    """Where a prompt goes on behind its last whole chunk, the state of the one before is kept."""

    def change(metadata: Any) -> None:
        metadata.track_ssm_h_src = metadata.track_ssm_h_src - 1

    return _prepared(change)


def state_of_the_last_whole_chunk_kept() -> DeltaNetPrefillTarget:
    """Where another prompt's prefix ends a chunk before the last, the state of the last is kept."""

    def change(metadata: Any) -> None:
        metadata.track_ssm_h_src = metadata.track_ssm_h_src + 1

    return _prepared(change)


def inputs_kept_one_token_late() -> DeltaNetPrefillTarget:
    """The kept inputs of the convolution end one token behind the kept state."""

    def change(metadata: Any) -> None:
        metadata.track_conv_indices = metadata.track_conv_indices + 1

    return _prepared(change)


def nothing_kept_where_a_prompt_ends_with_a_chunk() -> DeltaNetPrefillTarget:
    """The state behind a prompt's last token is not copied."""

    def change(metadata: Any) -> None:
        metadata.track_ssm_final_src = metadata.track_ssm_final_src[:0]
        metadata.track_ssm_final_dst = metadata.track_ssm_final_dst[:0]

    return _prepared(change)


def kept_in_the_next_slot() -> DeltaNetPrefillTarget:
    """Kept states lie one slot behind those that the prefix cache will name."""

    def change(metadata: Any) -> None:
        metadata.track_ssm_h_dst = metadata.track_ssm_h_dst + 1

    return _prepared(change)
