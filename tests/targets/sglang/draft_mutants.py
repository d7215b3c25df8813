"""EAGLE's draft runners with one bug in what goes to the draft model or to the worker.

Opened by name. Each is the released runner whose one call is changed, before graphs are captured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fuzzgraph.targets.sglang.attention_model import in_forward_context
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftTarget
from tests.targets.sglang.planted import with_changed_sessions

__all__ = [
    "chains_of_other_rows",
    "context_of_the_graphs_backend",
    "counts_of_a_row_too_many",
    "extend_takes_the_next_rows_token",
    "graphs_never_captured",
    "graphs_of_one_row_less",
    "logits_of_other_rows",
    "model_without_a_batch",
    "no_hidden_states_for_a_draft",
    "no_hidden_states_for_an_extend",
    "parents_of_a_step_before",
    "scores_of_a_step_behind",
    "window_slots_of_the_first_step",
]


def _target(kind: str, change: Callable[[Any], None]) -> DraftTarget:
    target = DraftTarget(f"sglang-eagle-{kind.replace('_', '-')}", kind)
    return with_changed_sessions(target, lambda session: change(session.runner._engine))


def _no_hidden_states(engine: Any) -> None:
    execute = engine.execute

    def forgetful(batch: Any, *more: Any) -> Any:
        batch.spec_info.hidden_states = torch.zeros_like(batch.spec_info.hidden_states)
        return execute(batch, *more)

    engine.execute = forgetful


def no_hidden_states_for_an_extend() -> DraftTarget:
    """The target's hidden states never reach the graph."""
    return _target("draft_extend", _no_hidden_states)


def no_hidden_states_for_a_draft() -> DraftTarget:
    """The hidden state that a draft starts from never reaches the graph."""
    return _target("draft", _no_hidden_states)


def extend_takes_the_next_rows_token() -> DraftTarget:
    """Another row's last accepted token is sampled from."""

    def change(engine: Any) -> None:
        execute = engine.execute
        engine.execute = lambda batch, select: execute(batch, select.roll(1))

    return _target("draft_extend", change)


def logits_of_other_rows() -> DraftTarget:
    """Hidden states are in order, logits are not."""

    def change(engine: Any) -> None:
        execute = engine.execute

        def mixed_up(batch: Any, *more: Any) -> Any:
            found = execute(batch, *more)
            found.next_token_logits = found.next_token_logits.roll(1, 0)
            return found

        engine.execute = mixed_up

    return _target("draft_extend", change)


def chains_of_other_rows() -> DraftTarget:
    """Each row is handed another row's draft."""

    def change(engine: Any) -> None:
        execute = engine.execute

        def mixed_up(batch: Any) -> Any:
            parents, scores, tokens, *more = execute(batch)
            return parents, scores, tokens.roll(1, 0), *more

        engine.execute = mixed_up

    return _target("draft", change)


def window_slots_of_the_first_step() -> DraftTarget:
    """Behind a window every step of a draft writes where the first one does."""

    def change(engine: Any) -> None:
        for backend in engine.draft_attn_backend.attn_backends:
            backend._get_swa_write_locations = partial(_of_the_first_step, backend)

    return _target("draft", change)


def _of_the_first_step(backend: Any, batch: Any) -> Any:
    step, backend.speculative_step_id = backend.speculative_step_id, 0
    try:
        return type(backend)._get_swa_write_locations(backend, batch)
    finally:
        backend.speculative_step_id = step


def _frozen_order(parents_off: int, scores_off: int) -> DraftTarget:
    def change(engine: Any) -> None:
        execute = engine.execute

        def mixed_up(batch: Any) -> Any:
            parents, scores, tokens, *more = execute(batch)
            return parents + parents_off, scores + scores_off, tokens, *more

        engine.execute = mixed_up

    return _target("frozen", change)


def parents_of_a_step_before() -> DraftTarget:
    """A draft on the target's KV hands out the parents of the step before."""
    return _frozen_order(-1, 0)


def scores_of_a_step_behind() -> DraftTarget:
    """It hands out the places of the tokens behind the drafted ones."""
    return _frozen_order(0, 1)


def _replays_another_graph(rows: int) -> DraftTarget:
    def change(engine: Any) -> None:
        key_of, replay = engine._make_graph_key, engine.backend.replay
        engine.backend.replay = lambda key, *more, **named: replay(
            key_of(key.size + rows), *more, **named
        )

    return _target("draft_extend", change)


def graphs_of_one_row_less() -> DraftTarget:
    """A graph is replayed that has a row less than the batch."""
    return _replays_another_graph(-1)


def graphs_never_captured() -> DraftTarget:
    """A graph is asked for that nobody captured."""
    return _replays_another_graph(100)


def model_without_a_batch() -> DraftTarget:
    """The model's forward is called without a batch."""

    def change(engine: Any) -> None:
        model = engine.model_runner.model
        forward = model.forward
        model.forward = lambda tokens, positions, _: forward(tokens, positions, None)

    return _target("draft_extend", change)


def context_of_the_graphs_backend() -> DraftTarget:
    """The forward's context names what captures, and no attention backend."""

    def change(engine: Any) -> None:
        model = engine.model_runner.model
        forward = model.forward

        def misled(tokens: Any, positions: Any, batch: Any) -> Any:
            with in_forward_context(engine.backend, batch):
                return forward(tokens, positions, batch)

        model.forward = misled

    return _target("draft_extend", change)


def counts_of_a_row_too_many() -> DraftTarget:
    """A graph is captured with counts of accepted drafts of a row more than it has."""

    def change(engine: Any) -> None:
        backend = engine.draft_extend_attn_backend
        prepare = backend.init_forward_metadata_out_graph

        def longer(batch: Any, in_capture: bool = False) -> Any:
            counts = batch.spec_info.num_correct_drafts
            if in_capture:
                batch.spec_info.num_correct_drafts = torch.cat((counts, counts[:1]))
            found = prepare(batch, in_capture=in_capture)
            batch.spec_info.num_correct_drafts = counts
            return found

        backend.init_forward_metadata_out_graph = longer

    return _target("draft_extend", change)
