"""Planted bugs of sglang's backend for KDA, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.kda import ChannelDecaySession, ChannelDecayTarget
from tests.targets.sglang import gdn_mutants as hybrid

_KERNELS = ("packed_decode", "decode", "target_verify")
_Changed = Callable[[torch.Tensor], torch.Tensor]


class _GatesChanged(ChannelDecaySession):
    """Kernels get other gates than the layer handed over."""

    gate: _Changed = staticmethod(lambda gates: gates)
    beta: _Changed = staticmethod(lambda betas: betas)

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        kernels = backend.linear_attn_backend.kernel_dispatcher
        for name in _KERNELS:
            if hasattr(kernels, name):
                setattr(kernels, name, self._handing_over(getattr(kernels, name)))
        return backend

    def _handing_over(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Any:
            return kernel(*args, a=self.gate(a), b=self.beta(b), **kwargs)

        return run


class _OneGateOfAHead(_GatesChanged):
    """All channels of a head decay as its first one does, as in a gated delta net."""

    @staticmethod
    def gate(gates: torch.Tensor) -> torch.Tensor:
        heads = gates.view(len(gates), 2, -1)
        return heads[..., :1].expand_as(heads).reshape_as(gates)


class _HeadsSwapped(_GatesChanged):
    """Gates of one head go to the other."""

    @staticmethod
    def gate(gates: torch.Tensor) -> torch.Tensor:
        return gates.view(len(gates), 2, -1).flip(1).reshape_as(gates)


class _BetasOfTheFirstRow(_GatesChanged):
    """Every row has the betas of the first."""

    @staticmethod
    def beta(betas: torch.Tensor) -> torch.Tensor:
        return betas[:, :1].expand_as(betas).contiguous()


class _InputsNotCommitted(hybrid._EverythingStays, ChannelDecaySession):
    """Drafts that the model rejects are committed as well."""


class _StaleStates(hybrid._PaddedRowsKeepSlots, ChannelDecaySession):
    """Slots behind the live rows stay as the last batch had them."""


class _FirstSlots(hybrid._SlotsKept, ChannelDecaySession):
    """Slots are looked up when a graph is first replayed, and not again."""


class _Planted(ChannelDecayTarget):
    def __init__(self, session: type[ChannelDecaySession], mode: Any = "decode") -> None:
        super().__init__("sglang-kda", mode)
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> ChannelDecaySession:
        return self._session(config, graphs)


def one_gate_of_a_head() -> _Planted:
    return _Planted(_OneGateOfAHead)


def heads_swapped() -> _Planted:
    return _Planted(_HeadsSwapped, "target_verify")


def betas_of_the_first_row() -> _Planted:
    return _Planted(_BetasOfTheFirstRow)


def stale_states() -> _Planted:
    return _Planted(_StaleStates)


def slots_of_the_first_batch() -> _Planted:
    return _Planted(_FirstSlots)


def everything_stays() -> _Planted:
    return _Planted(_InputsNotCommitted, "target_verify")
