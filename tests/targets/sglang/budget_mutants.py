"""Planted bugs of DSpark's verifies by a budget, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.runners.dspark_verify import (
    DSparkTokensSession,
    DSparkVerifySession,
    DSparkVerifyTarget,
)
from tests.targets.sglang.changed_kernels import change_kernel
from tests.targets.sglang.changed_lines import change_line_elsewhere

_Plant = Callable[[Any], None]
_PARTS = "sglang.srt.speculative.dspark_components"
_KERNELS = "sglang.kernels.ops.speculative"
_WORKER = f"{_PARTS}.dspark_worker_v2:DSparkWorkerV2"
_EXECUTOR = f"{_PARTS}.dspark_verify:TargetVerifyExecutor"
_PLANNER = f"{_PARTS}.dspark_planner"
_WINDOW = f"{_KERNELS}.dspark.dspark_verify_window"
_FA3 = "sglang.srt.layers.attention.flashattention_backend:FlashAttentionBackend"
_TRTLLM = "sglang.srt.layers.attention.trtllm_mha_backend:TRTLLMHAAttnBackend"


class _Planted(DSparkVerifyTarget):
    def __init__(self, plant: _Plant, backend: str = "fa3") -> None:
        super().__init__(f"sglang-dspark-verify-{backend}", backend)
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DSparkVerifySession:
        by_tokens = config.verify_budget in ("compact", "verify_all")
        kind = DSparkTokensSession if by_tokens else DSparkVerifySession
        session = kind(config, graphs, self.backend)
        self._plant(session)
        return session


def _line(holder: str, name: str, line: str, other: str = "pass", backend: str = "fa3") -> _Planted:
    plant = partial(change_line_elsewhere, holder=holder, name=name, line=line, other=other)
    return _Planted(plant, backend)


def _kernel(module: str, name: str, line: str, other: str) -> _Planted:
    return _Planted(partial(change_kernel, module=module, name=name, line=line, other=other))


def budget_and_other_ranks_change_places() -> _Planted:
    """The planner is given what other ranks have for its budget."""
    return _line(
        _WORKER,
        "_forward_decode",
        "budget=verify_token_budget,\n        global_num_reqs=global_num_reqs,",
        "budget=global_num_reqs,\n        global_num_reqs=verify_token_budget,",
    )


def lengths_of_the_step_before() -> _Planted:
    """What a graph spreads tokens out by stays that of another step."""
    line = "self.verify_epilogue.begin_step(layout.verify_lens, armed=inject_gate)"
    return _line(_EXECUTOR, "run_compact", line)


def offsets_of_the_capture() -> _Planted:
    """Queries of rows are cut as in the batch that the graph was captured with."""
    line = "metadata.cu_seqlens_q.copy_(geometry.cu_seqlens_q)"
    return _line(_FA3, "_apply_cuda_graph_metadata", line)


def offsets_of_the_capture_on_trtllm() -> _Planted:
    line = "metadata.cu_seqlens_q.copy_(geometry.cu_seqlens_q)"
    return _line(_TRTLLM, "_write_ragged_verify_graph_metadata", line, backend="trtllm-mha")


def lengths_without_the_rows_tokens() -> _Planted:
    """Keys of a row are counted without its own tokens."""
    return _line(
        "sglang.srt.layers.attention.flashattention_backend",
        "build_ragged_target_verify_geometry",
        "(seq_lens + layout.verify_lens)",
        "(seq_lens + 0 * layout.verify_lens)",
    )


def rows_begin_behind_their_tokens() -> _Planted:
    """Logits of a row are spread out from the first of the row behind it on."""
    line = "(torch.cumsum(verify_lens, dim=0) - verify_lens)"
    name = "scatter_compact_to_strided_into"
    return _line(f"{_PARTS}.dspark_verify", name, line, "torch.cumsum(verify_lens, dim=0)")


def keys_at_the_rows_first_place() -> _Planted:
    """All tokens of a row are committed at the place of its first."""
    line = "positions_2d = prefix_lens.unsqueeze(1) + self._block_pos_offsets"
    other = "positions_2d = prefix_lens.unsqueeze(1) + 0 * self._block_pos_offsets"
    return _line(f"{_PARTS}.dspark_kv_inject:TargetHiddenKvInjector", "inject_ragged", line, other)


def graphs_without_room_for_first_tokens() -> _Planted:
    """A graph is chosen by the budget alone, without the first token of each row."""
    line = "floor_tokens = bs * max(min_verify_len, 1)"
    return _line(_PLANNER, "local_verify_tier_num_tokens", line, "floor_tokens = 0")


def drafts_beyond_the_budget_stay() -> _Planted:
    """What the budget does not pay for is accepted."""
    return _line(_EXECUTOR, "accept_and_finalize", "cutoff_layout=layout,", "cutoff_layout=None,")


def graphs_accept_beyond_the_row() -> _Planted:
    """The same inside graphs."""
    return _line(
        f"{_PARTS}.dspark_verify:DsparkVerifyEpilogue",
        "_accept",
        "cutoff_verify_lens=cutoff_verify_lens,",
        "cutoff_verify_lens=None,",
    )


def places_of_the_rows_first_token() -> _Planted:
    """All tokens of a row stand where its first one does."""
    line = "pos = tl.where(valid, prefix + within, 0)"
    return _kernel(_WINDOW, "_ragged_finalize_kernel", line, "pos = tl.where(valid, prefix, 0)")


def rows_are_one_token_longer() -> _Planted:
    """Rows of a graph take the first token of the row behind them."""
    line = "final = tl.where(is_real, vl, pad_len)"
    other = "final = tl.where(is_real, vl + 1, pad_len)"
    return _kernel(f"{_KERNELS}.ragged_verify_kernels", "_padded_to_bucket_kernel", line, other)
