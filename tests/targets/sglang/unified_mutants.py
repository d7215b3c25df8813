"""Planted bugs of sglang's unified KV pool, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    BackendSession,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from fuzzgraph.targets.sglang.release import engine_module

Change = Callable[[Any, Any], None]
"""What is done to (the engine's translator, its allocator) before its backend opens."""


def _kinds() -> Any:
    return engine_module("sglang.srt.mem_cache.kv_loc_plan").IdSpaceKind


def _becomes(translator: Any, kind: Any, **fields: Any) -> None:
    space = translator._spaces[kind]
    translator._spaces[kind] = msgspec.structs.replace(space, **fields)


def _raw_reads(translator: Any, allocator: Any) -> None:
    """Lists and tables hold virtual pages."""
    table = allocator.full_v2p_page_table
    pages = torch.arange(len(table), device=table.device)
    _becomes(translator, _kinds().FULL, read_v2p=pages)


def _raw_writes(translator: Any, allocator: Any) -> None:
    """New keys and values go to virtual slots."""
    _becomes(translator, _kinds().FULL, write=lambda ids: ids)


def _window_reads_by_the_other_table(translator: Any, allocator: Any) -> None:
    """The window layer reads pages of the layer that sees all keys."""
    _becomes(translator, _kinds().SLIDING_WINDOW, read_v2p=allocator.full_v2p_page_table)


def _window_writes_by_the_other_table(translator: Any, allocator: Any) -> None:
    """The window layer writes to pages of the layer that sees all keys."""
    _becomes(translator, _kinds().SLIDING_WINDOW, write=allocator.translate_kv_loc)


def _kept_plan(translator: Any, allocator: Any) -> None:
    """The first plan of reads is every batch's: its table is built once for each request row."""
    made: dict[tuple[int, ...], Any] = {}
    build = translator.build_iteration_table

    def once(plan: Any, space: Any, *, rows: Any, previous: Any, into: Any = None) -> Any:
        key = (*plan.req_pool_indices.tolist(), rows or 0, id(space))
        if key not in made:
            made[key] = build(plan, space, rows=rows, previous=previous)
        return made[key]

    translator.build_iteration_table = once


def _no_offsets(translator: Any, allocator: Any) -> None:
    """New keys and values go to the first slot of their page."""
    size, table = translator.page_size, allocator.full_v2p_page_table
    _becomes(translator, _kinds().FULL, write=lambda ids: table[ids // size] * size)


def _short_extent(translator: Any, allocator: Any) -> None:
    """Tables of a verify end with its past: they lack the pages of its drafts."""
    plan = translator.plan
    translator.plan = lambda **given: plan(**{**given, "read_extent": 0})


def _pages_of_the_next(translator: Any, allocator: Any) -> None:
    """The kernel that lists pages, which no CPU's tensors take by themselves, reads the next entry
    of the table."""
    tables, mine = engine_module(_TABLES), allocator.full_v2p_page_table
    launch = tables._launch

    def wrong(*, v2p: torch.Tensor, **given: Any) -> None:
        launch(v2p=v2p.roll(-1) if v2p is mine else v2p, **given)

    tables._launch = wrong


_TABLES = "sglang.kernels.ops.kvcache.kv_read_table"


class _PlantedSession(BackendSession):
    change: Change

    def _open_backend(self, runner: Any) -> Any:
        type(self).change(runner.kv_index_translator, runner.token_to_kv_pool_allocator)
        return super()._open_backend(runner)


class _Planted(BackendTarget):
    def __init__(self, change: Change, backend: AttentionBackend, mode: Mode = "decode") -> None:
        super().__init__(f"sglang-{backend.name}", backend, mode)
        self._session = type("_Session", (_PlantedSession,), {"change": staticmethod(change)})

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BackendSession:
        session: BackendSession = self._session(config, graphs, self.backend)
        return session


def raw_reads() -> BackendTarget:
    return _Planted(_raw_reads, FA3)


def raw_reads_of_lists() -> BackendTarget:
    return _Planted(_raw_reads, FLASHINFER)


def raw_writes() -> BackendTarget:
    return _Planted(_raw_writes, FA3)


def window_reads_by_the_other_table() -> BackendTarget:
    return _Planted(_window_reads_by_the_other_table, FA3)


def window_lists_by_the_other_table() -> BackendTarget:
    return _Planted(_window_reads_by_the_other_table, FLASHINFER)


def window_writes_by_the_other_table() -> BackendTarget:
    return _Planted(_window_writes_by_the_other_table, FA3)


def kept_plan() -> BackendTarget:
    return _Planted(_kept_plan, FA3)


def no_offsets() -> BackendTarget:
    return _Planted(_no_offsets, FA3)


def pages_of_the_next() -> BackendTarget:
    return _Planted(_pages_of_the_next, FA3)


def short_extent() -> BackendTarget:
    return _Planted(_short_extent, FA3, "target_verify")
