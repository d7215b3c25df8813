"""EAGLE's drafts on DeepSeek V4's attention with one line of the engine changed; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.backends.dsv4 import BACKEND
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.changed_lines import (
    change_line,
    replace_while_running,
)
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_SINGLE = f"{BACKEND}:DeepseekV4AttnBackend"


def slots_laid_out() -> Any:
    """No planted bug; reports/findings/sglang-mla-draft-slots.md is mended."""

    def laid_out(cut: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *given: torch.stack(list(cut(*given)))

    def change(session: Any) -> None:
        name = "per_step_draft_out_cache_loc"
        replace_while_running(session, engine_module(BACKEND), name, laid_out)

    return with_changed_sessions(open_target("sglang-dsv4-draft"), change)


def _step(name: str, line: str, other: str) -> Callable[[], Any]:
    """One line of the backend of each step of a draft."""
    return with_a_line_changed(lambda: open_target("sglang-dsv4-draft"), _SINGLE, name, line, other)


def _extend(name: str, line: str, other: str) -> Callable[[], Any]:
    """One line of the backend of a draft-extend."""

    def change(session: Any) -> None:
        change_line(session.backend, name, line, other)

    return lambda: with_changed_sessions(open_target("sglang-dsv4-draft-extend"), change)


one_key_less = _step(
    "make_core_attn_metadata", "swa_topk_lengths = prep.swa_topk_lengths",
    "swa_topk_lengths = (prep.swa_topk_lengths - 1).clamp(min=1)",
)  # fmt: skip
"""Windows lack their last key."""
windows_do_not_move = _step(
    "make_forward_metadata_from_raw_decode", "seq_lens = raw_metadata.seq_lens\n",
    "seq_lens = raw_metadata.seq_lens.clamp(max=128)\n",
)  # fmt: skip
"""Longer rows see the first tokens."""
rows_of_the_first_request = _step(
    "make_forward_metadata_from_raw_decode", "raw_metadata.req_pool_indices\n",
    "raw_metadata.req_pool_indices[:1].expand_as(raw_metadata.req_pool_indices).contiguous()\n",
)  # fmt: skip
upgraded_before_the_graph = _step(
    "on_after_cuda_graph_warmup", "self.forward_metadata = current_raw", "pass"
)
"""The graph holds what the warm-up before it has upgraded."""

drafts_unseen = _extend(
    "expand_extend_with_same_length", "-qo_len + 1, 1, **self.cuda_int32_kwargs",
    "-qo_len, 0, **self.cuda_int32_kwargs",
)  # fmt: skip
"""No token sees itself."""
requests_of_the_first_row = _extend(
    "expand_extend_with_same_length",
    "req_pool_indices[idx_to_req_repeated]", "req_pool_indices[0 * idx_to_req_repeated]",
)  # fmt: skip
keys_in_the_slot_of_padding = _extend(
    "init_forward_metadata_in_graph", "out_cache_loc = forward_batch.out_cache_loc\n",
    "out_cache_loc = forward_batch.out_cache_loc * 0\n",
)  # fmt: skip
metadata_of_the_capture = _extend(
    "replay_cuda_graph_metadata_from", "chosen_metadata.copy_(temp_metadata)", "pass"
)
