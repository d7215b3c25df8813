"""Planted bugs of vLLM's runner, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import FlashAttentionTarget, TritonTarget


class _PaddedRowsKeepLengths(RunnerSession):
    """`_prepare_inputs` leaves lengths behind the live rows as the last batch had them."""

    def _step(self, batch: Any) -> None:
        runner = self.runner
        prepare = type(runner)._prepare_inputs

        def prepared(*args: Any, **kwargs: Any) -> Any:
            before = runner.seq_lens.clone()
            made = prepare(runner, *args, **kwargs)
            runner.seq_lens[batch.raw_bs :] = before[batch.raw_bs :]
            return made

        runner._prepare_inputs = prepared
        super()._step(batch)
        del runner._prepare_inputs


class _FirstPagesOnly(RunnerSession):
    """The runner drops the pages that a request that goes on has got since."""

    def _step(self, batch: Any) -> None:
        table = self.runner.input_batch.block_table
        table.append_row = lambda *_: None
        super()._step(batch)
        del table.append_row


class _TablesElsewhere(RunnerSession):
    """The builder hands over a table of its own, made anew for each batch."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def copied(*args: Any, **kwargs: Any) -> Any:
            built = build(*args, **kwargs)
            built.block_table = built.block_table.clone()
            return built

        return super()._kept(copied)


def _session(config: EngineConfig, graphs: GraphEngine, target: Any, kind: Any) -> RunnerSession:
    made: RunnerSession = kind(config, graphs, f"{target.module}.{target.backend}")
    return made


class _PaddedLengths(TritonTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _PaddedRowsKeepLengths)


class _Pages(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _FirstPagesOnly)


class _Tables(FlashAttentionTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> RunnerSession:
        return _session(config, graphs, self, _TablesElsewhere)


def tables_elsewhere() -> FlashAttentionTarget:
    return _Tables("vllm-fa")


def padded_lengths() -> TritonTarget:
    return _PaddedLengths("vllm-triton")


def first_pages_only() -> FlashAttentionTarget:
    return _Pages("vllm-fa")
