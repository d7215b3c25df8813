"""The scheduler's batch of a worker beside other data-parallel ranks.

The engine's own adapter says what this rank has, gathers what all of them have, writes the counts
into the batch, and makes one without requests where this rank has none and another has some.
Stood in for is what the others hand over: the engine's own row of numbers, with as many requests as
the case says.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

SCHEDULER_RANKS = "sglang.srt.managers.scheduler_components.dp_attn"
_INFO = "sglang.srt.model_executor.forward_batch_info"


def gathered_batch(local: Any, batch: Batch, runner: ModelRunner, memory: Mapping[str, Any]) -> Any:
    """The batch that the scheduler runs, with the counts of all ranks.

    Args:
        local: this rank's batch of running requests; None where it has none.
        memory: the pools and what allocates in them, by the names that the scheduler gives them.
    """
    module = engine_module(SCHEDULER_RANKS)
    adapter = call_with_known(
        module.SchedulerDPAttnAdapter,
        enable_overlap=True,
        get_require_mlp_sync=lambda: True,
        model_config=runner.model_config,
        # No graphs of prompts, so that no rank votes for one.
        model_runner=runner.beside(prefill_cuda_graph_runner=None),
        offload_tags=set(),
        ps=runner.ps,
        server_args=runner.server_args,
        spec_algorithm=runner.spec_algorithm,
        tp_group=runner.tp_group,
        **memory,
    )
    with _others_hand_over(module, batch, runner.configuration.config.dp_rank):
        return adapter.maybe_prepare_mlp_sync_batch(local)


@contextlib.contextmanager
def _others_hand_over(module: Any, batch: Batch, rank: int) -> Iterator[None]:
    """Within the block, the exchange of the ranks gives each one what the case says of it."""
    gather = module.MLPSyncBatchInfo.all_gather

    def of_all(own: Any, *given: Any, **named: Any) -> None:
        said = [
            own if each == rank else _of_another(own, int(size))
            for each, size in enumerate(batch.rank_sizes)
        ]
        rows = torch.stack([each._get_local_tensor(device="cpu") for each in said])

        def exchange(everyone: torch.Tensor, *_: Any, **__: Any) -> None:
            everyone.view(len(rows), -1, rows.shape[1]).copy_(rows[:, None])

        # By release: what gathers lies in the module, or is torch's own.
        names = {"exchange_sync_rows": exchange, "all_gather_single": exchange}
        collective = {"all_gather_into_tensor": exchange}
        with replaced_names([module], names), replaced_names([torch.distributed], collective):
            gather(own, *given, **named)

    with replaced_names([module.MLPSyncBatchInfo], {"all_gather": of_all}):
        yield


def _of_another(own: Any, requests: int) -> Any:
    """What a rank says that decodes so many requests, or is idle. It votes as this one does, for
    the graphs that a server has are the same on all ranks."""
    modes = engine_module(_INFO).ForwardMode
    return dataclasses.replace(
        own,
        num_tokens=requests,
        num_tokens_for_logprob=requests,
        local_forward_mode=(modes.DECODE if requests else modes.IDLE).value,
    )
