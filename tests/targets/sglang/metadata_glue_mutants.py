"""Planted bugs of captured preparations, each of them the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.metadata_glue import BackendGlueSession, BackendGlueTarget
from fuzzgraph.targets.sglang.runners.base import RunnerDriver

_Plant = Callable[[Any], None]
"""Changes the engine's decode runner, right after its constructor."""


class _Planted(BackendGlueTarget):
    def __init__(self, plant: _Plant) -> None:
        super().__init__("sglang-fa3-glue", FA3, "decode")
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BackendGlueSession:
        plant = self._plant

        class Session(BackendGlueSession):
            def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
                driver = super()._open_runner(graphs)
                plant(driver._engine)
                return driver

        return Session(config, graphs, self.backend)


def _pages_up_to_the_hosts_longest(engine: Any) -> None:
    """Pages behind the longest row that the host knows of are cleared. Without such graphs it
    harms nothing."""
    prepare = engine.attn_backend.init_forward_metadata_out_graph

    def changed(view: Any, *given: Any, **named: Any) -> None:
        prepare(view, *given, **named)
        table = engine.attn_backend.forward_metadata.page_table
        table[:, int(view.seq_lens_cpu.max()) :] = 0

    engine.attn_backend.init_forward_metadata_out_graph = changed


def _rows_of_the_batch_itself(engine: Any) -> None:
    """The view has the batch's own request rows and not those of the static buffer."""
    with_view = engine._init_replay_attn_metadata_from_view
    prepare = engine.attn_backend.init_forward_metadata_out_graph
    rows: list[Any] = []

    def with_rows(forward_batch: Any, **named: Any) -> None:
        rows[:] = [forward_batch.req_pool_indices]
        with_view(forward_batch, **named)

    def changed(view: Any, *given: Any, **named: Any) -> None:
        if rows:  # none while the decode graphs are captured
            view.req_pool_indices = rows[0]
        prepare(view, *given, **named)

    engine._init_replay_attn_metadata_from_view = with_rows
    engine.attn_backend.init_forward_metadata_out_graph = changed


def _one_graph_for_all_sizes(engine: Any) -> None:
    """Preparations are told apart by mode alone."""
    engine._glue_key = lambda bs, mode, variant: (mode,)


def _a_captured_preparation_is_not_replayed(engine: Any) -> None:
    """Metadata is put in place, and stays what it was."""
    glue = engine._metadata_glue
    run = glue.run

    def changed(backend: Any, view: Any, key: Any) -> None:
        if glue._states.get(key, {}).get("graph") is None:
            run(backend, view, key)

    glue.run = changed


def pages_up_to_the_hosts_longest() -> _Planted:
    return _Planted(_pages_up_to_the_hosts_longest)


def rows_of_the_batch_itself() -> _Planted:
    return _Planted(_rows_of_the_batch_itself)


def one_graph_for_all_sizes() -> _Planted:
    return _Planted(_one_graph_for_all_sizes)


def a_captured_preparation_is_not_replayed() -> _Planted:
    return _Planted(_a_captured_preparation_is_not_replayed)
