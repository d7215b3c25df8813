"""Planted bugs of what a verify of vLLM's V1 runner answers, each the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.vllm.beside_session import DeltaNetBesideAttentionSession
from fuzzgraph.targets.vllm.beside_target import DeltaNetHybridTarget
from fuzzgraph.targets.vllm.gdn_session import DeltaNetSession
from fuzzgraph.targets.vllm.recurrent_target import DeltaNetTarget
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import FlashAttentionTarget, TritonTarget
from fuzzgraph.world import VOCAB

_SAMPLER = "vllm.v1.sample.rejection_sampler"
_DRAFTS, _LOGITS, _BONUS = 0, 5, 6
"""Places of `rejection_sample`'s arguments."""


class _Mutant(RunnerSession):
    """Changes what the rejection sampler compares, or what it gives."""

    def _step(self, batch: Any) -> None:
        module = engine_module(_SAMPLER)
        sample = module.rejection_sample

        def sampled(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            self._before(given)
            return self._after(sample(*given, **kwargs))

        with replaced_names([module], {"rejection_sample": sampled}):
            super()._step(batch)

    def _before(self, given: list[Any]) -> None:
        """All is compared as it was given."""

    def _after(self, made: torch.Tensor) -> torch.Tensor:
        """[rows, drafts + 1], -1 behind the last token that stays."""
        return made


class RejectsAll(_Mutant):
    """What the model predicts is compared with another token than the draft."""

    def _before(self, given: list[Any]) -> None:
        given[_DRAFTS] = given[_DRAFTS] ^ 1


class AcceptsAll(_Mutant):
    """The drafts are compared with themselves."""

    def _before(self, given: list[Any]) -> None:
        drafts = given[_DRAFTS].long()
        given[_LOGITS] = torch.nn.functional.one_hot(drafts, VOCAB).to(given[_LOGITS].dtype)


class BonusOfAnotherRow(_Mutant):
    """Where all drafts stay, the token behind them is that of the next row."""

    def _before(self, given: list[Any]) -> None:
        given[_BONUS] = given[_BONUS].roll(-1, 0)


class RowsTheOtherWayRound(_Mutant):
    """Each row is answered with what is another row's."""

    def _after(self, made: torch.Tensor) -> torch.Tensor:
        return made.flip(0)


def _on(base: Callable[..., Any], planted: type[_Mutant], session: type[RunnerSession]) -> Any:
    made = base("vllm-verify", "target_verify")
    made.session = type(planted.__name__, (planted, session), {})
    return made


def rejects_all() -> FlashAttentionTarget:
    made: FlashAttentionTarget = _on(FlashAttentionTarget, RejectsAll, RunnerSession)
    return made


def accepts_all() -> FlashAttentionTarget:
    made: FlashAttentionTarget = _on(FlashAttentionTarget, AcceptsAll, RunnerSession)
    return made


def bonus_of_another_row() -> TritonTarget:
    made: TritonTarget = _on(TritonTarget, BonusOfAnotherRow, RunnerSession)
    return made


def rows_the_other_way_round() -> TritonTarget:
    made: TritonTarget = _on(TritonTarget, RowsTheOtherWayRound, RunnerSession)
    return made


def delta_net_rejects_all() -> DeltaNetTarget:
    made: DeltaNetTarget = _on(DeltaNetTarget, RejectsAll, DeltaNetSession)
    return made


def delta_net_accepts_all() -> DeltaNetTarget:
    made: DeltaNetTarget = _on(DeltaNetTarget, AcceptsAll, DeltaNetSession)
    return made


def delta_net_bonus_of_another_row() -> DeltaNetTarget:
    made: DeltaNetTarget = _on(DeltaNetTarget, BonusOfAnotherRow, DeltaNetSession)
    return made


def hybrid_rows_the_other_way_round() -> DeltaNetHybridTarget:
    session = DeltaNetBesideAttentionSession
    made: DeltaNetHybridTarget = _on(DeltaNetHybridTarget, RowsTheOtherWayRound, session)
    return made
