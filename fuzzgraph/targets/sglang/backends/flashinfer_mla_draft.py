"""`--attention-backend flashinfer` under EAGLE's drafts of models with latent attention:
`FlashInferMLAMultiStepDraftBackend`.

A kernel reads a step's list of slots from the buffer that its wrapper was made with, offsets and
lengths from the plan. These are the past's at every step: no step sees a draft (`draft_reach`).
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.backends.flashinfer import buffers_of, held_wrappers, planned_offsets
from fuzzgraph.targets.sglang.backends.flashinfer_mla import FLASHINFER_MLA
from fuzzgraph.targets.sglang.backends.multi_step_draft import (
    MultiStepDraftSession,
    MultiStepDraftTarget,
    drafts_on,
)
from fuzzgraph.targets.sglang.stubs.workspaces import keep_workspaces_small

_QUERIES = "sglang flashinfer_mla_backend.py: q_indptr_decode counts a query for each row"


class FlashInferMlaDraftTarget(MultiStepDraftTarget):
    """EAGLE's draft runner on FlashInfer's latent attention."""

    judged = "one branch"

    def __init__(self, name: str) -> None:
        super().__init__(name, FLASHINFER_MLA)
        decodes = FLASHINFER_MLA.target(name, "decode")
        self.about = "FlashInfer's MLA on each EAGLE draft step"
        self.also_stood_in_for = (*FLASHINFER_MLA.stood_in_for, "what samples drafts")
        self.capabilities = drafts_on(decodes.capabilities, self.capabilities).replace(
            draft_reaches=("past",)
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> FlashInferMlaDraftSession:
        return FlashInferMlaDraftSession(config, graphs)

    def load(self) -> None:
        keep_workspaces_small()
        super().load()


class FlashInferMlaDraftSession(MultiStepDraftSession):
    """One draft runner and FlashInfer's wrapper of each step."""

    attends_on = FLASHINFER_MLA
    of_all_steps = "FlashInferMLAMultiStepDraftBackend"

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        self._read: dict[Hashable, dict[str, torch.Tensor]] = {}
        super().__init__(config, graphs)

    def fields_of_step(self, name: str, step: int) -> tuple[Field, ...]:
        queries = fields.offsets(f"{name}_qo_indptr", repeats="one_each", source=_QUERIES)
        return *super().fields_of_step(name, step), queries

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        assert isinstance(key, int)
        self._read[key] = self._metadata_tensors(key)

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        return {
            f"step{step}_kv_indices": buffers_of(held_wrappers(backend, size)[0])["kv_indices"]
            for step, backend in enumerate(self.backend.attn_backends)
        }

    def _read_by(self, size: int | None) -> dict[str, torch.Tensor]:
        planned = {
            f"step{step}_{name}": offsets
            for step, backend in enumerate(self.backend.attn_backends)
            for name, offsets in planned_offsets(held_wrappers(backend, size)).items()
        }
        return (self._metadata_tensors(None) if size is None else self._read[size]) | planned
