"""The other data-parallel ranks of a vLLM server, answered from the case.

Before each forward the ranks add up a tensor with a column for each (vllm/v1/worker/dp_utils.py,
`_run_ar`): what a rank runs, what that is padded to, and by which kind of graphs. The runner then
pads to the largest. Here one process is one rank; the others' columns hold what this release's own
dispatcher says of their rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.world import Batch

_EXCHANGE = "vllm.v1.worker.dp_utils"
_EXPERTS = "get_ep_all2all_manager"
_TOKENS, _PADDED, _GRAPHS = 0, 1, -1
"""Rows of the tensor that differ by rank."""


class OtherRanks:
    """Puts the other ranks' columns in where the runner waits for them.

    Args:
        runner: module of the runner.
    """

    dispatch: Callable[..., Any]
    """Of the runner's dispatcher: so many tokens -> the kind of graphs and its key."""

    def __init__(self, config: EngineConfig, runner: str) -> None:
        self._config = config
        self._runner = runner
        self._asked: dict[str, Any] = {}
        self._batch: Batch | None = None
        self.counts: torch.Tensor | None = None
        """[dp_size] tokens of each rank, as the last forward was told."""

    def opening(self) -> AbstractContextManager[None]:
        """While the runner is made: there is nobody to send tokens of experts to."""
        runner = engine_module(self._runner)
        if self._config.dp_size == 1 or not hasattr(runner, _EXPERTS):
            return contextlib.nullcontext()
        nobody = Stub(support_fault_tolerance=False)
        return replaced_names([runner], {_EXPERTS: lambda: nobody})

    @contextlib.contextmanager
    def beside(self, batch: Batch | None) -> Iterator[None]:
        """While this rank runs a step, or while all capture."""
        self._batch = batch
        if self._config.dp_size == 1:
            yield
            return
        self.counts = None
        runner, exchange = engine_module(self._runner), engine_module(_EXCHANGE)
        told = runner.set_forward_context

        def told_beside(*args: Any, **named: Any) -> Any:
            self.counts = named.get("num_tokens_across_dp")
            return told(*args, **named)

        added = {"dist": Stub(all_reduce=self._add_others)}
        spied = {"set_forward_context": told_beside}
        with replaced_names([exchange], added), replaced_names([runner], spied):
            yield

    def asked(self, **named: Any) -> None:
        """How the runner asks its dispatcher in this step."""
        self._asked = named

    def _add_others(self, tensor: torch.Tensor, group: Any = None) -> None:
        own = tensor[:, self._config.dp_rank].clone()
        tensor.copy_(own[:, None].expand_as(tensor))  # what no rank decides by its rows
        if self._batch is None:  # all ranks capture the same
            return
        for rank, rows in enumerate(self._batch.rank_sizes.tolist()):
            if rank == self._config.dp_rank:
                continue
            tokens = max(1, rows)  # of an idle rank a dummy row (gpu_worker.py execute_dummy_batch)
            kind, key = self.dispatch(**{**self._asked, "num_tokens": tokens})
            tensor[_TOKENS, rank], tensor[_PADDED, rank] = tokens, key.num_tokens
            tensor[_GRAPHS, rank] = kind.value
