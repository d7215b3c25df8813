"""Planted bugs of a Dots model's attention on sglang, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.backends.dots import DotsTarget
from fuzzgraph.targets.sglang.backends.dots_draft_extend import DotsDraftExtendTarget
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line, change_line_elsewhere
from tests.targets.sglang.planted import with_changed_sessions

_WRAPPER = "the backend itself"
_ATTEND = "sglang.srt.layers.attention.swa_mla_fallback.forward"
_KERNELS = "sglang.srt.layers.attention.swa_mla_fallback.ops"
_POOL = "sglang.srt.mem_cache.swa_memory_pool:SWAKVPool"
_MODEL = "sglang.srt.models.dots3_common.modeling:Dots3AttentionMLA"

Target = Callable[[], DotsTarget]


def _planted(holder: str, name: str, line: str, other: str, mode: Mode = "decode") -> Target:
    def target() -> DotsTarget:
        def change(session: Any) -> None:
            if holder == _WRAPPER:  # the session watches this one's own methods
                change_line(session.backend, name, line, other)
            else:
                change_line_elsewhere(session, holder, name, line, other)

        return with_changed_sessions(DotsTarget(f"sglang-dots-{mode}", mode), change)

    return target


def _kernel(name: str, line: str, other: str, mode: Mode = "decode") -> Target:
    def target() -> DotsTarget:
        def change(session: Any) -> None:
            change_kernel(session, _KERNELS, name, line, other)

        return with_changed_sessions(DotsTarget(f"sglang-dots-{mode}", mode), change)

    return target


window_of_one_token_less = _planted(
    _WRAPPER,
    "forward_swa_mla_absorbed",
    "window_size=layer.sliding_window_size + 1",
    "window_size=layer.sliding_window_size",
)
pages_of_the_other_layer = _planted(
    _WRAPPER,
    "forward_swa_mla_absorbed",
    "block_table = metadata.swa_page_table",
    "block_table = metadata.page_table",
)
rows_of_the_other_layer = _planted(
    _WRAPPER,
    "forward_swa_mla_absorbed",
    "get_key_buffer(layer.layer_id)",
    "get_key_buffer(0)",
)
lengths_of_the_first_row = _planted(
    _WRAPPER,
    "forward_swa_mla_absorbed",
    "metadata.cache_seqlens_int32,",
    "metadata.cache_seqlens_int32[:1].expand(bs),",
)
stored_by_slots_of_the_other_pool = _planted(
    _MODEL,
    "_get_kv_write_loc",
    "swa_loc = metadata.swa_out_cache_loc",
    "swa_loc = forward_batch.out_cache_loc",
)
stored_in_the_first_layers_pool = _planted(
    _POOL,
    "set_mla_kv_buffer",
    "pool = self.swa_kv_pool if is_swa_layer else self.full_kv_pool",
    "pool = self.full_kv_pool",
)
stored_in_the_first_layer_of_a_kind = _planted(
    _POOL,
    "set_mla_kv_buffer",
    "layer_id_override=layer_id_pool,",
    "layer_id_override=0,",
)
prepares_the_capture_alone = _planted(
    _WRAPPER,
    "init_forward_metadata_out_graph",
    "self.backend.init_forward_metadata_out_graph(\n",
    "in_capture and self.backend.init_forward_metadata_out_graph(\n",
)
gathers_the_first_request = _kernel(
    "_gather_page64_kv_latent_kernel",
    "block_table_ptr + bid * block_table_stride_b + logical_page",
    "block_table_ptr + logical_page",
)
gathers_one_page = _kernel(
    "_gather_page64_kv_latent_kernel",
    "physical_token = physical_page * PAGE_SIZE_ + intra_page",
    "physical_token = physical_page * PAGE_SIZE_ + logical_token",
)
first_key_of_the_window_is_masked = _kernel(
    "_apply_swa_score_mask_kernel",
    "(kv_pos >= q_pos - WINDOW_SIZE + 1)",
    "(kv_pos > q_pos - WINDOW_SIZE + 1)",
)
later_drafts_are_seen = _kernel(
    "_apply_swa_score_mask_kernel", "(kv_pos <= q_pos)", "(kv_pos <= q_pos + 1)", "target_verify"
)
drafts_count_as_the_past = _planted(
    _ATTEND,
    "forward_dense_kvlora_swa_torch_fallback",
    "        cache_seqlens,\n        kv_valid,",
    "        cache_seqlens - s_q,\n        kv_valid,",
    "target_verify",
)
heads_before_tokens = _planted(
    _ATTEND,
    "forward_dense_kvlora_swa_torch_fallback",
    "bs, s_q, num_heads, gather_len\n    )\n",
    "bs, num_heads, s_q, gather_len\n    ).transpose(1, 2).contiguous()\n",
    "target_verify",
)


def _extending(change: Callable[[Any], None]) -> DotsDraftExtendTarget:
    return with_changed_sessions(DotsDraftExtendTarget("sglang-dots-draft-extend"), change)


def extends_by_pages_of_the_other_layer() -> DotsDraftExtendTarget:
    line = "block_table = metadata.{}page_table"
    return _extending(
        lambda session: change_line(
            session.backend, "forward_swa_mla_absorbed", line.format("swa_"), line.format("")
        )
    )


def extends_see_later_tokens() -> DotsDraftExtendTarget:
    lines = "(kv_pos <= q_pos)", "(kv_pos <= q_pos + 1)"
    return _extending(
        lambda session: change_kernel(session, _KERNELS, "_apply_swa_score_mask_kernel", *lines)
    )


def extends_keep_the_window_of_the_capture() -> DotsDraftExtendTarget:
    """What a replay is handed does not reach the wrapped backend."""
    line = "self.backend.init_forward_metadata_out_graph(\n                forward_batch"
    return _extending(
        lambda session: change_line(
            session.backend,
            "init_forward_metadata_out_graph",
            line,
            f"in_capture and {line}",
        )
    )
