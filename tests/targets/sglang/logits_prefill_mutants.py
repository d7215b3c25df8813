"""Planted bugs of what sglang makes of prompts behind prefill graphs: a changed line each."""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.targets.sglang.runners.logits_prefill import (
    FullLogitsPrefillTarget,
    LogitsPrefillTarget,
)
from tests.targets.sglang.planted import with_a_line_changed

_LOGITS = "sglang.srt.layers.logits_processor"
_PROCESSOR = f"{_LOGITS}:LogitsProcessor"
_METADATA = f"{_LOGITS}:LogitsMetadata"
_LOGPROBS = "sglang.srt.layers.logprob_processor"
_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner"
_OLD_RUNNER = "sglang.srt.model_executor.breakable_cuda_graph_runner:BreakableCudaGraphRunner"


def _planted(holder: str, name: str, line: str, other: str) -> Callable[[], LogitsPrefillTarget]:
    opened = lambda: LogitsPrefillTarget("sglang-logits-prefill")  # noqa: E731
    return with_a_line_changed(opened, holder, name, line, other)


def _in_full_graphs(
    holder: str, name: str, line: str, other: str
) -> Callable[[], FullLogitsPrefillTarget]:
    opened = lambda: FullLogitsPrefillTarget("sglang-logits-full-prefill")  # noqa: E731
    return with_a_line_changed(opened, holder, name, line, other)


row_behind_the_last = _planted(
    _PROCESSOR, "_get_pruned_states",
    "last_index = torch.cumsum(logits_metadata.extend_seq_lens, dim=0) - 1",
    "last_index = torch.cumsum(logits_metadata.extend_seq_lens, dim=0) - 2",
)  # fmt: skip
last_rows_by_lengths_of_one_row = _planted(
    _PROCESSOR, "_get_pruned_states",
    "last_index = torch.cumsum(logits_metadata.extend_seq_lens, dim=0) - 1",
    "last_index = logits_metadata.extend_seq_lens - 1",
)  # fmt: skip
first_rows_of_layers = _planted(
    _PROCESSOR, "_get_hidden_states_to_store",
    "hidden_states_to_store = pack_aux_hidden_states(aux_hidden_states)",
    "hidden_states_to_store = pack_aux_hidden_states(aux_hidden_states[::-1])",
)  # fmt: skip
sampled_rows_one_on = _planted(
    _PROCESSOR, "_get_pruned_states",
    "sample_index_pt += extend_len - start_len",
    "sample_index_pt += extend_len - extend_logprob_start_len",
)  # fmt: skip
logprobs_of_first_rows = _planted(
    _PROCESSOR, "_get_pruned_states",
    "pruned_states_list.append(",
    "pruned_states_list.append(hidden_states[pt : pt + extend_len - start_len] if True else ",
)  # fmt: skip
asked_rows_not_counted_on = _planted(
    _PROCESSOR, "_get_pruned_states",
    "input_logprob_indices_pt += extend_len - start_len",
    "input_logprob_indices_pt += extend_len - extend_logprob_start_len",
)  # fmt: skip
rows_of_a_chunk_backwards = _planted(
    f"{_LOGPROBS}:InputLogprobProcessor", "_forward_by_chunk",
    "chunk_indices = input_logprob_indices[lp_lo:lp_hi] - start_idx",
    "chunk_indices = (input_logprob_indices[lp_lo:lp_hi] - start_idx).flip(0)",
)  # fmt: skip
samples_of_a_chunk_start = _planted(
    f"{_LOGPROBS}:InputLogprobProcessor", "_forward_by_chunk",
    "sample_indices[s_lo:s_hi] - start_idx", "sample_indices[s_lo:s_hi] * 0",
)  # fmt: skip
not_normalised = _planted(
    f"{_LOGPROBS}:InputLogprobProcessor", "_forward_by_chunk",
    "chunk_token_logprobs.float() - row_max", "chunk_token_logprobs.float()",
)  # fmt: skip
top_values_not_split = _planted(
    _LOGPROBS, "get_top_logprobs_chunk",
    "next_split_pruned_len = split_pruned_len + available_len", "next_split_pruned_len = 0",
)  # fmt: skip
logprobs_left_out = _planted(
    f"{_RUNNER}:PrefillCudaGraphRunner", "_trim_logits_output",
    "input_token_logprobs=output.input_token_logprobs,", "",
)  # fmt: skip
wants_no_logprobs = _planted(
    f"{_RUNNER}:PrefillCudaGraphRunner", "load_batch",
    "return_logprob=(", "return_logprob=False and (",
)  # fmt: skip
hidden_states_of_requests = _planted(
    f"{_RUNNER}:PrefillCudaGraphRunner", "_trim_logits_output",
    "output.hidden_states[: self.raw_num_tokens]", "output.hidden_states[: self.raw_bs]",
)  # fmt: skip
hidden_states_of_a_bucket = _planted(
    f"{_RUNNER}:PrefillCudaGraphRunner", "_trim_logits_output",
    "output.hidden_states[: self.raw_num_tokens]", "output.hidden_states",
)  # fmt: skip
hidden_states_not_asked_for = _planted(
    f"{_RUNNER}:PrefillCudaGraphRunner", "load_batch",
    "capture_hidden_mode=forward_batch.capture_hidden_mode,",
    "capture_hidden_mode=type(forward_batch.capture_hidden_mode)(0),",
)  # fmt: skip
shared_whatever_it_holds = _planted(
    f"{_RUNNER}:PrefillCudaGraphRunner", "_next_token_logits_buffer",
    "rows > graph_shared_output.max_rows", "rows > rows",
)  # fmt: skip
logits_of_one_request = _in_full_graphs(
    f"{_RUNNER}:PrefillCudaGraphRunner", "_trim_logits_output",
    "logits_rows = self.raw_bs if", "logits_rows = 1 if",
)  # fmt: skip
runs_behind_the_static_batch = _in_full_graphs(
    f"{_RUNNER}:PrefillCudaGraphRunner", "_execute_body_capture",
    "tail_batch = copy.copy(forward_batch)", "tail_batch = copy.copy(static_forward_batch)",
)  # fmt: skip
hidden_states_of_requests_in_old_runners = _planted(
    _OLD_RUNNER, "replay",
    "output.hidden_states[: self.raw_num_tokens]",
    "output.hidden_states[: forward_batch.batch_size]",
)  # fmt: skip
logits_of_one_request_in_old_runners = _planted(
    _OLD_RUNNER, "replay",
    "output.next_token_logits[: self.raw_num_tokens]", "output.next_token_logits[:1]",
)  # fmt: skip
