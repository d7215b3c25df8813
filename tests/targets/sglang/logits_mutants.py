"""Planted bugs of what sglang makes logits and hidden states of, and of what its runners hand on of
them, each the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.logits import LogitsTarget
from tests.targets.sglang.planted import with_a_line_changed

_LOGITS = "sglang.srt.layers.logits_processor"
_PROCESSOR = f"{_LOGITS}:LogitsProcessor"
_METADATA = f"{_LOGITS}:LogitsMetadata"
_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner"
_OLD_RUNNER = "sglang.srt.model_executor.cuda_graph_runner:CudaGraphRunner"


def _planted(
    holder: str, name: str, line: str, other: str, mode: Any = "decode"
) -> Callable[[], LogitsTarget]:
    target = "sglang-logits" if mode == "decode" else "sglang-logits-verify"
    return with_a_line_changed(lambda: LogitsTarget(target, mode), holder, name, line, other)


def _verifies(holder: str, name: str, line: str, other: str) -> Callable[[], LogitsTarget]:
    return _planted(holder, name, line, other, "target_verify")


last_columns_of_the_vocabulary = _planted(
    _PROCESSOR, "_copy_logits_to_buffer",
    "logits = logits[:, : self.vocab_size]", "logits = logits[:, -self.vocab_size :]",
)  # fmt: skip
padding_not_cut = _planted(
    _PROCESSOR, "_copy_logits_to_buffer", "logits = logits[:, : self.vocab_size]", "pass"
)
logits_not_copied = _planted(
    _PROCESSOR, "_copy_logits_to_buffer", "logits_buffer.copy_(logits)", "pass"
)
cap_of_float32_forgotten = _planted(
    _PROCESSOR, "_get_logits",
    "if self.final_logit_softcapping and not fuse_cast_softcap:", "if False:",
)  # fmt: skip
cap_of_a_cast_forgotten = _planted(
    _PROCESSOR, "_get_logits",
    "softcap=self.final_logit_softcapping if fuse_cast_softcap else None", "softcap=None",
)  # fmt: skip
capped_twice = _planted(
    _PROCESSOR, "_get_logits",
    "if self.final_logit_softcapping and not fuse_cast_softcap:",
    "if self.final_logit_softcapping:",
)  # fmt: skip
hidden_states_not_asked_for = _planted(
    _METADATA, "from_forward_batch",
    "capture_hidden_mode=forward_batch.capture_hidden_mode,", "",
)  # fmt: skip
layers_in_another_order = _verifies(
    _PROCESSOR, "_get_hidden_states_to_store",
    "hidden_states_to_store = pack_aux_hidden_states(aux_hidden_states)",
    "hidden_states_to_store = pack_aux_hidden_states(aux_hidden_states[::-1])",
)  # fmt: skip
last_layer_alone = _verifies(
    _PROCESSOR, "_get_hidden_states_to_store",
    "hidden_states_to_store = pack_aux_hidden_states(aux_hidden_states)",
    "hidden_states_to_store = hidden_states",
)  # fmt: skip
a_logit_for_each_row = _verifies(
    _RUNNER, "execute",
    "output.next_token_logits[: self.raw_num_token]", "output.next_token_logits[: self.raw_bs]",
)  # fmt: skip
hidden_states_of_padded_rows = _verifies(
    _RUNNER, "execute",
    "output.hidden_states[: self.raw_num_token]",
    "output.hidden_states[: self.bs * self.captured_req_width]",
)  # fmt: skip
last_rows_of_a_graph = _planted(
    _RUNNER, "execute",
    "output.next_token_logits[: self.raw_num_token]",
    "output.next_token_logits[-self.raw_num_token :]",
)  # fmt: skip
a_logit_for_each_row_in_old_runners = _verifies(
    _OLD_RUNNER, "replay",
    "output.next_token_logits[: self.raw_num_token]", "output.next_token_logits[: self.raw_bs]",
)  # fmt: skip
cut_by_rows_beside_ranks = _verifies(
    _BATCH, "post_forward_mlp_sync_batch",
    "num_tokens = bs * self.spec_info.num_tokens_per_req", "num_tokens = bs",
)  # fmt: skip
starts_behind_its_own_tokens = _planted(
    _METADATA, "compute_dp_attention_metadata",
    "dp_local_start_pos = cumtokens[dp_rank - 1]", "dp_local_start_pos = cumtokens[dp_rank]",
)  # fmt: skip
as_many_tokens_as_the_first_rank = _planted(
    _METADATA, "compute_dp_attention_metadata",
    "self.global_num_tokens_for_logprob_gpu[dp_rank]",
    "self.global_num_tokens_for_logprob_gpu[0]",
)  # fmt: skip
logits_of_the_first_rank = _planted(
    _PROCESSOR, "_scatter_dp_attn_logits",
    "dp_scatter(logits, global_logits, logits_metadata)",
    "logits.copy_(global_logits[: len(logits)])",
)  # fmt: skip
parts_of_the_vocabulary_one_rank_on = _planted(
    _PROCESSOR, "_get_logits",
    "logits = self._logits_gatherer(logits)",
    "logits = self._logits_gatherer(logits); logits.copy_(logits.roll(16, 1))",
)  # fmt: skip
