"""Planted bugs of sglang's rings beside recurrent states, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.backends.kda import ChannelDecayTarget
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_ADVANCED = "write_pos_buf[uniq_slots] = new_vals"
_TRITON = "sglang.srt.layers.attention.linear.kernels"


def _on_gdn(change: Callable[[Any], None]) -> Callable[[], Any]:
    return lambda: with_changed_sessions(DeltaNetTarget("sglang-gdn", "decode"), change)


def _on_kda(change: Callable[[Any], None]) -> Callable[[], Any]:
    return lambda: with_changed_sessions(ChannelDecayTarget("sglang-kda", "decode"), change)


def _staged(session: Any, line: str, other: str = "pass") -> None:
    """In what prepares a replay."""
    change_line(session.backend.linear_attn_backend, "_replay_metadata", line, other)


def _eager(session: Any, line: str, other: str = "pass") -> None:
    """In what prepares a batch without a graph."""
    change_line(session.backend.linear_attn_backend, "_forward_metadata", line, other)


def _pools(session: Any) -> Any:
    return session._model_runner.req_to_token_pool


def _keeps_its_ring(cursors_of: str) -> Callable[[Any], None]:
    """`HybridReqToTokenPool.alloc` without the line that begins an empty ring."""

    def change(session: Any) -> None:
        pool = _pools(session)
        alloc, cursors = pool.alloc, getattr(pool.mamba_pool, cursors_of)

        def without_the_line(requests: Any) -> Any:
            before = cursors.clone()
            found = alloc(requests)
            cursors.copy_(before)
            return found

        pool.alloc = without_the_line

    return change


def _copies(line: str, other: str) -> Callable[[Any], None]:
    return lambda session: change_line(_pools(session).mamba_pool, "copy_from", line, other)


def _kernel_told(module: str, kind: str, line: str, other: str) -> Callable[[Any], None]:
    holder = f"{_TRITON}.{module}:{kind}"
    return lambda session: change_line_elsewhere(session, holder, "packed_decode", line, other)


_STAGE = "static_wp[: len(mamba_indices)].copy_(write_pos_buf[safe_slots])"
_FORCE = "flushed = flushed | (force_flush_dev != 0)"
_RESET = "self.replayssm_write_pos[dst_indices] = 0"
_BY_SLOT = "new_vals[inv] = next_for_valid.to(write_pos_buf.dtype)"
_BY_ROW = "new_vals[:] = next_for_valid.to(write_pos_buf.dtype)"

cursor_stays = _on_gdn(partial(_staged, line=_ADVANCED))
cursor_of_the_capture = _on_gdn(partial(_staged, line=_STAGE))
cursor_behind_the_step = _on_kda(partial(_staged, line=_STAGE, other=f"{_STAGE[:-1]} + 1)"))
ring_never_emptied = _on_kda(partial(_staged, line="torch.zeros_like(cur_pos),", other="cur_pos,"))
flush_a_step_early = _on_gdn(
    partial(_staged, line="flushed = cur_pos == (L - 1)", other="flushed = cur_pos == (L - 2)")
)
forced_by_nobody = _on_gdn(partial(_staged, line="static_ff.copy_(force_flush_dev)"))
forced_and_not_counted = _on_gdn(partial(_staged, line=_FORCE))
padded_rows_advance = _on_gdn(
    partial(_staged, line="valid_mask = slots >= 0", other="valid_mask = slots >= -1")
)
cursors_swapped = _on_kda(
    partial(_staged, line=_ADVANCED, other="write_pos_buf[uniq_slots.flip(0)] = new_vals")
)
cursors_by_row = _on_gdn(partial(_staged, line=_BY_SLOT, other=_BY_ROW))
eager_cursor_stays = _on_kda(partial(_eager, line=_ADVANCED))
slot_keeps_its_ring = _on_gdn(_keeps_its_ring("replayssm_write_pos"))
copy_keeps_its_ring = _on_kda(_copies(_RESET, "pass"))
copy_resets_its_source = _on_gdn(_copies(_RESET, _RESET.replace("dst", "src")))
writes_each_state = _on_gdn(
    _kernel_told("gdn_triton", "TritonGDNKernel", "replayssm_d is not None", "False")
)
ring_of_one_cursor = _on_kda(
    _kernel_told(
        "kda_triton",
        "TritonKDAKernel",
        "write_pos=replayssm_write_pos,",
        "write_pos=replayssm_write_pos[:1].expand(len(replayssm_write_pos)).contiguous(),",
    )
)

_COMMITS = "sglang.srt.speculative.spec_utils"


def _gdn_verifies(change: Callable[[Any], None]) -> Callable[[], Any]:
    target = partial(DeltaNetTarget, "sglang-gdn-verify", "target_verify")
    return lambda: with_changed_sessions(target(), change)


def _kda_verifies(change: Callable[[Any], None]) -> Callable[[], Any]:
    target = partial(ChannelDecayTarget, "sglang-kda-verify", "target_verify")
    return lambda: with_changed_sessions(target(), change)


def _committed(line: str, other: str) -> Callable[[Any], None]:
    """In what a worker does behind a verify."""
    name = "commit_mamba_states_after_verify"
    return lambda session: change_line_elsewhere(session, _COMMITS, name, line, other)


def _verified(line: str, other: str) -> Callable[[Any], None]:
    """In what a layer does in one."""

    def change(session: Any) -> None:
        layer = session.backend.linear_attn_backend
        change_line(layer, "_replayssm_target_verify", line, other)

    return change


_ACCEPTED = "num_accepted=accept_lens,"
_KDA_ACCEPTED = "accept_lens=accept_lens,  # incl. bonus token"
_BY_ROWS = "replay_indices = batch.req_pool_indices"
_PLACE = "write_pos=mamba_pool.replayssm_spec_write_pos,"

bonus_left_out = _gdn_verifies(_committed(_ACCEPTED, "num_accepted=accept_lens - 1,"))
ring_of_the_slot = _gdn_verifies(
    _committed(_BY_ROWS, "replay_indices = state_batch_indices.to(torch.int64)")
)
drafts_over_the_past = _gdn_verifies(
    _verified(_PLACE, "write_pos=torch.zeros_like(mamba_pool.replayssm_spec_write_pos),")
)
history_left_out = _gdn_verifies(
    _verified(
        "cache_base=mamba_pool.replayssm_cache_base,",
        "cache_base=torch.zeros_like(mamba_pool.replayssm_cache_base),",
    )
)
row_keeps_its_ring = _gdn_verifies(_keeps_its_ring("replayssm_spec_write_pos"))
room_for_one = _gdn_verifies(
    _committed("max_spec_len=draft_token_num,", "max_spec_len=draft_token_num // 2,")
)
kda_bonus_left_out = _kda_verifies(_committed(_KDA_ACCEPTED, "accept_lens=accept_lens - 1,"))
kda_stride_of_kept_states = _kda_verifies(
    lambda session: change_line_elsewhere(
        session,
        "sglang.kernels.ops.attention.linear.kda_replayssm_spec_decode",
        "commit_kda_replayssm_spec_all_layers",
        "        ssm_state_indices.stride(0),",
        "        mamba_track_indices.stride(0),",
    )
)
"""Line 317: without states that a prefix cache keeps nothing is there to ask."""
