"""The distributed groups of a server, stood in for by the place of this one process in them.

There is one process and nobody to talk to. What the code under test asks a group for is its size
and this process's rank in it; nothing is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module

_SHARED = ("_TP", "_ATTN_TP", "_MOE_EP")
"""Groups as large as attention-TP: one data-parallel rank, experts spread over all."""
_SINGLE = ("_WORLD", "_PP", "_ATTN_CP", "_MOE_TP", "_MOE_DP", "_DCP")


class Group:
    """A process group: a size, this process's rank, nothing to wait for."""

    ca_comm = None

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self.world_size = size
        self.rank = self.rank_in_group = rank

    def barrier(self) -> None: ...

    @contextlib.contextmanager
    def graph_capture(self, context: Any = None, stream: Any = None) -> Iterator[Any]:
        """The graph engine opens the capture itself, on its own stream."""
        yield context or Stub(stream=stream)


def become_rank(config: EngineConfig) -> None:
    """Make this process the case's rank of every group that the release knows."""
    state = engine_module("sglang.srt.distributed.parallel_state")
    shared = Group(config.attn_tp_size, config.attn_tp_rank)
    for names, group in ((_SHARED, shared), (_SINGLE, Group())):
        for name in names:
            if hasattr(state, name):
                setattr(state, name, group)


def rank_of(config: EngineConfig) -> dict[str, Any]:
    """The same for releases that keep ranks in their runtime context."""
    rank = config.attn_tp_rank
    return {
        "tp_rank": rank,
        "attn_tp_rank": rank,
        "attn_dp_rank": 0,
        "tp_group": Group(config.attn_tp_size, rank),
    }
