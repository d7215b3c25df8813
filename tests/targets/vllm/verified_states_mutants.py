"""Planted bugs of verifies by a delta net beside attention, and on the V2 runner; each one line."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.vllm.beside_session import DeltaNetBesideAttentionSession
from fuzzgraph.targets.vllm.beside_target import DeltaNetFlashHybridTarget, DeltaNetHybridTarget
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.v2_recurrent import (
    V2DeltaNetBesideAttentionVerifySession,
    V2DeltaNetHybridTarget,
    V2DeltaNetTarget,
    V2DeltaNetVerifySession,
)
from fuzzgraph.targets.vllm.v2_session import V2RunnerSession
from tests.targets.vllm.beside_mutants import PagesNotCommitted, StatesOfPages
from tests.targets.vllm.gdn_mutants import DraftSlotsKept, EverythingAccepted, SlotsOneOff
from tests.targets.vllm.v2_mutants import NoDraftStays


class _CountsByRow(V2RunnerSession):
    """`prepare_attn` looks up what was accepted by the row of the batch, not by the request's."""

    def _spy(self) -> None:
        super()._spy()
        state = self.runner.model_state
        prepare = state.prepare_attn

        def prepared(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            own = input_batch.idx_mapping
            input_batch.idx_mapping = torch.arange(len(own))
            made = prepare(input_batch, *args, **kwargs)
            input_batch.idx_mapping = own
            return made

        state.prepare_attn = prepared


class _CountsNotKept(V2RunnerSession):
    """`postprocess_state` is left out: each verify goes on from the first state."""

    def _spy(self) -> None:
        super()._spy()
        self.runner.model_state.postprocess_state = lambda *_, **__: None


def _hybrid(planted: type[RunnerSession]) -> Any:
    made: Any = DeltaNetHybridTarget("vllm-gdn-hybrid-verify", "target_verify")
    made.session = type(planted.__name__, (planted, DeltaNetBesideAttentionSession), {})
    return made


def _flash(planted: type[RunnerSession]) -> Any:
    made: Any = DeltaNetFlashHybridTarget("vllm-gdn-hybrid-fa-verify", "target_verify")
    made.session = type(planted.__name__, (planted, DeltaNetBesideAttentionSession), {})
    return made


def _v2(planted: type[RunnerSession]) -> Any:
    made: Any = V2DeltaNetTarget("vllm-v2-gdn-verify", "target_verify")
    made.session = type(planted.__name__, (planted, V2DeltaNetVerifySession), {})
    return made


def _v2_hybrid(planted: type[RunnerSession]) -> Any:
    made: Any = V2DeltaNetHybridTarget("vllm-v2-gdn-hybrid-verify", "target_verify")
    made.session = type(planted.__name__, (planted, V2DeltaNetBesideAttentionVerifySession), {})
    return made


def states_of_pages() -> Any:
    return _hybrid(StatesOfPages)


def pages_not_committed() -> Any:
    return _hybrid(PagesNotCommitted)


def stale_draft_states() -> Any:
    return _hybrid(DraftSlotsKept)


def stale_accepted_counts() -> Any:
    return _hybrid(EverythingAccepted)


def another_draft_state() -> Any:
    return _hybrid(SlotsOneOff)


def flash_pages_not_committed() -> Any:
    return _flash(PagesNotCommitted)


def flash_stale_draft_states() -> Any:
    return _flash(DraftSlotsKept)


def v2_stale_draft_states() -> Any:
    return _v2(DraftSlotsKept)


def v2_counts_by_row() -> Any:
    return _v2(_CountsByRow)


def v2_counts_not_kept() -> Any:
    return _v2(_CountsNotKept)


def v2_no_draft_stays() -> Any:
    return _v2(NoDraftStays)


def v2_hybrid_counts_by_row() -> Any:
    return _v2_hybrid(_CountsByRow)


def v2_hybrid_another_draft_state() -> Any:
    return _v2_hybrid(SlotsOneOff)
