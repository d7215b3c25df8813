"""`--attention-backend flashinfer` under EAGLE's drafts: `FlashInferMultiStepDraftBackend`.

Models of FlashInfer's wrappers compute; each step has wrappers of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.flashinfer import (
    FLASHINFER,
    buffers_of,
    planned_offsets,
)
from fuzzgraph.targets.sglang.backends.multi_step_draft import (
    MultiStepDraftSession,
    MultiStepDraftTarget,
)
from fuzzgraph.targets.sglang.stubs.workspaces import keep_workspaces_small


class FlashInferDraftTarget(MultiStepDraftTarget):
    """EAGLE's draft runner on FlashInfer."""

    def __init__(self, name: str) -> None:
        super().__init__(name, FLASHINFER)
        self.about = "FlashInfer on each EAGLE draft step"
        self.also_stood_in_for = ("FlashInfer's wrappers, by models", "what samples drafts")

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> FlashInferDraftSession:
        return FlashInferDraftSession(config, graphs)

    def load(self) -> None:
        keep_workspaces_small()
        super().load()


class FlashInferDraftSession(MultiStepDraftSession):
    """One draft runner and FlashInfer's wrappers of each step."""

    attends_on = FLASHINFER
    of_all_steps = "FlashInferMultiStepDraftBackend"

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        self._read: dict[Hashable, dict[str, torch.Tensor]] = {}
        super().__init__(config, graphs)

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        assert isinstance(key, int)
        self._read[key] = self._metadata_tensors(key)

    def _wrappers(self, size: int | None) -> list[Any]:
        backends = self.backend.attn_backends
        if size is None:
            return [one.forward_metadata.decode_wrappers[0] for one in backends]
        return [one.decode_cuda_graph_metadata[size][0] for one in backends]

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        return {
            f"step{step}_{name}": buffers_of(wrapper)[f"paged_{name}"]
            for step, wrapper in enumerate(self._wrappers(size))
            for name in ("kv_indptr", "kv_indices")
        }

    def _read_by(self, size: int | None) -> dict[str, torch.Tensor]:
        return self._metadata_tensors(None) if size is None else self._read[size]

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        used = super()._used(lens)
        for step, wrapper in enumerate(self._wrappers(self._size)):
            plan = planned_offsets([wrapper])
            if plan:
                used[f"step{step}_plan"] = plan["kv_indptr"].long()
        return used
