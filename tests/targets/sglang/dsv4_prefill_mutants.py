"""Prefill graphs of DeepSeek V4 with one line of the engine changed; opened by name.

What is changed is what a replay hands the backend of a batch, what of its metadata is brought to
where the graph was captured, and which keys an indexer gathers and scores without a graph.
"""

from __future__ import annotations

from fuzzgraph.targets.sglang.runners.dsv4_prefill import Dsv4PrefillTarget
from tests.targets.sglang.planted import with_a_line_changed

_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"
_METADATA = "sglang.srt.layers.attention.deepseek_v4_backend:DSV4Metadata"
_INDEXER = "sglang.srt.layers.attention.dsv4.indexer:C4IndexerBackendMixin"
_GATHERS = "_get_nonpaged_indexer_plan"
_REFRESH = "refresh_for_breakable_cuda_graph_replay_"


def _target() -> Dsv4PrefillTarget:
    return Dsv4PrefillTarget("sglang-dsv4-prefill")


takes_a_count_for_kept_rows = with_a_line_changed(
    _target, _RUNNER, "load_batch",
    " forward_batch.encoder_swa_compress_rows", " self.raw_num_tokens",
)  # fmt: skip
keeps_metadata_of_the_capture = with_a_line_changed(
    _target, _METADATA, _REFRESH,
    "self.core_attn_metadata.refresh_for_breakable_cuda_graph_replay_(", "repr(",
)  # fmt: skip
keeps_the_plan_of_the_capture = with_a_line_changed(
    _target, _METADATA, _REFRESH,
    "src=static_metadata.c4_compress_metadata", "src=self.c4_compress_metadata",
)  # fmt: skip
gives_lengths_without_the_last_token = with_a_line_changed(
    _target, _RUNNER, "load_batch",
    " seq_lens=forward_batch.seq_lens,", " seq_lens=forward_batch.seq_lens - 1,",
)  # fmt: skip
gathers_keys_of_the_first_token = with_a_line_changed(
    _target, _INDEXER, _GATHERS, "gather_seq_lens = ke[-1:]", "gather_seq_lens = ke[:1]"
)
gathers_as_many_keys_as_there_are_new = with_a_line_changed(
    _target, _INDEXER, _GATHERS,
    "final_c4_len = seq_lens_cpu[0] // 4", "final_c4_len = extend_lens_cpu[0] // 4",
)  # fmt: skip
scores_no_first_key = with_a_line_changed(
    _target, _INDEXER, _GATHERS, "torch.zeros_like(ke)", "torch.ones_like(ke)"
)
scores_no_row_that_selects_nearly_all = with_a_line_changed(
    _target, _INDEXER, _GATHERS,
    "ke - ks > c4_indexer.index_topk", "ke - ks > c4_indexer.index_topk + 5",
)  # fmt: skip
takes_pages_of_a_token_for_those_of_selected_keys = with_a_line_changed(
    _target, _INDEXER, _GATHERS, "page_table[:1].contiguous()", "c4_seq_lens.view(1, -1)"
)
