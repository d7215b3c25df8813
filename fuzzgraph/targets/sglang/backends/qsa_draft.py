"""EAGLE's drafts on Qwen's sparse attention: `sglang-qsa-draft`.

A draft model of Qwen4-Exp has a backend for each step (`QwenSparseMultiStepDraftBackend`), whose
metadata of all steps one Triton kernel writes from 0.5.22 on, and one kernel for each step before.
Real are the draft runner, the worker's loop over its steps, the backends, the layer's choice of
what selects, the indexer and the pool; stood in for is what `qsa` says. Lengths grow with the
steps: each sees itself and the drafts before it, which lie behind the past in its last page.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import attributes
from fuzzgraph.targets.sglang.backends.left_keys import LeavesKeys
from fuzzgraph.targets.sglang.backends.qsa import QSA
from fuzzgraph.targets.sglang.backends.stepwise_draft import (
    StepwiseBackend,
    StepwiseDraftSession,
    StepwiseDraftTarget,
)
from fuzzgraph.targets.sglang.excuses.decode import GROUP_EXCUSES
from fuzzgraph.targets.sglang.excuses.drafts import COPIED_BATCH_EXCUSES
from fuzzgraph.targets.sglang.prompted_groups_model import MODELS
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import DraftRunnerDriver
from fuzzgraph.targets.sglang.selecting_draft_model import GroupsDraftModel

__all__ = ["QsaDraftTarget"]

_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_PADDED = "sglang qsa/graph_metadata.py: a padded row has one token, and the pool's padding row"
_QSA = StepwiseBackend(
    replace(
        QSA,
        draft_model=GroupsDraftModel,
        read=attributes(
            sequence_lengths="sequence_lengths", row_req_pool_indices="row_req_pool_indices"
        ),
    ),
    ("QwenSparseMultiStepDraftBackend",),
)


class QsaDraftTarget(StepwiseDraftTarget):
    """EAGLE's draft runner on the sparse attention of the release that this process holds."""

    excuses = (*StepwiseDraftTarget.excuses, *COPIED_BATCH_EXCUSES, *GROUP_EXCUSES)

    def __init__(self, name: str) -> None:
        super().__init__(name, _QSA)
        self.capabilities = self.capabilities.replace(
            draft_reaches=("drafts",), shared_selections=True
        )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> QsaDraftSession:
        return QsaDraftSession(config, graphs, _QSA)

    def modules(self) -> tuple[str, ...]:
        return *super().modules(), MODELS


class QsaDraftSession(LeavesKeys, StepwiseDraftSession):
    """One draft runner and the backends of its steps, which leave keys of groups."""

    also_promised = (GROUP_KEYS, GROUP_STRAYS)

    def _open_runner(self, graphs: GraphEngine) -> DraftRunnerDriver:
        if self._config.shared_selection:
            assert isinstance(self._model, GroupsDraftModel)
            self._model.shared = self._shared_selection(self._model.indexer)
        return super()._open_runner(graphs)

    def _shared_selection(self, indexer: Any) -> Any:
        """What the worker gives the backends of drafts and of draft-extends, by its own method."""
        runner = self._model_runner
        runner.model_config.hf_config.index_share_for_mtp_iteration = True
        extends = engine_module(self.attends_on.place()[0]).QwenSparseAttnBackend(runner)
        worker = Stub(
            draft_runner=runner.beside(model=Stub(modules=lambda: (indexer,))),
            topk=1,
            speculative_num_steps=runner.server_args.speculative_num_steps,
            draft_attn_backend=self.backend,
            draft_extend_attn_backend=extends,
        )
        engine_module(_WORKER).EagleDraftWorker._configure_qsa_mtp_index_share(worker)
        return extends._mtp_shared_sparse_indices

    def fields_of_step(self, name: str, step: int) -> tuple[Field, ...]:
        """Lengths with the drafts so far, and whose rows they are."""
        lens = f"draft_lens:{step}"
        return (
            fields.lengths(f"{name}_sequence_lengths", fill=1, repeats=lens, source=_PADDED),
            fields.request_rows(f"{name}_row_req_pool_indices", source=_PADDED),
        )
