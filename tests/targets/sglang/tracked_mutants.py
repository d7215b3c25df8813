"""Verifies and draft-extends with one line changed that says which states are kept; by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets.sglang.backends.draft_extend import DraftExtendTarget
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.backends.multi_layer import LayersTarget
from fuzzgraph.targets.sglang.forward_batch import committed_states
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DRAFT_EXTEND
from fuzzgraph.targets.sglang.runners.eagle_multi_layer import MULTI_LAYER
from tests.targets.sglang.changed_lines import (
    change_line,
    changed_function,
    replace_while_running,
)
from tests.targets.sglang.planted import with_changed_sessions

_GIVEN = "forward_batch.mamba_track_indices,"


def _verify(change: Callable[[Any], None]) -> DeltaNetTarget:
    return with_changed_sessions(DeltaNetTarget("sglang-gdn-verify", "target_verify"), change)


def _commits(other: str) -> DeltaNetTarget:
    """The scatter behind a verify, with a line behind its first."""

    def change(session: Any) -> None:
        line = "request_number = last_correct_step_indices.shape[0]"
        name = "update_mamba_state_after_mtp_verify"
        change_line(session.backend, name, line, f"{line}; mamba_track_indices = {other}")

    return _verify(change)


def _steps(other: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> DeltaNetTarget:
    """Other steps to keep than the kernel of 0.5.23 gives, by those that stay and its own."""

    def changed(prepare: Any) -> Any:
        def prepared(*given: Any, **named: Any) -> Any:
            lens, bonus, (last, tracked), rest = prepare(*given, **named)
            return lens, bonus, (last, other(last, tracked)), rest

        return prepared

    def change(session: Any) -> None:
        module = engine_module(committed_states.KERNELS)
        replace_while_running(session, module, "prepare_verify_commit_outputs", changed)

    return _verify(change)


def step_before_the_boundary() -> DeltaNetTarget:
    """The state that is kept lies a token before the boundary."""
    return _steps(lambda last, tracked: tracked - (tracked > 0).long())


def step_of_the_last_token() -> DeltaNetTarget:
    """The state that is kept is the last token's, wherever the boundary is."""
    return _steps(lambda last, tracked: torch.where(tracked < 0, tracked, last))


def every_row_is_kept() -> DeltaNetTarget:
    """Rows that cross no boundary keep the state behind their first token."""
    return _steps(lambda last, tracked: tracked.clamp(min=0))


def kept_where_a_neighbour_is() -> DeltaNetTarget:
    """States go to the slots of the row before."""
    return _commits("mamba_track_indices.roll(1)")


def nothing_is_kept() -> DeltaNetTarget:
    """The scatter is told of no slots."""
    return _commits("None")


def _extend(change: Callable[[Any], None]) -> DraftExtendTarget:
    target = DraftExtendTarget("sglang-triton-draft-extend", "triton")
    return with_changed_sessions(target, change)


def _layers(change: Callable[[Any], None]) -> LayersTarget:
    target = LayersTarget("sglang-triton-multi-layer", "triton")
    return with_changed_sessions(target, change)


def rows_of_requests_for_slots() -> DraftExtendTarget:
    """The runner copies rows of the request pool where slots of states are read."""
    other = "forward_batch.req_pool_indices,"
    return _extend(lambda session: change_line(session.runner._engine, "execute", _GIVEN, other))


def slots_stay() -> DraftExtendTarget:
    """The runner leaves the slots of the batch before."""
    other = "buffers.mamba_track_indices[:raw_bs],"
    return _extend(lambda session: change_line(session.runner._engine, "execute", _GIVEN, other))


def rows_of_requests_for_slots_of_layers() -> LayersTarget:
    """The same in the runner of several layers."""
    other = "forward_batch.req_pool_indices,"
    return _layers(lambda session: change_line(session.runner._all_steps, "prepare", _GIVEN, other))


def slots_stay_of_layers() -> LayersTarget:
    """The same in the runner of several layers."""
    other = "buffers.mamba_track_indices[:raw_bs],"
    return _layers(lambda session: change_line(session.runner._all_steps, "prepare", _GIVEN, other))


def _padded_rows(module: str) -> Callable[[Any], None]:
    """Slots behind the live rows stay those of the batch before."""

    def change(session: Any) -> None:
        replace_while_running(
            session,
            engine_module(module),
            "refresh_track_indices",
            lambda refresh: changed_function(refresh, "buffer[raw_bs:bs].zero_()"),
        )

    return change


def padded_rows_keep_slots() -> DraftExtendTarget:
    """Of EAGLE's draft-extend."""
    return _extend(_padded_rows(DRAFT_EXTEND.module))


def padded_rows_keep_slots_of_layers() -> LayersTarget:
    """Of the runner of several layers."""
    return _layers(_padded_rows(MULTI_LAYER.module))
