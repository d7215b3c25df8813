"""Planted bugs of what sglang does around experts beside data-parallel ranks, each the change of
one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.backends.moe import MoeTarget
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang.changed_lines import changed_function, replace_while_running
from tests.targets.sglang.planted import with_a_line_changed, with_changed_sessions

_RANKS = "sglang.srt.layers.dp_attention"
_OPERATIONS = "sglang.srt.layers.layer_boundary.ops"
_EXIT = "sglang.srt.layers.layer_boundary.exit"
_DISPATCHER = "sglang.srt.layers.moe.token_dispatcher.standard"
_REGISTRY = "sglang.srt.model_executor.cuda_graph_buffer_registry:CudaGraphBufferRegistry"
_COUNTS = "        global_num_tokens,\n        global_num_tokens_gpu,\n    )\n"


def _planted(place: str, name: str, line: str, other: str) -> Callable[[], MoeTarget]:
    """The target with one line of a function changed, in the module that looks it up."""

    def change(session: Any) -> None:
        module = engine_module(place)
        changed = changed_function(getattr(module, name), line, other)
        replace_while_running(session, module, name, lambda _: changed)

    return lambda: with_changed_sessions(MoeTarget("sglang-moe", "decode"), change)


def _counts(first: str, second: str) -> Callable[[], MoeTarget]:
    handed_on = f"        {first},\n        {second},\n    )\n"
    return _planted(_RANKS, "set_dp_buffer_len", _COUNTS, handed_on)


device_counts_for_the_host = _counts("global_num_tokens_gpu", "global_num_tokens_gpu")
host_counts_for_the_device = _counts("global_num_tokens", "global_num_tokens")
scattered_from_a_row_before = _planted(
    _OPERATIONS, "dp_scatter",
    "global_tokens, 0, local_start_pos, local", "global_tokens, 0, local_start_pos - 1, local",
)  # fmt: skip
masked_by_one_too_few = _planted(
    _DISPATCHER, "mask_dp_pad_moe_topk_ids",
    "    rows, topk = topk_ids.shape\n", "    counts, (rows, topk) = counts - 1, topk_ids.shape\n",
)  # fmt: skip
returned_by_other_sizes = _planted(
    _EXIT, "dp_reduce_scatterv",
    "sizes=get_dp_global_num_tokens()", "sizes=get_dp_global_num_tokens()[::-1]",
)  # fmt: skip
buffer_not_cleared = _planted(
    _RANKS, "_dp_gather_via_all_reduce", "    global_tokens.fill_(0)\n", ""
)
one_row_too_few_gathered = _planted(
    _RANKS, "_dp_gather_via_all_reduce",
    "local_start_pos, local_num_tokens, False", "local_start_pos, local_num_tokens - 1, False",
)  # fmt: skip
graph_told_of_tokens_without_padding = with_a_line_changed(
    lambda: MoeTarget("sglang-moe", "decode"), _REGISTRY, "fill_from",
    "    padded_num_tokens=padded_num_tokens,\n        pp",
    "    padded_num_tokens=raw_num_tokens,\n        pp",
)  # fmt: skip
