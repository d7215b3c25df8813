"""Planted bugs of what sglang does around experts that DeepEP exchanges tokens for, each the change
of one line."""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.targets.sglang.backends.moe_deepep import MoeDeepepTarget
from tests.targets.sglang.planted import with_a_line_changed

_DEEPEP = "sglang.srt.layers.moe.token_dispatcher.deepep:_DeepEPDispatcherImplLowLatency"
_RUNNER = "sglang.srt.layers.moe.moe_runner.deep_gemm:DeepGemmRunnerCore"
_TOPK = "sglang.srt.layers.moe.topk"
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
padded_tokens_sent = _planted(
    _TOPK, "resolve_routing_inputs",
    "    return num_token_non_padded, expert_location_dispatch_info",
    "    return None, expert_location_dispatch_info",
)  # fmt: skip
last_token_masked = _planted(
    _TOPK, "resolve_routing_inputs",
    "    return num_token_non_padded, expert_location_dispatch_info",
    "    less = None if num_token_non_padded is None else num_token_non_padded - 1\n"
    "    return less, expert_location_dispatch_info",
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
dispatched_once_more = _planted(
    _DEEPEP, "_dispatch_core",
    "    _deepep_precompile_tp_barrier()\n",
    "    buffer.low_latency_dispatch(hidden_states, topk_ids,"
    " self.num_max_dispatch_tokens_per_rank, self.num_experts, use_fp8=self.use_fp8,"
    " return_recv_hook=True)\n",
)  # fmt: skip
