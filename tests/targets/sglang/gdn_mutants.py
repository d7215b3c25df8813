"""Planted bugs of sglang's backend for gated delta nets, each of them the change of one line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.gdn import DeltaNetSession, DeltaNetTarget
from fuzzgraph.world import Batch


class _Mutant(DeltaNetSession):
    """Changes what the backend has staged for a batch."""

    @property
    def _recurrent(self) -> Any:
        return self.backend.linear_attn_backend

    def _staged(self) -> torch.Tensor:
        """Slots that the graph replayed next reads."""
        found: torch.Tensor = self._recurrent.forward_metadata.mamba_cache_indices
        return found


class _PaddedRowsKeepSlots(_Mutant):
    """Slots behind the live rows stay as the last batch had them."""

    def prepare_replay(self, batch: Batch) -> None:
        before = [slots.clone() for slots in self._recurrent.state_indices_list]
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            staged = self._staged()
            staged[batch.raw_bs :] = before[len(staged) - 1][batch.raw_bs :]


class _SlotsKept(_Mutant):
    """Slots are looked up when a graph is first replayed, and not again."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        super().__init__(config, graphs)
        self._first: dict[int, torch.Tensor] = {}

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            staged = self._staged()
            staged.copy_(self._first.setdefault(len(staged), staged.clone()))


class _RowsForSlots(_Mutant):
    """A request's row is taken for its slot."""

    def _open_backend(self, runner: Any) -> Any:
        pool = runner.req_to_token_pool
        backend = super()._open_backend(runner)
        backend.linear_attn_backend._fused_state_indices_ok = False
        pool.get_mamba_indices = lambda rows: rows.to(torch.int32)
        return backend


class _OffsetsPastTheEnd(_Mutant):
    """Offsets of padded rows go on, as if each had a token."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            offsets = self._recurrent.forward_metadata.query_start_loc
            for row in range(batch.raw_bs + 1, len(offsets)):
                offsets[row] = offsets[row - 1] + 1


class _TrackedRowsStay(_Mutant):
    """Rows behind the live ones keep what the last batch said of their states."""

    def prepare_replay(self, batch: Batch) -> None:
        before = self.runner.buffers.mamba_track_mask.clone()
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            self.runner.buffers.mamba_track_mask[batch.raw_bs :] = before[batch.raw_bs :]


class _TrackedAStepLate(_Mutant):
    """States are kept when the last batch's rows would have been."""

    def prepare_replay(self, batch: Batch) -> None:
        before = self.runner.buffers.mamba_track_mask.clone()
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            self.runner.buffers.mamba_track_mask.copy_(before)


class _KeptForANeighbour(_Mutant):
    """A state goes where another row's is to be kept."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            live = self._recurrent.mamba_track_indices_buf[: batch.raw_bs]
            live.copy_(live.roll(1))


class _MapAsLongAsThereAreStates(_Mutant):
    """The map from rows to slots has as many entries as the pool of states (sglang PR 24244)."""

    def _open_backend(self, runner: Any) -> Any:
        pool = runner.req_to_token_pool
        slots = pool.req_index_to_mamba_index_mapping
        pool.req_index_to_mamba_index_mapping = slots[: pool.mamba_pool.size].clone()
        return super()._open_backend(runner)


@contextlib.contextmanager
def _committing(backend: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within the block another token of each row is taken for the last that stays."""
    update = backend.update_mamba_state_after_mtp_verify

    def changed(last_correct_step_indices: torch.Tensor, *args: Any, **named: Any) -> None:
        update(change(last_correct_step_indices), *args, **named)

    backend.update_mamba_state_after_mtp_verify = changed
    try:
        yield
    finally:
        del backend.update_mamba_state_after_mtp_verify


class _StateBeforeTheLast(_Mutant):
    """What is committed is the state before the last token that stays."""

    def _commit(self, batch: Batch) -> None:
        with _committing(self.backend, lambda last: (last - 1).clamp(min=0)):
            super()._commit(batch)


class _EverythingStays(_Mutant):
    """Drafts that the model rejects are committed as well."""

    def _commit(self, batch: Batch) -> None:
        drafts = self._config.draft_tokens
        with _committing(self.backend, lambda last: torch.full_like(last, drafts - 1)):
            super()._commit(batch)


class _ValuesForKeys(_Mutant):
    """Keys and values change places, which makes outputs as wide as keys."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        dispatcher = backend.linear_attn_backend.kernel_dispatcher
        verify = dispatcher.target_verify

        def swapped(*args: Any, k: torch.Tensor, v: torch.Tensor, **more: Any) -> Any:
            return verify(*args, k=v, v=k, **more)

        dispatcher.target_verify = swapped
        return backend


class _OneScratchRow(_Mutant):
    """States of a verify's tokens are kept in one place for all rows."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        backend.linear_attn_backend.verify_intermediate_state_indices.zero_()
        return backend


class _Betas(_Mutant):
    """Kernels get other betas than the layer handed over."""

    def _changed(self, betas: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        kernels = backend.linear_attn_backend.kernel_dispatcher
        for name in filter(partial(hasattr, kernels), ("packed_decode", "decode", "target_verify")):
            setattr(kernels, name, self._handing_over(getattr(kernels, name)))
        return backend

    def _handing_over(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, b: torch.Tensor, **kwargs: Any) -> Any:
            return kernel(*args, b=self._changed(b), **kwargs)

        return run


class _BetasOfTheFirstRow(_Betas):
    """Every token has the betas of the first."""

    def _changed(self, betas: torch.Tensor) -> torch.Tensor:
        return betas[:1].expand_as(betas).contiguous()


class _BetasOfOneHead(_Betas):
    """Every head has the betas of the first."""

    def _changed(self, betas: torch.Tensor) -> torch.Tensor:
        return betas[:, :1].expand_as(betas).contiguous()


class _Planted(DeltaNetTarget):
    def __init__(self, session: type[DeltaNetSession], mode: Any = "decode") -> None:
        super().__init__("sglang-gdn", mode)
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DeltaNetSession:
        return self._session(config, graphs)


def stale_states() -> _Planted:
    return _Planted(_PaddedRowsKeepSlots)


def slots_of_the_first_batch() -> _Planted:
    return _Planted(_SlotsKept)


def rows_for_slots() -> _Planted:
    return _Planted(_RowsForSlots)


def padded_offsets() -> _Planted:
    return _Planted(_OffsetsPastTheEnd)


def tracked_rows_stay() -> _Planted:
    return _Planted(_TrackedRowsStay)


def tracked_a_step_late() -> _Planted:
    return _Planted(_TrackedAStepLate)


def kept_for_a_neighbour() -> _Planted:
    return _Planted(_KeptForANeighbour)


def short_map() -> _Planted:
    return _Planted(_MapAsLongAsThereAreStates)


def state_before_the_last() -> _Planted:
    return _Planted(_StateBeforeTheLast, "target_verify")


def everything_stays() -> _Planted:
    return _Planted(_EverythingStays, "target_verify")


def one_scratch_row() -> _Planted:
    return _Planted(_OneScratchRow, "target_verify")


def betas_of_the_first_row() -> _Planted:
    return _Planted(_BetasOfTheFirstRow)


def betas_of_one_head() -> _Planted:
    return _Planted(_BetasOfOneHead, "target_verify")


def values_for_keys() -> _Planted:
    return _Planted(_ValuesForKeys, "target_verify")
