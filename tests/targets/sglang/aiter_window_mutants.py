"""sglang's AITER backend with its window mended, and planted bugs in that, each of one line."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.aiter import WindowTarget
from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession, BackendTarget
from fuzzgraph.world import Batch


class _Mended(BackendSession):
    """The kernel gets as many keys before the query's own as the layer says, and offsets of all the
    rows of a graph (reports/findings/sglang-aiter-unified-decode-qo-indptr.md)."""

    def _open_backend(self, runner: Any) -> Any:
        runner.model._others[0].attend.sliding_window_size += 1  # of which the backend takes one
        backend = super()._open_backend(runner)
        offsets = backend.qo_indptr_unified_decode
        count = 1 + max(len(offsets), *self._config.capture_bs)
        backend.qo_indptr_unified_decode = torch.arange(
            count, dtype=offsets.dtype, device=offsets.device
        )
        return backend


class _WindowOfAllKeys(_Mended):
    """The window layer sees all keys."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        runner.model._others[0].attend.sliding_window_size = 1 << 10
        return backend


class _OnePool(_Mended):
    """The window layer keeps its keys and values in the first layer's pool."""

    def _open_backend(self, runner: Any) -> Any:
        runner.token_to_kv_pool.layers_mapping[1] = runner.token_to_kv_pool.layers_mapping[0]
        return super()._open_backend(runner)


class _UntranslatedTable(_Mended):
    """The window layer's table names pages of the first layer's pool."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            self.backend.cuda_graph_swa_page_table.copy_(self.backend.cuda_graph_page_table)


class _TableOfTheFirstBatch(_Mended):
    """The window layer's table stays as the first batch of a session left it."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            table = self.backend.cuda_graph_swa_page_table
            self._first = getattr(self, "_first", table.clone())
            table.copy_(self._first)


class _UntranslatedVerify(_Mended):
    """The window layer's table of a verify names pages of the first layer's pool."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            held = self.backend.forward_metadata
            held.swa_page_table.copy_(held.kv_indices)


class _Planted(WindowTarget):
    def __init__(self, session: type[BackendSession], mode: Any = "decode") -> None:
        super().__init__("sglang-aiter-window", mode)
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BackendSession:
        return self._session(config, graphs, self.backend)


def mended() -> BackendTarget:
    return _Planted(_Mended)


def window_of_all_keys() -> BackendTarget:
    return _Planted(_WindowOfAllKeys)


def one_pool() -> BackendTarget:
    return _Planted(_OnePool)


def untranslated_table() -> BackendTarget:
    return _Planted(_UntranslatedTable)


def first_table() -> BackendTarget:
    return _Planted(_TableOfTheFirstBatch)


def mended_verify() -> BackendTarget:
    return _Planted(_Mended, "target_verify")


def untranslated_verify() -> BackendTarget:
    return _Planted(_UntranslatedVerify, "target_verify")
