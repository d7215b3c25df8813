"""Translates a logical prefill batch into the engine's own `ForwardBatch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.targets.sglang.forward_batch.attn_tp import counts_of, share_tokens
from fuzzgraph.targets.sglang.forward_batch.decode import bound, decode_values, given
from fuzzgraph.targets.sglang.forward_batch.images import image_inputs
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

_INFO = "sglang.srt.model_executor.forward_batch_info"


def prefill_batch(batch: Batch, runner: ModelRunner) -> Any:
    """New tokens of each row behind what it has cached, as the model runner hands it on."""
    info = engine_module(_INFO)
    new, cached = batch.new_lens, batch.cached_lens
    starts = np.cumsum(new) - new
    values = {
        **decode_values(batch, runner, batch.seq_lens),
        "forward_mode": info.ForwardMode.EXTEND,
        "global_forward_mode": info.ForwardMode.EXTEND,
        "capture_hidden_mode": info.CaptureHiddenMode.NULL,
        "num_token_non_padded_cpu": batch.num_tokens,
        "orig_seq_lens": _int32(batch.seq_lens, runner.device),
        "extend_num_tokens": batch.num_tokens,
        "extend_seq_lens": _int32(new, runner.device),
        "extend_prefix_lens": _int32(cached, runner.device),
        "extend_start_loc": _int32(starts, runner.device),
        "extend_seq_lens_cpu": new.tolist(),
        "extend_prefix_lens_cpu": cached.tolist(),
        # No row wants the probabilities of its prompt.
        "extend_logprob_start_lens_cpu": new.tolist(),
        "lora_ids": [None] * batch.raw_bs,
    }
    if runner.model_config.is_multimodal:
        values |= image_inputs(batch, runner)
    if runner.tp_size == 1:
        return bound(given(info.ForwardBatch, values), runner)
    values |= counts_of(batch, runner.device)
    forward_batch = bound(given(info.ForwardBatch, values), runner)
    share_tokens(forward_batch, runner)
    return forward_batch


def _int32(values: Any, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
