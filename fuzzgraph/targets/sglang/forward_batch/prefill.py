"""Translates a logical prefill batch into the engine's own `ForwardBatch`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fuzzgraph.targets.sglang.forward_batch.data_ranks import count_ranks
from fuzzgraph.targets.sglang.forward_batch.decode import bound, decode_values, engine_tensor, given
from fuzzgraph.targets.sglang.forward_batch.gathered_tokens import pad_for_all
from fuzzgraph.targets.sglang.forward_batch.images import image_inputs
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch, IntArray

STATE_CHUNK = 64
"""Tokens of a chunk behind which kernels have the state, where a model's description names no
others: fla chunk_delta_h.py `CHUNK_SIZE`."""
TRACKED_LENS = "mamba_track_seqlens"
"""What a batch of prompts says of the states to keep, and a decode does not."""
_INFO = "sglang.srt.model_executor.forward_batch_info"


def prefill_batch(
    batch: Batch,
    runner: ModelRunner,
    *,
    agreed: bool,
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """New tokens of each row behind what it has cached, as the model runner hands it on.

    Args:
        agreed: whether all data-parallel ranks can take a graph.
        asked: what clients ask for beyond tokens, by the names of the engine's batch.
    """
    info = engine_module(_INFO)
    # A rank without requests gets an empty batch, which the exchange of the ranks needs.
    values = _prompts(batch, runner) if batch.raw_bs else {"forward_mode": info.ForwardMode.IDLE}
    values = {
        **decode_values(batch, runner, batch.seq_lens),
        "global_forward_mode": info.ForwardMode.EXTEND,
        "capture_hidden_mode": info.CaptureHiddenMode.NULL,
        "orig_seq_lens": _int32(batch.seq_lens, runner.device),
        "lora_ids": [None] * batch.raw_bs,
        "is_extend_in_batch": runner.tp_size > 1,
        # By release.
        "can_run_dp_breakable_cuda_graph": agreed,
        "can_run_dp_prefill_cuda_graph": agreed,
        **values,
        **asked,
    }
    forward_batch = given(info.ForwardBatch, values)
    if runner.tp_size > 1:
        count_ranks(forward_batch, batch, runner)
    bound(forward_batch, runner)
    if runner.tp_size > 1:
        pad_for_all(forward_batch, runner)
    return forward_batch


def _prompts(batch: Batch, runner: ModelRunner) -> dict[str, Any]:
    """What the engine's batch says of requests whose prompts it computes."""
    new, cached = batch.new_lens, batch.cached_lens
    starts = np.cumsum(new) - new
    said = {
        **_tracked(batch, runner),
        "forward_mode": engine_module(_INFO).ForwardMode.EXTEND,
        "num_token_non_padded_cpu": batch.num_tokens,
        "extend_num_tokens": batch.num_tokens,
        "extend_seq_lens": _int32(new, runner.device),
        "extend_prefix_lens": _int32(cached, runner.device),
        "extend_start_loc": _int32(starts, runner.device),
        "extend_seq_lens_cpu": new.tolist(),
        "extend_prefix_lens_cpu": cached.tolist(),
        # No row wants the probabilities of its prompt.
        "extend_logprob_start_lens_cpu": new.tolist(),
    }
    return said | image_inputs(batch, runner) if runner.configuration.config.image_len else said


def state_chunk(described: Any) -> int:
    """Tokens of a chunk behind which a model's kernels have the state, by its description."""
    found: int = getattr(described, "mamba_chunk_size", STATE_CHUNK)
    return found


def _tracked(batch: Batch, runner: ModelRunner) -> dict[str, Any]:
    """Behind how many tokens the prefix cache keeps a state of each row; the host's lists by
    release (ScheduleBatch.prepare_for_extend)."""
    if not len(batch.track_slots):
        return {}
    lens = told_track_lens(batch, state_chunk(runner.model_config.hf_text_config))
    return {
        TRACKED_LENS: engine_tensor(lens, runner.device),
        "mamba_prefill_track_mask_cpu": (batch.tracked_lens > 0).tolist(),
        "mamba_track_seqlens_cpu": lens.tolist(),
    }


def told_track_lens(batch: Batch, chunk: int) -> IntArray:
    """[raw_bs] the length by which a backend finds the state to keep, -1 where it keeps none.

    It is the row's own where its last whole chunk is the one to keep, and else one more than the
    chunk's end, so that no backend takes that for the end of the row (ScheduleBatch
    `_mamba_radix_cache_v2_req_prepare_for_extend`).

    Args:
        chunk: tokens of a chunk of the model's kernels.
    """
    tracked = batch.tracked_lens
    last_chunk = batch.seq_lens - batch.new_lens % chunk
    lens = np.where(last_chunk == tracked, batch.seq_lens, tracked + 1)
    found: IntArray = np.where(tracked > 0, lens, -1)
    return found


def _int32(values: Any, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
