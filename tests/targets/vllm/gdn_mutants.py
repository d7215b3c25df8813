"""Planted bugs of vLLM's builder for gated delta nets, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.targets.vllm.gdn_session import DeltaNetSession
from fuzzgraph.targets.vllm.recurrent_target import DeltaNetTarget


class _Mutant(DeltaNetSession):
    """Changes what the builder has made of each batch, once graphs are captured."""

    def _kept(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            self._before_build()
            built = build(*args, **kwargs)
            if not self.capturing and self._live:
                self._after_build(built)
            return built

        return super()._kept(kept)

    @property
    def _live(self) -> int:
        return len(self._step_done.rows)

    def _before_build(self) -> None:
        """Nothing is to be remembered."""

    def _after_build(self, built: Any) -> None:
        raise NotImplementedError


class _PaddedRowsKeepSlots(_Mutant):
    """Slots behind the live rows stay as the last batch had them."""

    def _before_build(self) -> None:
        self._slots = self.builder.non_spec_state_indices_tensor.clone()

    def _after_build(self, built: Any) -> None:
        live = self._live
        self.builder.non_spec_state_indices_tensor[live:] = self._slots[live:]


class DraftSlotsKept(_Mutant):
    """The same of the slots of a verify."""

    def _before_build(self) -> None:
        self._slots = self.builder.spec_state_indices_tensor.clone()

    def _after_build(self, built: Any) -> None:
        live = self._live
        self.builder.spec_state_indices_tensor[live:] = self._slots[live:]


class _OffsetsPastTheEnd(_Mutant):
    """Offsets of padded rows go on, as if each had a token."""

    def _after_build(self, built: Any) -> None:
        live = self._live
        offsets = self.builder.spec_query_start_loc
        for row in range(live + 1, len(offsets)):
            offsets[row] = offsets[row - 1] + 1


class _ChunksOneLate(_Mutant):
    """Chunks of a prompt begin where those of the request before it do."""

    def _after_build(self, built: Any) -> None:
        if built.chunk_offsets is not None:
            built.chunk_offsets = built.chunk_offsets.new_zeros(1 + len(built.chunk_offsets))
            built.chunk_offsets[1:] = torch.arange(len(built.chunk_offsets) - 1)


class EverythingAccepted(_Mutant):
    """The count of accepted tokens is not copied to where the graph reads it."""

    def _before_build(self) -> None:
        self._counts = self.builder.num_accepted_tokens.clone()

    def _after_build(self, built: Any) -> None:
        self.builder.num_accepted_tokens.copy_(self._counts)


class SlotsOneOff(_Mutant):
    """A verify starts from the state behind the token after the last accepted one."""

    def _after_build(self, built: Any) -> None:
        slots = self.builder.spec_state_indices_tensor
        slots.copy_(slots.roll(1, dims=1))


def _target(session: type[DeltaNetSession], **mode: Any) -> DeltaNetTarget:
    made = DeltaNetTarget("vllm-gdn", **mode)
    made.session = session
    return made


def stale_states() -> DeltaNetTarget:
    return _target(_PaddedRowsKeepSlots)


def stale_draft_states() -> DeltaNetTarget:
    return _target(DraftSlotsKept, mode="target_verify")


def padded_offsets() -> DeltaNetTarget:
    return _target(_OffsetsPastTheEnd, mode="target_verify")


def chunks_one_late() -> DeltaNetTarget:
    return _target(_ChunksOneLate, mode="target_verify")


def stale_accepted_counts() -> DeltaNetTarget:
    return _target(EverythingAccepted, mode="target_verify")


def another_draft_state() -> DeltaNetTarget:
    return _target(SlotsOneOff, mode="target_verify")
