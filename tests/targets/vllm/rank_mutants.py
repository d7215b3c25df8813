"""Planted bugs of vLLM's exchange between data-parallel ranks; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import FlashAttentionTarget
from fuzzgraph.world import Batch

Padding = Callable[[torch.Tensor, int], torch.Tensor]
"""(what the ranks added up, this rank) -> the tokens that each of them runs."""


def _own_size(added: torch.Tensor, rank: int) -> torch.Tensor:
    """All are taken to run what this rank would run alone."""
    return torch.full_like(added[1], int(added[1, rank])).cpu()


def _own_counts(added: torch.Tensor, rank: int) -> torch.Tensor:
    """The others are taken to run what they would run alone."""
    counts = added[1].clone().cpu()
    counts[rank] = int(counts.max())
    return counts


class _Planted(FlashAttentionTarget):
    padding: Padding

    def __init__(self, padding: Padding) -> None:
        super().__init__("vllm-fa")

        class Session(RunnerSession):
            def replay(self, batch: Batch) -> None:
                module = engine_module("vllm.v1.worker.dp_utils")
                rank = self._config.dp_rank

                def padded(added: torch.Tensor, *_: Any) -> torch.Tensor:
                    return padding(added, rank)

                with replaced_names([module], {"_post_process_dp_padding": padded}):
                    super().replay(batch)

        self.session = Session


def own_size() -> _Planted:
    return _Planted(_own_size)


def own_counts() -> _Planted:
    return _Planted(_own_counts)
