"""Planted bugs of what sglang does around experts that DeepEP exchanges tokens for, each the change
of one line."""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.targets.sglang.backends.moe_deepep import MoeDeepepTarget
from tests.targets.sglang.planted import with_a_line_changed

_DEEPEP = "sglang.srt.layers.moe.token_dispatcher.deepep:_DeepEPDispatcherImplLowLatency"
_RUNNER = "sglang.srt.layers.moe.moe_runner.deep_gemm:DeepGemmRunnerCore"
_TOPK = "sglang.srt.layers.moe.topk"
_BLOCK = "sglang.srt.models.qwen3_moe:Qwen3MoeSparseMoeBlock"
_REGISTRY = "sglang.srt.model_executor.cuda_graph_buffer_registry:CudaGraphBufferRegistry"
_WAITS = "hook() if self.return_recv_hook else event.current_stream_wait()"
_ACTIVATION = "silu_and_mul_masked_fwd(gateup_output, down_input, masked_m)"


def _planted(holder: str, name: str, line: str, other: str) -> Callable[[], MoeDeepepTarget]:
    """The target with one line of the engine changed."""
    return with_a_line_changed(
        lambda: MoeDeepepTarget("sglang-moe-deepep"), holder, name, line, other
    )


tokens_not_received = _planted(_DEEPEP, "dispatch_b", _WAITS, "pass")
results_not_received = _planted(_DEEPEP, "combine_b", _WAITS, "pass")
last_row_not_activated = _planted(
    _RUNNER, "_run_masked_bf16_gemm", _ACTIVATION, _ACTIVATION.replace("masked_m", "masked_m - 1")
)
rows_behind_the_count_multiplied = _planted(
    _RUNNER, "_run_masked_bf16_gemm",
    "    w13_weight = quant_info.w13_weight\n",
    "    masked_m, w13_weight = torch.full_like(masked_m, runner_input.hidden_states.shape[1]),"
    " quant_info.w13_weight\n",
)  # fmt: skip
padded_tokens_sent = _planted(
    _TOPK, "resolve_routing_inputs",
    "    return num_token_non_padded, expert_location_dispatch_info",
    "    return None, expert_location_dispatch_info",
)  # fmt: skip
last_token_masked = _planted(
    _TOPK, "resolve_routing_inputs",
    "    return num_token_non_padded, expert_location_dispatch_info",
    "    return num_token_non_padded - 1, expert_location_dispatch_info",
)  # fmt: skip
idle_rank_takes_no_part = _planted(
    _BLOCK, "forward_deepep",
    "        topk_output = self.topk.empty_topk_output(hidden_states.device)",
    "        return hidden_states",
)  # fmt: skip
graph_told_of_tokens_with_padding = _planted(
    _REGISTRY, "fill_from",
    "    raw_num_tokens=raw_num_tokens,\n", "    raw_num_tokens=padded_num_tokens,\n",
)  # fmt: skip
results_weighed_alike = _planted(
    _DEEPEP, "_combine_core",
    "topk_weights=topk_weights,", "topk_weights=torch.ones_like(topk_weights),",
)  # fmt: skip
sent_to_neighbours = _planted(
    _DEEPEP, "dispatch_a",
    "    topk_ids = topk_ids.to(torch.int64)\n",
    "    topk_ids = topk_ids.to(torch.int64).roll(1, 0)\n",
)  # fmt: skip
