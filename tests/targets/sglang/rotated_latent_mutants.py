"""DeepSeek's layer on TRT-LLM's latent attention with one line of the engine changed; opened by
name.

What is changed is who rotates queries and keys, by which places, and what is absorbed.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget
from fuzzgraph.targets.sglang.backends.trtllm_mla import deepseek_target
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_ABSORBS = (
    "sglang.srt.models.deepseek_common.attention_forward_methods.forward_mla:"
    "DeepseekMLAForwardMixin"
)


def _decode() -> BackendTarget:
    return deepseek_target("sglang-deepseek-mla", "decode")


def _verify() -> BackendTarget:
    return deepseek_target("sglang-deepseek-mla-verify", "target_verify")


_ROTATES_ALWAYS = (
    _ABSORBS, "forward_absorb_prepare",
    "and not fuse_rope_for_trtllm_mla", "or not fuse_rope_for_trtllm_mla",
)  # fmt: skip
rotates_before_the_kernel_too = with_a_line_changed(_decode, *_ROTATES_ALWAYS)
rotates_before_the_kernel_too_in_verify = with_a_line_changed(_verify, *_ROTATES_ALWAYS)

_ROTATES_NEVER = (
    _ABSORBS, "forward_absorb_core",
    "self._fuse_rope_for_trtllm_mla(forward_batch):", "forward_batch is None:",
)  # fmt: skip
leaves_the_rotation_out = with_a_line_changed(_decode, *_ROTATES_NEVER)
leaves_the_rotation_out_in_verify = with_a_line_changed(_verify, *_ROTATES_NEVER)


def rotates_by_places_of_other_rows() -> BackendTarget:
    """The kernel gets the places of the rows before."""
    return _by_other_places(_decode(), "forward_decode")


def rotates_by_places_of_other_rows_in_verify() -> BackendTarget:
    """The same of a verify, which is an extend to the backend."""
    return _by_other_places(_verify(), "forward_extend")


def _by_other_places(target: BackendTarget, method: str) -> BackendTarget:
    def change(session: Any) -> None:
        line, other = "forward_batch.positions,", "forward_batch.positions.roll(1),"
        change_line(session.backend, method, line, other)

    return with_changed_sessions(target, change)


pairs_columns_of_two_halves = with_a_line_changed(
    _decode, _ABSORBS, "forward_absorb_core",
    "is_neox=self.rotary_emb.is_neox_style,", "is_neox=True,",
)  # fmt: skip
absorbs_other_heads = with_a_line_changed(
    _decode, _ABSORBS, "forward_absorb_prepare",
    "q_nope_out = torch.bmm(q_nope.transpose(0, 1), self.w_kc)",
    "q_nope_out = torch.bmm(q_nope.transpose(0, 1), self.w_kc.flip(0))",
)  # fmt: skip
