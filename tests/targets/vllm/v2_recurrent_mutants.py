"""Planted bugs of vLLM's V2 runner with a group of states beside one of pages, each of one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzzgraph.targets.vllm.v2_recurrent import (
    V2DeltaNetBesideAttentionSession,
    V2DeltaNetHybridTarget,
)

_Blocks = Sequence[Sequence[int]]


class _NotStaged(V2DeltaNetBesideAttentionSession):
    """`append_block_ids` passes over one of the groups."""

    group: int

    def _spy(self) -> None:
        super()._spy()
        tables = self.runner.block_tables
        append = tables.append_block_ids

        def appended(row: int, blocks: _Blocks, overwrite: bool) -> Any:
            staged = list(blocks)
            if not self.capturing and self.served.count > 1:
                staged[self.group] = []
            return append(row, tuple(staged), overwrite)

        tables.append_block_ids = appended


class _StatesNotStaged(_NotStaged):
    group = 0


class _PagesNotStaged(_NotStaged):
    group = 1


def _target(session: type[_NotStaged]) -> V2DeltaNetHybridTarget:
    made = V2DeltaNetHybridTarget("vllm-v2-gdn-hybrid")
    made.session = session
    return made


def states_not_staged() -> V2DeltaNetHybridTarget:
    return _target(_StatesNotStaged)


def pages_not_staged() -> V2DeltaNetHybridTarget:
    return _target(_PagesNotStaged)
