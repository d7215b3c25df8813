"""Planted bugs of sglang with a second KV pool, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession, BackendTarget
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from fuzzgraph.world import Batch
from tests.targets.sglang.planted import PlantedBackend


class _StaleSlots(BackendSession):
    """What is behind a batch's tokens keeps the write slots of the last batch (sglang PR 24743)."""

    def prepare_replay(self, batch: Batch) -> None:
        slots = self.backend.cuda_graph_swa_out_cache_loc
        before = slots.clone()
        super().prepare_replay(batch)
        slots[batch.num_tokens :] = before[batch.num_tokens :]


class _OnePool(BackendSession):
    """The window layer keeps its keys and values in the first layer's pool."""

    def _open_backend(self, runner: Any) -> Any:
        runner.token_to_kv_pool.layers_mapping[1] = runner.token_to_kv_pool.layers_mapping[0]
        return super()._open_backend(runner)


class _ShortWindow(BackendSession):
    """The window of w tokens is taken for one of w - 1."""

    def _open_backend(self, runner: Any) -> Any:
        runner.model._others[0].attend.sliding_window_size -= 1
        return super()._open_backend(runner)


class _ShortList(BackendSession):
    """Decodes list one key of the window too few, as the Triton backend's do (sglang PR 32087)."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        backend.indices_updater_decode.sliding_window_size -= 1
        return backend


def stale_slots() -> BackendTarget:
    return PlantedBackend(_StaleSlots)


def one_pool() -> BackendTarget:
    return PlantedBackend(_OnePool)


def short_list() -> BackendTarget:
    return PlantedBackend(_ShortList, FLASHINFER)


def short_window() -> BackendTarget:
    return PlantedBackend(_ShortWindow)


def stale_slots_of_a_verify() -> BackendTarget:
    return PlantedBackend(_StaleSlots, mode="target_verify")


def one_pool_of_a_verify() -> BackendTarget:
    return PlantedBackend(_OnePool, mode="target_verify")


class _UntranslatedTable(BackendSession):
    """The window layer's table names pages of the first layer's pool."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        held = self.backend.target_verify_metadata[self.runner.padded_bs]
        held.swa_page_table.copy_(held.page_table)


def untranslated_table_of_a_verify() -> BackendTarget:
    return PlantedBackend(_UntranslatedTable, mode="target_verify")
