"""Planted bugs of vLLM's runner with two KV cache groups, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import FlashAttentionTarget


class _OneTable(RunnerSession):
    """The second group's metadata is built with the first group's block table."""

    def _spy(self) -> None:
        first, second = self.runner.input_batch.block_table.block_tables
        second.get_device_tensor = first.get_device_tensor
        super()._spy()


class _OneSlotMapping(RunnerSession):
    """New KV of the second group goes to slots that follow from the first group's table."""

    def _spy(self) -> None:
        tables = self.runner.input_batch.block_table
        compute = tables.compute_slot_mapping

        def computed(*args: Any, **kwargs: Any) -> None:
            compute(*args, **kwargs)
            first, second = (table.slot_mapping.gpu for table in tables.block_tables)
            second.copy_(first)

        tables.compute_slot_mapping = computed
        super()._spy()


class _ShortWindow(RunnerSession):
    """The window of w tokens is taken for one of w - 1."""

    def _spy(self) -> None:
        layer: Any = self.model.sliding
        before, behind = layer.attend.impl.sliding_window
        layer.attend.impl.sliding_window = before - 1, behind
        super()._spy()


class _Planted(FlashAttentionTarget):
    session: type[RunnerSession]

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return self.session(config, graphs, f"{self.module}.{self.backend}")


class _WithOneTable(_Planted):
    session = _OneTable


class _WithOneSlotMapping(_Planted):
    session = _OneSlotMapping


class _WithShortWindow(_Planted):
    session = _ShortWindow


def one_table() -> FlashAttentionTarget:
    return _WithOneTable("vllm-fa")


def one_slot_mapping() -> FlashAttentionTarget:
    return _WithOneSlotMapping("vllm-fa")


def short_window() -> FlashAttentionTarget:
    return _WithShortWindow("vllm-fa")
