"""`--attention-backend triton` under EAGLE's drafts: `TritonMultiStepDraftBackend`."""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.backends.multi_step_draft import (
    MultiStepDraftSession,
    MultiStepDraftTarget,
)
from fuzzgraph.targets.sglang.backends.triton import HEURISTIC, SPLITS, TRITON

_SPLITS = "draft_kv_splits"


class TritonDraftTarget(MultiStepDraftTarget):
    """EAGLE's draft runner on Triton attention."""

    def __init__(self, name: str) -> None:
        super().__init__(name, TRITON)
        self.about = "Triton attention on each EAGLE draft step"
        self.also_stood_in_for = ("the number of cores", "what samples drafts")

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> TritonDraftSession:
        return TritonDraftSession(config, graphs)


class TritonDraftSession(MultiStepDraftSession):
    """One draft runner and Triton's backend of each step; the steps share their splits."""

    attends_on = TRITON
    of_all_steps = "TritonMultiStepDraftBackend"

    def fields_of_step(self, name: str, step: int) -> tuple[Field, ...]:
        splits = fields.value(_SPLITS, unjudged=HEURISTIC, source=SPLITS)
        return *super().fields_of_step(name, step), *(() if step else (splits,))

    @property
    def rows_read_whole(self) -> tuple[torch.Tensor, ...]:
        """Each step's list of slots: a graph gets as much of it as the lengths at capture need,
        and replays for longer ones (sglang TritonMultiStepDraftBackend.common_template)."""
        return tuple(self.backend.cuda_graph_kv_indices)

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        """The static tensors of all steps, the same for graphs of all sizes."""
        backend = self.backend
        found = {_SPLITS: backend.cuda_graph_num_kv_splits}
        for step in range(len(backend.attn_backends)):
            found[f"step{step}_kv_indptr"] = backend.kv_indptr[step]
            found[f"step{step}_kv_indices"] = backend.cuda_graph_kv_indices[step]
        return found

    def _read_by(self, size: int | None) -> dict[str, torch.Tensor]:
        if size is not None:
            return self._metadata_tensors(size)
        found = {}
        for step, one in enumerate(self.backend.attn_backends):
            metadata = one.forward_metadata
            found[_SPLITS] = metadata.num_kv_splits
            found[f"step{step}_kv_indptr"] = metadata.kv_indptr
            found[f"step{step}_kv_indices"] = metadata.kv_indices
        return found

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        used = super()._used(lens)
        used[_SPLITS] = used[_SPLITS][: len(lens) * self._config.spec_topk]
        return used
