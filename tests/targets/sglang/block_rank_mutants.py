"""DSpark's blocks beside other ranks, with one line of the engine changed.

Opened by name. The lines are those of sglang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable

from fuzzgraph.targets.sglang.runners.dspark import DSparkDraftTarget
from fuzzgraph.targets.sglang.runners.dspark_verify import DSparkVerifyTarget
from tests.targets.sglang.planted import with_a_line_changed

_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
_EAGER = "sglang.srt.model_executor.runner.eager_runner:EagerRunner"
_PROPOSER = "sglang.srt.speculative.dspark_components.dspark_draft:DraftBlockProposer"
_PLANNER = "sglang.srt.speculative.dspark_components.dspark_planner"
_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner"
_SCHEDULER = "sglang.srt.managers.scheduler_components.dp_attn"
_VERIFY = "sglang.srt.speculative.dspark_components.dspark_verify:TargetVerifyExecutor"
_OF_WORKER = "sglang.srt.speculative.dspark_components.dspark_worker_v2"
_WORKER = "sglang.srt.speculative.dspark_components.dspark_worker_v2:DSparkWorkerV2"


def _target() -> DSparkVerifyTarget:
    return DSparkVerifyTarget("sglang-dspark-verify-fa3", "fa3")


def _changed(holder: str, name: str, line: str, other: str) -> Callable[[], DSparkVerifyTarget]:
    return with_a_line_changed(_target, holder, name, line, other)


counts_of_one_rank = _changed(
    _SCHEDULER, "_update_gather_batch",
    "batch.global_num_tokens = mlp_sync_info.global_num_tokens",
    "batch.global_num_tokens = [mlp_sync_info.num_tokens for _ in mlp_sync_info.global_num_tokens]",
)  # fmt: skip
"""Line 315: each rank takes the others for as large as itself."""

votes_of_no_rank = _changed(
    _SCHEDULER, "_update_gather_batch",
    "batch.can_run_decode_cuda_graph = mlp_sync_info.can_run_decode_cuda_graph",
    "batch.can_run_decode_cuda_graph = False",
)  # fmt: skip
"""Line 347: no rank takes a graph."""

tokens_for_requests = _changed(
    _BATCH, "init_mlp_sync_metadata",
    "self.original_global_num_tokens_cpu = global_num_tokens_source",
    "self.original_global_num_tokens_cpu = global_num_tokens",
)  # fmt: skip
"""Line 942: graphs are chosen by the tokens of ranks."""

idle_blocks_of_one_token = _changed(
    _VERIFY, "run_idle_participation",
    "draft_token_num=self.verify_num_draft_tokens,",
    "draft_token_num=1,",
)  # fmt: skip
"""Line 267: an idle rank comes with blocks of another width."""

idle_ranks_stay_away = _changed(
    _WORKER, "_forward_decode", "if get_parallel().attn_dp_enabled:", "if self._draft_is_moe:"
)
"""Line 995: an idle rank joins where drafts have experts alone."""

planned_unpadded = _changed(
    _EAGER, "_execute_extend", "or forward_batch.forward_mode.is_target_verify()", "or False"
)
"""Line 299: without a graph the plan is that of the batch before it was padded, as up to 0.5.17."""

writes_to_a_slot_of_nobody = _changed(
    _BATCH, "_pad_inputs_to_size",
    "self.out_cache_loc = self._pad_tensor_to_size(self.out_cache_loc, num_tokens)",
    "self.out_cache_loc = self._pad_tensor_to_size(self.out_cache_loc, num_tokens, value=1)",
)  # fmt: skip
"""Line 2032: tokens that pad are written to slot 1."""

rows_of_the_first_request = _changed(
    _BATCH, "_pad_inputs_to_size",
    "self.req_pool_indices = self._pad_tensor_to_size(self.req_pool_indices, bs)",
    "self.req_pool_indices = self._pad_tensor_to_size("
    "self.req_pool_indices, bs, value=int(self.req_pool_indices[0]) if bs else 0)",
)  # fmt: skip
"""Line 2005: rows that pad are the first request's."""

cut_by_requests = _changed(
    _BATCH, "post_forward_mlp_sync_batch",
    "num_tokens = bs * self.spec_info.num_tokens_per_req",
    "num_tokens = bs",
)  # fmt: skip
"""Line 2191: of the verify as many tokens come back as there are requests."""

no_floor_of_all_ranks = _changed(
    _PLANNER, "uniform_ragged_layout",
    "        ragged_verify_mode=ragged_verify_mode,\n"
    "        verify_num_draft_tokens=verify_num_draft_tokens,\n"
    "        model_runner=model_runner,\n",
    "        ragged_verify_mode=verify_num_draft_tokens,\n"
    "        verify_num_draft_tokens=ragged_verify_mode,\n"
    "        model_runner=model_runner,\n",
)  # fmt: skip
"""Line 702: a graph by tokens is chosen by this rank's tokens, not by those of the largest one."""

least_budget_of_all_ranks = _changed(
    _OF_WORKER, "dp_global_verify_tier_num_tokens",
    "max_tier_num_tokens = max(global_tier_num_tokens, default=0)",
    "max_tier_num_tokens = sorted(global_tier_num_tokens)[-2]",
)  # fmt: skip
"""Line 641: ranks agree on a graph that the largest budget does not fit into."""

idle_ranks_take_the_smallest_graph = _changed(
    _OF_WORKER, "idle_ragged_layout",
    "graph_num_tokens_floor=dp_tier_num_tokens", "graph_num_tokens_floor=0",
)  # fmt: skip
"""Line 680: a rank without requests replays a graph of one token for each row of the largest."""


def _drafts() -> DSparkDraftTarget:
    return DSparkDraftTarget("sglang-dspark-draft-fa3", "fa3")


drafts_of_no_vote = with_a_line_changed(
    _drafts, _PROPOSER, "_fill_dp_moe_sync_metadata",
    "forward_batch.can_run_decode_cuda_graph = batch.can_run_decode_cuda_graph", "pass",
)  # fmt: skip
"""Line 683: nobody says that drafts can take a graph, as up to 0.5.17."""

drafts_wait_for_ranks = with_a_line_changed(
    _drafts, _RUNNER, "can_run_graph", "if self.require_mlp_tp_gather:", "if self.require_mlp_sync:"
)
"""Line 871: drafts ask for the rows of all ranks, which nobody tells them."""
