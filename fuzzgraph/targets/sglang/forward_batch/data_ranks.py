"""What the scheduler of a server with data-parallel attention adds to a batch: counts of all ranks.

Before each step the ranks gather how many rows each of them has (sglang
scheduler_dp_attn_mixin.py, later scheduler_components/dp_attn.py, `_update_gather_batch`). The
case says so in their place. What a batch makes of the counts is the engine's own code, from 0.5.18
on `ForwardBatch.init_mlp_sync_metadata`; up to 0.5.17 these lines stand in the middle of
`ForwardBatch.init_new`, and its calls are repeated here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_SPEC = "sglang.srt.speculative.spec_info"


def count_ranks(forward_batch: Any, batch: Batch, runner: ModelRunner) -> None:
    """Says in the engine's batch what every data-parallel rank has in this step."""
    gathered = _gathered(batch, runner.configuration.config.dp_rank)
    if hasattr(forward_batch, "init_mlp_sync_metadata"):
        forward_batch.init_mlp_sync_metadata(gathered, runner.device)
        return
    tokens, logprob_tokens = _in_tokens(forward_batch.spec_info, gathered)
    forward_batch.original_global_num_tokens_cpu = gathered.global_num_tokens
    forward_batch.global_num_tokens_cpu = tokens
    forward_batch.global_num_tokens_gpu = torch.tensor(tokens, device=runner.device)
    forward_batch.global_num_tokens_for_logprob_cpu = logprob_tokens
    forward_batch.global_num_tokens_for_logprob_gpu = torch.tensor(
        logprob_tokens, device=runner.device
    )


def pad_for_ranks(forward_batch: Any, runner: ModelRunner) -> None:
    """What the model runner makes of a batch that runs without a graph, before its metadata: rows
    of no request, so that ranks can exchange what they compute (sglang model_runner.py
    _forward_raw, later _prepare_eager_forward_batch)."""
    if forward_batch.lora_ids is None:  # one for each request, as ForwardBatch.init_new says it
        forward_batch.lora_ids = [None] * forward_batch.batch_size
    with cuda_on_cpu():  # it asks for pinned memory
        forward_batch.prepare_mlp_sync_batch(runner)


def cut_for_rank(forward_batch: Any, outputs: Any) -> None:
    """What the model runner makes of the batch and of the model's outputs behind that forward: rows
    of no request are taken away again (sglang model_runner.py _forward_raw)."""
    forward_batch.post_forward_mlp_sync_batch(outputs)


def forget_ranks(forward_batch: Any) -> None:
    """Drafts that take no graph run as on a rank alone.

    A server pads each step of them, in the draft's model runner, behind metadata that the worker
    has prepared (sglang eagle_info_v2.py, later base_spec_worker.py); that is not driven.
    """
    for name in ("global_num_tokens", "global_num_tokens_for_logprob"):
        for side in ("cpu", "gpu"):
            setattr(forward_batch, f"{name}_{side}", None)
    forward_batch.original_global_num_tokens_cpu = None


def _gathered(batch: Batch, rank: int) -> Any:
    """The scheduler's batch as the ranks' exchange leaves it: all take a graph where all decode or
    are idle. Rows count as tokens, in a verify too. A request has logits for one token; of the
    other ranks' prefills it makes no difference here how many requests they have."""
    prompts = batch.mode == "prefill" or batch.others_prefill
    logits = np.minimum(batch.rank_sizes, 1) if prompts else batch.rank_sizes.copy()
    takes_graph = not batch.others_prefill
    logits[rank] = batch.raw_bs
    return Stub(
        global_num_tokens=batch.rank_sizes.tolist(),
        global_num_tokens_for_logprob=logits.tolist(),
        draft_global_num_tokens=None,
        draft_global_num_tokens_for_logprob=None,
        dp_spec_prefill_coordination_applied=False,
        can_run_decode_cuda_graph=takes_graph,
        can_run_dp_cuda_graph=takes_graph,
        can_run_dp_draft_cuda_graph=takes_graph,
    )


def _in_tokens(spec_info: Any, gathered: Any) -> tuple[list[int], list[int]]:
    """A verify computes several tokens of each row; its own input says how many."""
    counts = gathered.global_num_tokens, gathered.global_num_tokens_for_logprob
    if spec_info is None:
        return list(counts[0]), list(counts[1])
    found: tuple[list[int], list[int]]
    if hasattr(spec_info, "get_spec_adjusted_global_num_tokens"):
        found = spec_info.get_spec_adjusted_global_num_tokens(gathered)
    else:
        found = engine_module(_SPEC).spec_scale_global_num_tokens(spec_info, *counts)
    return found
