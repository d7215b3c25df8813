"""Full prefill graphs of DeepSeek whose engine is mended, or has one line more changed; opened by
name.

What is changed is what decides how a prompt is computed, lists the slots of whole requests, absorbs
projections and puts keys together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.runners.deepseek_prefill import DeepseekPrefillTarget
from tests.targets.sglang.changed_lines import change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_DEEPSEEK = "sglang.srt.models.deepseek_common"
_HANDLERS = f"{_DEEPSEEK}.attention_backend_handler"
_EXPANDS = f"{_DEEPSEEK}.attention_forward_methods.forward_mha:DeepseekMHAForwardMixin"
_ABSORBS = f"{_DEEPSEEK}.attention_forward_methods.forward_mla:DeepseekMLAForwardMixin"
_BATCH = "sglang.srt.model_executor.forward_batch_deepseek_mha_mixin:ForwardBatchDeepSeekMHAMixin"
Change = tuple[str, str, str, str]
"""Module or class, name, line, what takes its place."""
_MENDED: Change = (
    _HANDLERS, "_handle_attention_backend",
    "if _support_mha_one_shot(attn, forward_batch, backend_name):",
    "if _support_mha_one_shot(attn, forward_batch, backend_name) and not ("
    "sum_extend_prefix_lens and forward_batch.prefix_chunk_kv_indices):",
)  # fmt: skip
"""A graph that is captured with chunks of a past uses them."""


def _planted(*changes: Change) -> DeepseekPrefillTarget:
    def change(session: Any) -> None:
        for each in changes:
            change_line_elsewhere(session, *each)

    return with_changed_sessions(DeepseekPrefillTarget("sglang-full-prefill-deepseek"), change)


def _with(holder: str, name: str, line: str, other: str) -> Callable[[], DeepseekPrefillTarget]:
    return lambda: _planted(_MENDED, (holder, name, line, other))


def mended() -> DeepseekPrefillTarget:
    """Nothing else is changed."""
    return _planted(_MENDED)


# Latent

absorbs_other_heads = _with(
    _ABSORBS, "forward_absorb_prepare",
    "q_nope_out = torch.bmm(q_nope.transpose(0, 1), self.w_kc)",
    "q_nope_out = torch.bmm(q_nope.transpose(0, 1), self.w_kc.flip(0))",
)  # fmt: skip

# Expanded at once

lists_new_tokens_alone = _with(
    _BATCH, "fetch_mha_one_shot_kv_indices",
    "kv_indptr[1:] = torch.cumsum(self.seq_lens, dim=0)",
    "kv_indptr[1:] = torch.cumsum(self.extend_seq_lens, dim=0)",
)  # fmt: skip
fetches_no_past = _with(
    _EXPANDS, "forward_normal_one_shot_prepare", "forward_batch.mha_one_shot = True",
    "forward_batch.mha_one_shot = False",
)  # fmt: skip
puts_rotary_parts_of_other_rows = _with(
    _EXPANDS, "_concat_and_cast_mha_k", "k[..., self.qk_nope_head_dim :] = k_pe",
    "k[..., self.qk_nope_head_dim :] = k_pe.flip(0)",
)  # fmt: skip

# Expanded in chunks

asks_for_no_sums = _with(
    _EXPANDS, "forward_normal_chunked_kv_core",
    "forward_batch.mha_return_lse = has_extend_prefix", "forward_batch.mha_return_lse = False",
)  # fmt: skip
takes_a_past_for_new_tokens = _with(
    _EXPANDS, "forward_normal_chunked_kv_core",
    "forward_batch.set_attn_attend_prefix_cache(True)",
    "forward_batch.set_attn_attend_prefix_cache(False)",
)  # fmt: skip
reads_the_first_chunk_again = _with(
    _EXPANDS, "_chunked_prefix_attn_mha",
    "kv_indices = forward_batch.prefix_chunk_kv_indices[i]",
    "kv_indices = forward_batch.prefix_chunk_kv_indices[0]",
)  # fmt: skip
keeps_the_latent_row_of_another = _with(
    _EXPANDS, "forward_normal_prepare", "kv = self.kv_b_proj(kv_a)[0]",
    "kv = self.kv_b_proj(kv_a.flip(0))[0]",
)  # fmt: skip
