"""Prefills beside other data-parallel ranks, padded by a changed line; opened by name."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import BREAKABLE
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.world import Batch
from tests.targets.sglang.changed_lines import changed_method
from tests.targets.sglang.planted import with_a_line_changed

_INFO = "sglang.srt.model_executor.forward_batch_info"
_COMMON = "sglang.srt.utils.common"


class _Changed(PrefillTarget):
    """Batches of this target are padded by a method with another line."""

    def __init__(self, method: str, line: str, other: str) -> None:
        super().__init__("sglang-breakable-prefill", BREAKABLE.name)
        self._change = method, line, other

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> PrefillSession:
        session = _ChangedSession(config, graphs, BREAKABLE)
        struct = engine_module(_INFO).ForwardBatch
        session.method = {self._change[0]: changed_method(struct, *self._change)}
        return session


class _ChangedSession(PrefillSession):
    method: dict[str, Any]

    def _translate(self, batch: Batch, *, agreed: bool) -> None:
        struct = engine_module(_INFO).ForwardBatch
        with replaced_names([struct], self.method):
            super()._translate(batch, agreed=agreed)


def own_bucket() -> PrefillTarget:
    """A rank takes the graph of its own tokens, not that of the largest rank."""
    return _Changed(
        "prepare_mlp_sync_batch",
        "size for size in prefill_cg.bs if size >= max(global_num_tokens)",
        "s for s in prefill_cg.bs if s >= global_num_tokens[dp_slot_in(global_num_tokens)]",
    )


def own_length() -> PrefillTarget:
    """Each rank keeps its own number of tokens although all agreed on a graph."""
    line = "and max(global_num_tokens) <= max(prefill_cg.bs)"
    return _Changed("prepare_mlp_sync_batch", line, "and False")


def padded_slot() -> PrefillTarget:
    """Tokens that pad a rank's batch are stored in a slot that may be a request's."""
    line = "self.out_cache_loc = self._pad_tensor_to_size(self.out_cache_loc, num_tokens)"
    return _Changed("_pad_inputs_to_size", line, line.replace("tokens)", "tokens, value=5)"))


def idle_counts() -> PrefillTarget:
    """An idle rank's tokens, which are nobody's, count as live ones (sglang PR 33871)."""
    line = "self.global_num_token_non_padded_cpu = 0"
    return _Changed("prepare_mlp_sync_batch", line, line.replace("0", "num_tokens"))


def idle_reads() -> PrefillTarget:
    """The request that stands for an idle rank's tokens reads what a request has cached."""
    line = "self.extend_prefix_lens = torch.zeros("
    return _Changed("prepare_mlp_sync_batch", line, line.replace("zeros", "ones"))


def uneven_sizes() -> PrefillTarget:
    """Sizes of graphs are not rounded up to what ranks with the same prompts can share."""
    return with_a_line_changed(
        lambda: PrefillTarget("sglang-breakable-prefill", BREAKABLE.name),
        _COMMON,
        "get_cuda_graph_batch_size_alignment",
        "gathered_buffer_required = require_gathered_buffer()",
        "pass",
    )()
