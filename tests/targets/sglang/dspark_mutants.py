"""Planted bugs of DSpark's drafts, verify and commit, each the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.dspark import DSparkDraftSession, DSparkDraftTarget
from fuzzgraph.targets.sglang.runners.dspark_verify import DSparkVerifySession, DSparkVerifyTarget

_Plant = Callable[[Any, Any], None]
"""Changes the engine's worker and its decode runner, right after their constructors."""
_Change = Callable[[dict[str, Any]], None]
"""Changes the named arguments of a call."""


class _Drafts(DSparkDraftTarget):
    def __init__(self, plant: _Plant, backend: str = "flashinfer") -> None:
        super().__init__(f"sglang-dspark-draft-{backend}", backend)
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DSparkDraftSession:
        plant = self._plant

        class Session(DSparkDraftSession):
            def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
                driver = super()._open_runner(graphs)
                plant(self._worker.engine, driver._engine)
                return driver

        return Session(config, graphs, self.backend)


class _Verifies(DSparkVerifyTarget):
    def __init__(self, plant: _Plant, backend: str = "fa3") -> None:
        super().__init__(f"sglang-dspark-verify-{backend}", backend)
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DSparkVerifySession:
        plant = self._plant

        class Session(DSparkVerifySession):
            def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
                driver = super()._open_runner(graphs)
                plant(self._worker.engine, driver._engine)
                return driver

        return Session(config, graphs, self.backend)


def _calls_with(holder: Any, name: str, change: _Change) -> None:
    """Changes what a method of the engine is called with."""
    method = getattr(holder, name)

    def changed(**named: Any) -> Any:
        change(named)
        return method(**named)

    setattr(holder, name, changed)


def _commits_with(change: _Change) -> _Verifies:
    return _Verifies(lambda worker, _: _calls_with(worker._kv_injector, "_inject", change))


def one_token_less_is_committed() -> _Verifies:
    """The tokens that stay are counted without the block's first."""
    return _commits_with(lambda named: named.update(commit_lens=named["commit_lens"] - 1))


def rejected_drafts_are_committed() -> _Verifies:
    """All tokens of a block are committed, whatever the target model has said."""
    return _commits_with(lambda named: named.update(commit_lens=named["commit_lens"] * 0 + 4))


def places_from_the_first_draft_on() -> _Verifies:
    """Keys of committed tokens are rotated for the next place."""
    return _commits_with(lambda named: named.update(positions=named["positions"] + 1))


def slots_of_the_row_before() -> _Verifies:
    """Hidden states go to another row's slots."""
    return _commits_with(
        lambda named: named.update(cache_loc_2d=named["cache_loc_2d"].roll(1, dims=0))
    )


def slots_behind_the_block() -> _Verifies:
    """Hidden states go to the slots behind those of their tokens."""
    return _commits_with(lambda named: named.update(cache_loc_2d=named["cache_loc_2d"] + 1))


def hidden_states_of_the_token_before() -> _Verifies:
    """Each token is committed with the hidden state of the one before it."""
    return _commits_with(
        lambda named: named.update(target_hidden=named["target_hidden"].roll(1, dims=0))
    )


def _accepts(change: Callable[[Any], Any]) -> _Verifies:
    """Changes what accepting gives."""

    def plant(worker: Any, _: Any) -> None:
        executor = worker._verify_executor
        accept = executor.accept_and_finalize
        executor.accept_and_finalize = lambda **named: change(accept(**named))

    return _Verifies(plant)


def next_draft_begins_with_another_rows_token() -> _Verifies:
    """The next block begins with the token that follows in the row before."""
    return _accepts(lambda found: msgspec.structs.replace(found, bonus=found.bonus.roll(1)))


def lengths_without_the_token_that_follows() -> _Verifies:
    """What is published are the lengths with the drafts alone."""
    return _accepts(
        lambda found: msgspec.structs.replace(found, new_seq_lens=found.new_seq_lens - 1)
    )


def tokens_of_the_verify_before() -> _Verifies:
    """A verify computes the tokens of the first block that its graph was replayed on."""

    def plant(_: Any, engine: Any) -> None:
        load, first = engine.load_batch, []

        def changed(forward_batch: Any, *given: Any, **named: Any) -> None:
            load(forward_batch, *given, **named)
            first.append(engine.buffers.input_ids.clone())
            engine.buffers.input_ids.copy_(first[0])

        engine.load_batch = changed

    return _Verifies(plant, "triton")


def _samples_with(change: Callable[[Any], Any]) -> _Drafts:
    """Changes the hidden states that the graph's sampler is given."""

    def plant(worker: Any, _: Any) -> None:
        sampler = type(worker._draft_sampler)

        class Changed(sampler):  # type: ignore[misc, valid-type]
            def __call__(self, hidden_states: Any, input_ids: Any) -> None:
                super().__call__(change(hidden_states), input_ids)

        worker._draft_sampler.__class__ = Changed

    return _Drafts(plant)


def drafts_of_the_places_before() -> _Drafts:
    """The sampler takes each place's hidden state from the one before it."""
    return _samples_with(lambda hidden: hidden.roll(1, dims=0))


def drafts_of_live_rows_lie_behind_padded_ones() -> _Drafts:
    """The sampler goes through the rows of a graph from its end."""
    return _samples_with(lambda hidden: hidden.flip(0))


def _corrects_by(change: Callable[[Any, list[Any]], Any]) -> _Drafts:
    """Changes the tokens by which the Markov head corrects logits."""

    def plant(worker: Any, _: Any) -> None:
        head, seen = worker.draft_model.markov_head, []
        correct = head.step_bias

        def changed(prev_tokens: Any, **named: Any) -> Any:
            seen.append(prev_tokens)
            return correct(change(prev_tokens, seen), **named)

        head.step_bias = changed

    return _Drafts(plant)


def drafts_are_corrected_by_another_row() -> _Drafts:
    """Logits of a row are corrected by the token of the row before."""
    return _corrects_by(lambda tokens, _: tokens.roll(1))


def drafts_are_corrected_by_token_zero() -> _Drafts:
    """Logits are corrected as if no token stood before them."""
    return _corrects_by(lambda tokens, _: tokens * 0)


def _drafts_with(change: _Change) -> _Drafts:
    return _Drafts(lambda worker, _: _calls_with(worker._proposer, "_run_forward", change))


def blocks_begin_with_another_rows_token() -> _Drafts:
    """A block begins with the token of the row before."""

    def change(named: dict[str, Any]) -> None:
        named["draft_input"].bonus_tokens = named["draft_input"].bonus_tokens.roll(1)

    return _drafts_with(change)


def places_of_a_block_begin_behind_its_first() -> _Drafts:
    """Places of a block are those of the tokens that it drafts."""

    def change(named: dict[str, Any]) -> None:
        window = named["verify_window"]
        named["verify_window"] = msgspec.structs.replace(
            window, positions_2d=window.positions_2d + 1
        )

    return _drafts_with(change)
