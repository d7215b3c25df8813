"""What the engine does to a prefill's batch whose tokens go around between ranks.

The scheduler says how many tokens each data-parallel rank has; one alone has them in a server
without data parallelism. The engine's model runner then pads the batch, to a multiple of the ranks
that share its tokens or to a captured count that all data-parallel ranks take, and counts this
rank's live tokens, before it asks for a graph. Its own method does that, on the stand-in of the
model runner; up to 0.5.13 its lines stand in the middle of the forward, and its calls are repeated
here.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.sglang.release import SGLANG, engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

MODEL_RUNNER = "sglang.srt.model_executor.model_runner"


def load_model_runner() -> None:
    """Import what `pad_for_all` needs."""
    SGLANG.load(MODEL_RUNNER)


def pad_for_all(forward_batch: Any, runner: ModelRunner) -> None:
    """Pads the batch for the other ranks, and makes its count of live tokens this rank's."""
    model_runner = engine_module(MODEL_RUNNER).ModelRunner
    with cuda_on_cpu():
        if hasattr(model_runner, "_prepare_eager_forward_batch"):
            model_runner._prepare_eager_forward_batch(runner, forward_batch)
            return
        forward_batch.prepare_mlp_sync_batch(runner)
        forward_batch.adjust_num_token_non_padded_for_attn_tp(server_args=runner.server_args)
