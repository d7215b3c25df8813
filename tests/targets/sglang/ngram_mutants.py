"""n-gram speculation behind captured preparations: the engine as it would be repaired, without such
preparations, and with planted bugs, each of them the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.metadata_glue import (
    BackendGlueSession,
    BackendGlueTarget,
    TritonGlueSession,
    TritonGlueTarget,
)
from fuzzgraph.targets.sglang.backends.triton import TritonTarget
from fuzzgraph.targets.sglang.decode_session import DecodeSession
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.target import SglangTarget
from tests.targets.sglang.changed_lines import change_line

Plant = Callable[[Any, Any], None]
"""Changes (the backend, the engine's decode runner) before any graph is captured."""


def _unchanged(backend: Any, engine: Any) -> None:
    """The mask is written into the backend's buffer, and no more is changed."""


def _repaired(session: type[DecodeSession], plant: Plant) -> Any:
    """The sessions of a backend, with masks that the worker writes in place, and a change."""

    class Repaired(session):  # type: ignore[misc, valid-type]
        _writes_in_place = True

        def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
            driver: RunnerDriver = super()._open_runner(graphs)
            plant(self.backend, driver._engine)
            return driver

    return Repaired


class _TritonRepaired(TritonGlueTarget):
    def __init__(self, plant: Plant = _unchanged) -> None:
        super().__init__("sglang-triton-glue-verify", "target_verify")
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        return _repaired(TritonGlueSession, self._plant)(config, graphs)


class _FA3Repaired(BackendGlueTarget):
    def __init__(self, plant: Plant = _unchanged) -> None:
        super().__init__("sglang-fa3-glue-verify", FA3, "target_verify")
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Any:
        return _repaired(BackendGlueSession, self._plant)(config, graphs, self.backend)


def _offsets_of_masks_without_drafts(backend: Any, engine: Any) -> None:
    whole = "seq_mask_len = num_tokens_per_req * (seq_lens + num_tokens_per_req)"
    other = "seq_mask_len = num_tokens_per_req * seq_lens"
    change_line(backend, "_update_target_verify_buffers", whole, other)


def _mask_of_the_first_cells_alone(backend: Any, engine: Any) -> None:
    behind = "seq_mask_len = num_tokens_per_req * (seq_lens + num_tokens_per_req)"
    cleared = "custom_mask[num_tokens_per_req * num_tokens_per_req :] = True"
    change_line(backend, "_update_target_verify_buffers", behind, f"{cleared}; {behind}")


def _captured_without_a_mask(backend: Any, engine: Any) -> None:
    last = "spec_info.capture_hidden_mode = CaptureHiddenMode.NULL"
    change_line(engine, "get_spec_info", last, f"{last}; spec_info.custom_mask = None")


def _one_query_for_each_branch(backend: Any, engine: Any) -> None:
    all_of_them = "return spec_info.num_tokens_per_req"
    change_line(backend, "_target_verify_num_tokens_per_req", all_of_them, "return self.topk")


def _each_draft_sees_all(backend: Any, engine: Any) -> None:
    counted = "metadata_expand.cache_seqlens_int32.copy_(mask.sum(dim=1))"
    all_of_them = "metadata_expand.cache_seqlens_int32.fill_(self.speculative_num_draft_tokens)"
    change_line(backend, _FA3_PREPARES, counted, all_of_them)


def _cells_of_padding_begin_too_early(backend: Any, engine: Any) -> None:
    right = "spec_info.positions.numel() * self.speculative_num_draft_tokens :"
    change_line(backend, _FA3_PREPARES, right, "spec_info.positions.numel() :")


def _drafts_in_the_order_of_their_slots(backend: Any, engine: Any) -> None:
    sorted_ = "_, sort_order = torch.sort(keys, dim=1)"
    change_line(backend, _FA3_PREPARES, sorted_, "sort_order = col_indices")


_FA3_PREPARES = "_apply_cuda_graph_metadata"


def triton_repaired() -> SglangTarget:
    return _TritonRepaired()


def fa3_repaired() -> SglangTarget:
    return _FA3Repaired()


def triton_without_captured_preparations() -> SglangTarget:
    return _with_ngram_drafts(TritonTarget("sglang-triton-verify", "target_verify"))


def fa3_without_captured_preparations() -> SglangTarget:
    return _with_ngram_drafts(BackendTarget("sglang-fa3-verify", FA3, "target_verify"))


def _with_ngram_drafts(target: SglangTarget) -> SglangTarget:
    target.capabilities = target.capabilities.replace(ngram_drafts=True)
    return target


def offsets_of_masks_without_drafts() -> SglangTarget:
    return _TritonRepaired(_offsets_of_masks_without_drafts)


def mask_of_the_first_cells_alone() -> SglangTarget:
    return _TritonRepaired(_mask_of_the_first_cells_alone)


def captured_without_a_mask() -> SglangTarget:
    return _TritonRepaired(_captured_without_a_mask)


def one_query_for_each_branch() -> SglangTarget:
    return _TritonRepaired(_one_query_for_each_branch)


def each_draft_sees_all() -> SglangTarget:
    return _FA3Repaired(_each_draft_sees_all)


def cells_of_padding_begin_too_early() -> SglangTarget:
    return _FA3Repaired(_cells_of_padding_begin_too_early)


def drafts_in_the_order_of_their_slots() -> SglangTarget:
    return _FA3Repaired(_drafts_in_the_order_of_their_slots)
