"""Translates a logical draft or draft-extend batch into the engine's own `ForwardBatch`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.reference.draft_tree import draft_tree
from fuzzgraph.targets.sglang.forward_batch.data_ranks import count_ranks
from fuzzgraph.targets.sglang.forward_batch.decode import bound, decode_values, engine_tensor, given
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch, IntArray

_INFO = "sglang.srt.model_executor.forward_batch_info"
_EAGLE = "sglang.srt.speculative.eagle_info"
_FROZEN = "sglang.srt.speculative.frozen_kv_mtp_info"


def draft_batch(batch: Batch, runner: ModelRunner, config: EngineConfig, *, frozen: bool) -> Any:
    """A batch from which branches of drafts are grown; positions are those of the first drafts."""
    info = engine_module(_INFO)
    rows = batch.raw_bs
    tokens = torch.tensor(batch.input_ids).view(rows, config.spec_topk)
    positions = torch.tensor(batch.positions).view(rows, config.spec_topk)
    kind = engine_module(_FROZEN).FrozenKVMTPDraftInput if frozen else _draft_input()
    spec = given(
        kind,
        {
            "topk_p": _first_parts(batch, config).to(runner.device),
            "topk_index": tokens.to(runner.device),
            "hidden_states": _hidden_states(tokens[:, 0], positions[:, 0], runner),
            "capture_hidden_mode": info.CaptureHiddenMode.LAST,
            "bonus_tokens": tokens[:, 0].clone().to(runner.device),
            "num_tokens_per_req": config.spec_topk,
            "num_tokens_for_logprob_per_req": config.spec_topk,
        },
    )
    values = {
        **decode_values(batch, runner, batch.seq_lens),
        "out_cache_loc": _draft_slots(batch, runner, config),
        "forward_mode": info.ForwardMode.DECODE if rows else info.ForwardMode.IDLE,
        "spec_info": spec,
        "capture_hidden_mode": info.CaptureHiddenMode.LAST,
    }
    return _beside_ranks(given(info.ForwardBatch, values), batch, runner)


def _first_parts(batch: Batch, config: EngineConfig) -> torch.Tensor:
    """[rows, topk] float32: what the first token of each branch is worth."""
    if config.draft_branches == "chosen":
        return torch.from_numpy(draft_tree(batch, config).first_parts).float()
    return torch.ones(batch.raw_bs, config.spec_topk)


def _beside_ranks(made: Any, batch: Batch, runner: ModelRunner) -> Any:
    if runner.dp_size > 1:
        count_ranks(made, batch, runner)
    return bound(made, runner)


def _draft_slots(batch: Batch, runner: ModelRunner, config: EngineConfig) -> torch.Tensor:
    """By branch and step; a server's last token gets a slot too, here the reserved one.

    Source: sglang draft_forward ("We only need self.speculative_num_steps - 1 cache loc").
    """
    slots = engine_tensor(batch.slot_mapping, runner.device).view(-1, config.spec_steps)
    unused = runner.server_args.speculative_num_steps - config.spec_steps
    return torch.nn.functional.pad(slots, (0, unused)).flatten()


def _draft_input() -> type:
    kind: type = engine_module(_EAGLE).EagleDraftInput
    return kind


def live_places(batch: Batch, width: int) -> IntArray:
    """[num_tokens] where each token lies if every row has `width` places."""
    starts = np.repeat(np.arange(batch.raw_bs) * width, batch.new_lens)
    first = np.repeat(np.cumsum(batch.new_lens) - batch.new_lens, batch.new_lens)
    places: IntArray = starts + np.arange(batch.num_tokens) - first
    return places


def select_index(batch: Batch, width: int) -> torch.Tensor:
    """[raw_bs] the place of each row's last accepted token."""
    last = np.maximum(batch.new_lens - 1, 0) + np.arange(batch.raw_bs) * width
    return torch.tensor(last, dtype=torch.int64)


_BY_PLACE = {"input_ids", "out_cache_loc", "out_cache_loc_swa"}
"""Of a batch whose rows have all their places: known of accepted tokens."""


def extend_batch(
    batch: Batch, runner: ModelRunner, width: int, *, packed: bool, least: int = 0
) -> Any:
    """A batch whose accepted tokens the draft model catches up with.

    Args:
        width: places of a row.
        packed: whether it holds the accepted tokens only; otherwise rows have all their places
            and as many keys (sglang eagle_worker_common.py, prepare_for_draft_extend), and what
            was not accepted goes to the reserved slot.
        least: accepted tokens that a row is said to have at least.
    """
    info = engine_module(_INFO)
    lens = batch.new_lens if packed else np.full(batch.raw_bs, width)
    values = {
        **decode_values(batch, runner, batch.cached_lens + lens),
        "forward_mode": _extend_mode(info, batch, packed=packed),
        "extend_num_tokens": int(lens.sum()),
        "extend_prefix_lens": engine_tensor(batch.cached_lens, runner.device).int(),
        "extend_prefix_lens_cpu": batch.cached_lens.tolist(),
        "extend_seq_lens": engine_tensor(lens, runner.device).int(),
        "extend_seq_lens_cpu": lens.tolist(),
        "extend_start_loc": engine_tensor(np.cumsum(lens) - lens, runner.device).int(),
        "capture_hidden_mode": info.CaptureHiddenMode.LAST,
    }
    if not packed:
        for name in _BY_PLACE & values.keys():
            values[name] = _spread(values[name], batch, width)
        places = batch.cached_lens[:, None] + np.arange(width)
        values["positions"] = engine_tensor(places.ravel(), runner.device)
    hidden = _hidden_states(values["input_ids"], values["positions"], runner)
    values["spec_info"] = _extend_input(batch, hidden, width, least)
    return _beside_ranks(given(info.ForwardBatch, values), batch, runner)


def _extend_mode(info: Any, batch: Batch, *, packed: bool) -> Any:
    """Of a rank without requests it is idle (sglang eagle_info_v2.py, prepare_for_extend_to_fill_
    draft_kvcache; later eagle_worker_common.py)."""
    if packed:
        return info.ForwardMode.DRAFT_EXTEND
    return info.ForwardMode.DRAFT_EXTEND_V2 if batch.raw_bs else info.ForwardMode.IDLE


def _spread(tokens: torch.Tensor, batch: Batch, width: int) -> torch.Tensor:
    found = torch.zeros(batch.raw_bs * width, dtype=tokens.dtype, device=tokens.device)
    found[torch.tensor(live_places(batch, width))] = tokens
    return found


def _hidden_states(
    tokens: torch.Tensor, positions: torch.Tensor, runner: ModelRunner
) -> torch.Tensor:
    """What the target model hands its draft model, on the device; the table is on the host."""
    content = content_for(runner.configuration.config)
    return content.hidden_states(tokens.cpu(), positions.cpu()).to(runner.device)


def _extend_input(batch: Batch, hidden: torch.Tensor, width: int, least: int) -> Any:
    eagle = engine_module(_EAGLE)
    kind = getattr(eagle, "EagleDraftExtendInput", None) or eagle.EagleDraftInput
    counts = np.maximum(batch.new_lens, least)
    accepted = torch.tensor(counts, dtype=torch.int32, device=hidden.device)
    spec = given(
        kind,
        {
            "hidden_states": hidden,
            "num_correct_drafts": (accepted - 1).clamp(min=0),
            "num_tokens_per_req": width,
            # By release.
            "num_accept_tokens": accepted.clone(),
            "accept_length": accepted.clone(),
            "num_accepted_drafts": (accepted - 1).clamp(min=0),
            "num_accepted_tokens": accepted.clone(),
        },
    )
    return spec
