"""Draft-extends of several layers with one bug in the engine's code; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets.sglang.backends.multi_layer import LayersTarget
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.eagle_multi_layer import MULTI_LAYER
from tests.targets.sglang.changed_lines import (
    change_line,
    changed_method,
    replace_while_running,
)
from tests.targets.sglang.planted import with_changed_sessions

_FLASH_ATTENTION = "sglang.srt.layers.attention.flashattention_backend"


def _target(change: Callable[[Any], None], backend: str = "fa3") -> LayersTarget:
    target = LayersTarget("sglang-multi-layer-draft-extend", backend)
    return with_changed_sessions(target, change)


def window_table_not_stored() -> LayersTarget:
    """The kernel in the graph leaves the window's page table as it is."""

    def change(session: Any) -> None:
        def without(prepare: Any) -> Any:
            def prepared(**given: Any) -> None:
                table = given["swa_page_table"]
                prepare(**{**given, "swa_page_table": None if table is None else table.clone()})

            return prepared

        module = engine_module(_FLASH_ATTENTION)
        replace_while_running(session, module, "draft_extend_set_metadata", without)

    return _target(change)


def tokens_not_moved_on() -> LayersTarget:
    """Each layer takes the tokens of the first one."""

    def change(session: Any) -> None:
        module = engine_module(MULTI_LAYER.module)
        replace_while_running(session, module, "rotate_input_ids", lambda _: lambda *_: None)

    return _target(change)


def token_behind_the_last() -> LayersTarget:
    """The accepted tokens are counted where the drafts among them are."""

    def change(session: Any) -> None:
        counted = "forward_batch.spec_info.num_correct_drafts,"
        other = "forward_batch.spec_info.num_accept_tokens,"
        change_line(session.runner._all_steps, "prepare", counted, other)

    return _target(change)


def keys_of_the_first_layer() -> LayersTarget:
    """The second layer's backend has the first one's pool."""

    def change(session: Any) -> None:
        first, second = session._layers[:2]
        second.backend.token_to_kv_pool = first.backend.token_to_kv_pool

    return _target(change, "triton")


def hidden_states_not_handed_on() -> LayersTarget:
    """A layer is given the target model's hidden states in the place of the layer's before it."""

    def change(session: Any) -> None:
        session.worker.chain_mtp_hidden_states = False

    return _target(change)


def lengths_of_the_step_before() -> LayersTarget:
    """A later layer's backend on Triton prepares for the lengths of the batch before."""

    def change(session: Any) -> None:
        backend = session._layers[1].backend
        prepare, before = backend.init_forward_metadata_out_graph, [torch.empty(0)]

        def prepared(batch: Any, in_capture: bool = False) -> None:
            lens, kept = batch.seq_lens, batch.seq_lens.clone()
            if len(before[0]) == len(lens) and not in_capture:
                lens.copy_(before[0])
            before[0] = kept
            prepare(batch, in_capture=in_capture)
            lens.copy_(kept)

        backend.init_forward_metadata_out_graph = prepared

    return _target(change, "triton")


def token_before_the_last() -> LayersTarget:
    """Up to 0.5.14: a graph predicts from the token before the last accepted one."""

    def change(session: Any) -> None:
        runner = getattr(engine_module(MULTI_LAYER.module), MULTI_LAYER.runner)
        line, name = "+ buffers.num_correct_drafts[:bs]\n", "capture_one_batch_size"
        changed = changed_method(runner, name, line, "\n")
        replace_while_running(session, runner, name, lambda _: changed)

    return _target(change)
