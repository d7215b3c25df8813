"""Planted bugs of lightning attention's prompts, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.runners.hybrid_prefill import (
    LightningPrefillTarget,
)
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions


def _planted(name: str, line: str, other: str) -> LightningPrefillTarget:
    target = LightningPrefillTarget("sglang-lightning-prefill")

    def changed(session: Any) -> None:
        change_line(session.backend.linear_attn_backend, name, line, other)

    return with_changed_sessions(target, changed)


def pasts_lost() -> LightningPrefillTarget:
    """Rows with a past start from nothing, and others from what lies in their slots."""
    line = "s_scales=metadata.has_initial_states,"
    return _planted("_linear_attention_entry", line, f"{line[:-1]}.logical_not(),")


def slopes_of_other_heads() -> LightningPrefillTarget:
    """Heads decay with the slopes of others."""
    line = "decay_scales=self.tp_slope[layer.layer_id],"
    return _planted("_linear_attention_entry", line, f"{line[:-1]}.flip(0),")


def last_token_left_out() -> LightningPrefillTarget:
    """The last token of each row is not computed."""
    line = "q_lengths=q_offsets.diff(),"
    return _planted("_linear_attention_entry", line, "q_lengths=q_offsets.diff() - 1,")


def state_of_half_a_chunk_kept() -> LightningPrefillTarget:
    """Kept states are those of one block of the kernel before."""
    line = "track_lens[track_rows] = boundary_lens[track_rows].to(torch.int32)"
    return _planted("_prepare_seg_la_track_store", line, f"{line} - 32")


def nothing_kept_where_a_prompt_ends_with_a_chunk() -> LightningPrefillTarget:
    """The state behind a prompt's last token is not copied."""
    line = "and metadata.track_ssm_final_dst.numel() > 0"
    return _planted("forward_extend", line, "and metadata.track_ssm_final_dst.numel() < 0")
