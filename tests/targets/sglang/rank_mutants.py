"""Planted bugs of sglang's decode runner on one of several data-parallel ranks; opened by name."""

from __future__ import annotations

import itertools
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession
from fuzzgraph.targets.sglang.runners.decode_input_buffers import BufferSession, BufferTarget
from fuzzgraph.world import Batch
from tests.targets.sglang.planted import PlantedBackend


class _OwnSize(BufferSession):
    """A graph is chosen by this rank's rows alone."""

    def _open_runner(self, graphs: GraphEngine) -> Any:
        driver = super()._open_runner(graphs)
        driver._engine._max_dp_batch_size = lambda given: given.batch_size
        return driver


class _RawCounts(BufferSession):
    """Each rank counts with its own rows, where all of them replay as many."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if self._config.dp_size > 1 and not self.ran_eagerly:
            counts = self._last_batch.global_num_tokens_gpu
            self.runner.buffers.global_num_tokens_gpu.copy_(counts)


class _StaleCounts(BufferSession):
    """The counts of all ranks stay as the last capture left them."""

    def prepare_replay(self, batch: Batch) -> None:
        if self._config.dp_size == 1:
            super().prepare_replay(batch)
            return
        counts = self.runner.buffers.global_num_tokens_gpu
        before = counts.clone()
        super().prepare_replay(batch)
        counts.copy_(before)


class _CountOfAnotherRank(BufferSession):
    """The router is told the live tokens of the rank before this one."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if self._config.dp_size > 1 and not self.ran_eagerly:
            rows = batch.rank_sizes[self._config.dp_rank - 1]
            self.runner.buffers.num_token_non_padded.fill_(int(rows) * self.runner.width)


class _IdleKeepsInputs(BufferSession):
    """Without rows of its own a rank leaves its inputs as they are."""

    def _open_runner(self, graphs: GraphEngine) -> Any:
        driver = super()._open_runner(graphs)
        registry = driver._engine.buffer_registry
        fill = registry.fill_from

        def fill_unless_idle(given: Any, **sizes: Any) -> None:
            if given.batch_size:
                fill(given, **sizes)

        registry.fill_from = fill_unless_idle
        return driver


class _Planted(BufferTarget):
    def __init__(self, session: type[BufferSession]) -> None:
        super().__init__("sglang-buffers", "decode")
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BufferSession:
        return self._session(config, graphs)


def own_size() -> _Planted:
    return _Planted(_OwnSize)


def raw_counts() -> _Planted:
    return _Planted(_RawCounts)


def stale_counts() -> _Planted:
    return _Planted(_StaleCounts)


def count_of_another_rank() -> _Planted:
    return _Planted(_CountOfAnotherRank)


def idle_keeps_inputs() -> _Planted:
    return _Planted(_IdleKeepsInputs)


class _StrangersRow(BackendSession):
    """Without a graph, rows that pad the batch name the first request."""

    def _prepare_eagerly(self) -> None:
        rows = self._last_batch.req_pool_indices
        rows[self._live :] = rows[0]
        super()._prepare_eagerly()

    def _forward_eagerly(self) -> None:
        self._live = self._last_batch.batch_size
        super()._forward_eagerly()


class _StrangersSlot(_StrangersRow):
    """Without a graph, tokens that pad the batch are written to a slot of nobody."""

    def _prepare_eagerly(self) -> None:
        self._last_batch.out_cache_loc[self._live :] = 1
        BackendSession._prepare_eagerly(self)


class _PreparedUnpadded(BackendSession):
    """Without a graph, metadata is prepared before the batch is padded (sglang PR 17076, 27752)."""

    def _forward_eagerly(self) -> None:
        if self._last_batch.batch_size:
            self.backend.init_forward_metadata(self._last_batch)
        super()._forward_eagerly()

    def _prepare_eagerly(self) -> None: ...


class _NoiseForAnIdleRank(BackendSession):
    """Healthy: attention of an idle batch, which the engine leaves undefined, changes twice."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        forward, noise = backend.forward, itertools.count()

        def noisy(*args: Any, **kwargs: Any) -> Any:
            found = forward(*args, **kwargs)
            idle = next(each for each in args if hasattr(each, "forward_mode"))
            return found.fill_(next(noise) in (1, 2)) if idle.forward_mode.is_idle() else found

        backend.forward = noisy
        return backend


def strangers_row() -> PlantedBackend:
    return PlantedBackend(_StrangersRow)


def strangers_slot() -> PlantedBackend:
    return PlantedBackend(_StrangersSlot)


def prepared_unpadded() -> PlantedBackend:
    return PlantedBackend(_PreparedUnpadded)


def noise_for_an_idle_rank() -> PlantedBackend:
    return PlantedBackend(_NoiseForAnIdleRank)
