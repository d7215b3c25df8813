"""Full prefill graphs whose engine has one line changed, and a watched one; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.full_prefill import FullPrefillSession, FullPrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import FULL
from fuzzgraph.world import Batch
from tests.targets.sglang.changed_lines import change_line

_BACKEND = "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend"
Plant = Callable[[FullPrefillSession], None]


class Planted(FullPrefillTarget):
    def __init__(self, plant: Plant) -> None:
        super().__init__("sglang-full-prefill")
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> FullPrefillSession:
        return PlantedSession(config, graphs, self._plant)


class PlantedSession(FullPrefillSession):
    """Changed once its graphs are captured."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, plant: Plant) -> None:
        super().__init__(config, graphs, FULL)
        self.graphs, self._plant = graphs, plant

    def capture(self) -> None:
        super().capture()
        self._plant(self)


def _in_load_batch(session: FullPrefillSession, line: str, other: str = "pass") -> None:
    engine = session.runner._engine
    change_line(engine, "load_batch", line, other)
    prepare = engine.load_batch

    def noted(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(*args, **kwargs)
        session.runner.prepared = prepared[0] if isinstance(prepared, tuple) else prepared
        return prepared

    engine.load_batch = noted


def keeps_lengths() -> FullPrefillTarget:
    """Lengths of slots behind the requests are not cleared."""
    line = 's["seq_lens"][bs:r].zero_()'
    return Planted(lambda session: _in_load_batch(session, line))


def keeps_rows() -> FullPrefillTarget:
    """Slots behind the requests name the rows of earlier ones."""
    line = 's["req_pool_indices"][bs:r].zero_()'
    return Planted(lambda session: _in_load_batch(session, line))


def hands_out_no_logits() -> FullPrefillTarget:
    """Logits are cut to no request."""
    return Planted(lambda session: _in_load_batch(session, "self.raw_bs = bs"))


def keeps_prefixes() -> FullPrefillTarget:
    """What live requests had cached is not refreshed."""
    line = 's["extend_prefix_lens"][:bs].copy_(forward_batch.extend_prefix_lens)'
    return Planted(lambda session: _in_load_batch(session, line))


def _in_metadata(line: str, other: str = "pass") -> FullPrefillTarget:
    name = "_init_full_cg_prefill_metadata"
    return Planted(lambda session: change_line(session.backend, name, line, other))


def welds_queries_to_keys() -> FullPrefillTarget:
    """Offsets of queries are those of keys."""
    return _in_metadata(
        "torch.cumsum(forward_batch.extend_seq_lens[:bs], dim=0)", "m.cu_seqlens_k[1:]"
    )


def rounds_pages_down() -> FullPrefillTarget:
    """The last page of the longest row is left out of the table."""
    return _in_metadata(
        "(max_seq_len_k + self.page_size - 1) // self.page_size", "max_seq_len_k // self.page_size"
    )


def keeps_window_slots() -> FullPrefillTarget:
    """Padded tokens write their keys behind the window where an earlier batch wrote."""
    return _in_metadata("self.full_cg_prefill_swa_out_cache_loc[num_out:].zero_()")


def replays_nothing() -> FullPrefillTarget:
    """Outputs of the last replay are handed out again."""
    return Planted(
        lambda session: change_line(
            session.runner._engine.backend, "replay", "self._graphs[shape_key].replay()"
        )
    )


class _PoolForEachGraph(FullPrefillSession):
    """Changed before its graphs are captured."""

    def capture(self) -> None:
        backend = engine_module(_BACKEND)
        asked = {"get_or_create_global_graph_memory_pool": lambda device: None}
        with replaced_names([backend], asked):
            super().capture()


def has_a_pool_for_each_graph() -> FullPrefillTarget:
    """Graphs are not captured into the pool that all share."""

    class Target(FullPrefillTarget):
        def open_session(self, config: EngineConfig, graphs: GraphEngine) -> FullPrefillSession:
            return _PoolForEachGraph(config, graphs, FULL)

    return Target("sglang-full-prefill")


def keeps_count() -> FullPrefillTarget:
    """The count of live tokens stays that of the captures."""

    def plant(session: FullPrefillSession) -> None:
        registry = session.runner._engine.buffer_registry
        change_line(registry, "fill_from", "slot.post_fill(slot.buffer, forward_batch, ctx)")

    return Planted(plant)


def watched() -> FullPrefillTarget:
    """Fails where a replay is not one graph behind the engine's own preparation."""

    def plant(session: FullPrefillSession) -> None:
        graphs: Any = session.graphs  # type: ignore[attr-defined]
        replay, load = session.replay, session.runner._engine.load_batch
        padded: list[int] = []

        def note(forward_batch: Any, **more: Any) -> Any:
            padded.append(len(forward_batch.input_ids))
            return load(forward_batch, **more)

        def checked(batch: Batch) -> None:
            padded.clear()
            before = len(graphs.replayed)
            replay(batch)
            assert session.ran_eagerly or padded == [batch.num_tokens], (
                "the engine prepared nothing"
            )
            assert len(graphs.replayed) - before == (not session.ran_eagerly), "not one graph"

        session.runner._engine.load_batch = note
        session.replay = checked  # type: ignore[method-assign]

    return Planted(plant)
