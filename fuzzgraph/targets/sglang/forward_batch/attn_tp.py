"""What the engine does to a prefill's batch where ranks of attention-TP share its tokens.

The scheduler says how many tokens each group of ranks has; here there is one group. The engine's
model runner then pads the batch to a multiple of the ranks and counts this rank's live tokens,
before it asks for a graph. Its own method does that, on the stand-in of the model runner; up to
0.5.13 its lines stand in the middle of the forward, and its calls are repeated here.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.sglang.release import SGLANG, engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
_GROUPS = "sglang.srt.layers.dp_attention"


def load_ranks() -> None:
    """Import what `share_tokens` needs; up to 0.5.16 the number of groups is a global."""
    SGLANG.load(_MODEL_RUNNER)
    groups = engine_module(_GROUPS)
    for kind in ("ATTN_DP", "LOCAL_ATTN_DP"):
        for name, value in ((f"_{kind}_SIZE", 1), (f"_{kind}_RANK", 0)):
            if hasattr(groups, name):
                setattr(groups, name, value)


def counts_of(batch: Batch, device: str) -> dict[str, Any]:
    """What the scheduler adds to a batch, of a single group of ranks that holds tokens."""
    tokens, rows = batch.num_tokens, batch.raw_bs
    return {
        "is_extend_in_batch": True,
        "global_num_tokens_cpu": [tokens],
        "global_num_tokens_gpu": torch.tensor([tokens], device=device),
        "global_num_tokens_for_logprob_cpu": [rows],
        "global_num_tokens_for_logprob_gpu": torch.tensor([rows], device=device),
        # All groups agree to take the graph; its name by release.
        "can_run_dp_breakable_cuda_graph": True,
        "can_run_dp_prefill_cuda_graph": True,
    }


def share_tokens(forward_batch: Any, runner: ModelRunner) -> None:
    """Pads the batch to a multiple of the ranks, and makes its count of live tokens this rank's."""
    model_runner = engine_module(_MODEL_RUNNER).ModelRunner
    with cuda_on_cpu():
        if hasattr(model_runner, "_prepare_eager_forward_batch"):
            model_runner._prepare_eager_forward_batch(runner, forward_batch)
            return
        forward_batch.prepare_mlp_sync_batch(runner)
        forward_batch.adjust_num_token_non_padded_for_attn_tp(server_args=runner.server_args)
