"""Planted bugs of what sglang keeps of exchanges between experts, each the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetTarget
from fuzzgraph.targets.sglang.backends.multi_layer import LayersTarget
from fuzzgraph.targets.sglang.runners.eagle_draft import DraftTarget
from tests.targets.sglang.planted import with_a_line_changed

__all__ = [
    "drafts_without_their_mode",
    "extended_drafts_without_their_mode",
    "flag_by_another_name",
    "flag_of_an_earlier_batch",
    "layers_without_their_mode",
    "memory_of_prompts",
    "replay_without_its_mode",
]

_REPLAY = "self.deepep_adapter.replay()"
_KEPT = "sglang.srt.layers.moe.token_dispatcher.deepep:DeepEPBuffer"
_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
_DECODE = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner"
_DRAFT = "sglang.srt.speculative.eagle_draft_cuda_graph_runner:EAGLEDraftCudaGraphRunner"
_EXTEND = (
    "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner"
)
_LAYERS = (
    "sglang.srt.speculative.multi_layer_eagle_draft_extend_cuda_graph_runner:"
    "MultiLayerEagleDraftExtendCudaGraphRunner"
)


def _decodes() -> BackendTarget:
    return BackendTarget("sglang-fa3", FA3, "decode")


def _changed(opened: Any, holder: str, name: str, line: str, other: str = "pass") -> Any:
    return with_a_line_changed(opened, holder, name, line, other)


replay_without_its_mode = _changed(_decodes, _DECODE, "load_batch", _REPLAY)
memory_of_prompts = _changed(
    _decodes, _KEPT, "set_dispatch_mode_as_low_latency", "cls.clean_buffer()"
)
flag_of_an_earlier_batch = _changed(
    _decodes,
    _BATCH,
    "prepare_mlp_sync_batch",
    "set_is_extend_in_batch(self.is_extend_in_batch)",
)
flag_by_another_name = _changed(
    lambda: DeltaNetTarget("sglang-gdn", "decode"),
    _BATCH,
    "prepare_mlp_sync_batch",
    "set_is_extend_in_batch(self.is_extend_in_batch)",
    "set_is_extend_in_batch(self.is_prefill_only)",
)
drafts_without_their_mode = _changed(
    lambda: DraftTarget("sglang-eagle-draft", "draft"), _DRAFT, "execute", _REPLAY
)
extended_drafts_without_their_mode = _changed(
    lambda: DraftTarget("sglang-eagle-draft-extend", "draft_extend"), _EXTEND, "execute", _REPLAY
)
layers_without_their_mode = _changed(
    lambda: LayersTarget("sglang-multi-layer-deepep", "triton", "deepep"),
    _LAYERS,
    "replay",
    _REPLAY,
)
