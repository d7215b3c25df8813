"""Planted bugs of DFLASH's verify and commit, each of them the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.dflash_verify import BlockVerifySession, BlockVerifyTarget
from tests.targets.sglang.changed_lines import change_line_elsewhere

_Plant = Callable[[Any, Any], None]
"""Changes the engine's worker and its decode runner, right after their constructors."""


class _Planted(BlockVerifyTarget):
    def __init__(self, plant: _Plant, backend: str = "fa3") -> None:
        super().__init__(f"sglang-dflash-verify-{backend}", backend)
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BlockVerifySession:
        plant = self._plant

        class Session(BlockVerifySession):
            def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
                driver = super()._open_runner(graphs)
                plant(self._worker.engine, driver._engine)
                return driver

        return Session(config, graphs, self.backend)


def _append_with(worker: Any, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes what the worker commits by."""
    append = worker._append_target_hidden_to_draft_kv_by_loc

    def changed(**named: Any) -> None:
        change(named)
        append(**named)

    worker._append_target_hidden_to_draft_kv_by_loc = changed


def _one_token_less_is_committed(worker: Any, engine: Any) -> None:
    """The tokens that stay are counted without the block's first."""
    _append_with(worker, lambda named: named.update(commit_lens=named["commit_lens"] - 1))


def _rejected_drafts_are_committed(worker: Any, engine: Any) -> None:
    """All tokens of a block are committed, whatever the target model has said."""

    def whole(named: dict[str, Any]) -> None:
        named["commit_lens"] = named["commit_lens"] * 0 + worker.block_size

    _append_with(worker, whole)


def _places_from_the_first_draft_on(worker: Any, engine: Any) -> None:
    """Keys of committed tokens are rotated for the next place."""
    _append_with(worker, lambda named: named.update(positions=named["positions"] + 1))


def _slots_of_the_row_before(worker: Any, engine: Any) -> None:
    """Hidden states go to another row's slots."""
    _append_with(
        worker, lambda named: named.update(cache_loc_2d=named["cache_loc_2d"].roll(1, dims=0))
    )


def _slots_behind_the_block(worker: Any, engine: Any) -> None:
    """Hidden states go to the slots behind those of their tokens."""
    _append_with(worker, lambda named: named.update(cache_loc_2d=named["cache_loc_2d"] + 1))


def _hidden_states_of_the_token_before(worker: Any, engine: Any) -> None:
    """Each token is committed with the hidden state of the one before it."""
    _append_with(
        worker, lambda named: named.update(target_hidden=named["target_hidden"].roll(1, dims=0))
    )


def _next_draft_begins_with_an_accepted_one(worker: Any, engine: Any) -> None:
    """The next block begins with the token before the one that follows."""
    make = worker._make_next_draft_input_decode

    def changed(*, bonus_tokens: Any, new_seq_lens: Any) -> Any:
        return make(bonus_tokens=bonus_tokens.roll(1), new_seq_lens=new_seq_lens)

    worker._make_next_draft_input_decode = changed


def _outputs_end_with_the_padded_rows(worker: Any, engine: Any) -> None:
    """What a graph gives is cut off at the wrong end."""
    replay = engine.backend.replay

    def changed(*given: Any) -> Any:
        found = replay(*given)
        return type(found)(
            next_token_logits=found.next_token_logits.flip(0), hidden_states=found.hidden_states
        )

    engine.backend.replay = changed


def _tokens_of_the_verify_before(worker: Any, engine: Any) -> None:
    """A verify computes the tokens of the first block that its graph was replayed on."""
    load, first = engine.load_batch, []

    def changed(forward_batch: Any, *given: Any, **named: Any) -> None:
        load(forward_batch, *given, **named)
        first.append(engine.buffers.input_ids.clone())
        engine.buffers.input_ids.copy_(first[0])

    engine.load_batch = changed


def one_token_less_is_committed() -> _Planted:
    return _Planted(_one_token_less_is_committed)


def rejected_drafts_are_committed() -> _Planted:
    return _Planted(_rejected_drafts_are_committed)


def places_from_the_first_draft_on() -> _Planted:
    return _Planted(_places_from_the_first_draft_on)


def slots_of_the_row_before() -> _Planted:
    return _Planted(_slots_of_the_row_before)


def slots_behind_the_block() -> _Planted:
    return _Planted(_slots_behind_the_block)


def hidden_states_of_the_token_before() -> _Planted:
    return _Planted(_hidden_states_of_the_token_before)


def next_draft_begins_with_an_accepted_one() -> _Planted:
    return _Planted(_next_draft_begins_with_an_accepted_one)


def outputs_end_with_the_padded_rows() -> _Planted:
    return _Planted(_outputs_end_with_the_padded_rows)


def tokens_of_the_verify_before() -> _Planted:
    return _Planted(_tokens_of_the_verify_before, "triton")


_WORKER = "sglang.srt.speculative.dflash_worker_v2:DFlashWorkerV2"


class _Changed(BlockVerifyTarget):
    """One line of the worker is another."""

    def __init__(self, name: str, line: str, other: str, backend: str = "fa3") -> None:
        super().__init__(f"sglang-dflash-verify-{backend}", backend)
        self._change = {"name": name, "line": line, "other": other}

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BlockVerifySession:
        session = BlockVerifySession(config, graphs, self.backend)
        change_line_elsewhere(session, _WORKER, **self._change)
        return session


def windows_are_put_into_the_targets_map() -> _Changed:
    """The page map of the window is written where that of the target model lies."""
    line = "draft_req_to_token=self.draft_model_runner.req_to_token_pool.req_to_token,"
    other = "draft_req_to_token=self.model_runner.req_to_token_pool.req_to_token,"
    return _Changed("_rebuild_compact_draft_cache", line, other)


def lengths_go_on_from_the_window() -> _Changed:
    """Behind the verify, lengths are those that the window has left."""
    line = "prefix_lens=prefix_lens,\n        bs=bs,\n        target_predict"
    other = "prefix_lens=draft_seq_lens,\n        bs=bs,\n        target_predict"
    return _Changed("forward_batch_generation", line, other)


def tables_end_before_the_block() -> _Changed:
    """Tables of physical pages have those of the past alone."""
    line = "write_virtual=verify_out_cache_loc,\n        read_extent=block_size,"
    other = "write_virtual=verify_out_cache_loc,\n        read_extent=0,"
    return _Changed("forward_batch_generation", line, other)
