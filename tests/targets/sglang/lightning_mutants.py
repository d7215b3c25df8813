"""Planted bugs of sglang's backend for lightning attention, and a mended one."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.lightning import LightningSession, LightningTarget
from fuzzgraph.targets.sglang.decayed_attention_model import DecayedAttentionModel
from tests.targets.sglang import gdn_mutants as hybrid


class _Mended(LightningSession):
    """Padded rows, whose slot is -1, show zeros: the kernels leave theirs unwritten."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        entry = backend.linear_attn_backend._linear_attention_entry

        def run(q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            out: torch.Tensor = entry(q, *args, **kwargs)
            slots = backend.linear_attn_backend.forward_metadata.mamba_cache_indices
            padded = (slots < 0).repeat_interleave(len(out) // len(slots))
            return out.masked_fill(padded[:, None, None], 0.0)

        backend.linear_attn_backend._linear_attention_entry = run
        return backend


class _SlopesOfTheNextLayer(LightningSession):
    """The layer decays as the one behind it."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        backend.linear_attn_backend.tp_slope.reverse()
        return backend


class _HeadsSwapped(LightningSession):
    """Each head has the other's slope, as a rank that takes the wrong part of them."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        slopes = backend.linear_attn_backend.tp_slope
        slopes[0].copy_(slopes[0].flip(0))
        return backend


class _KeysLate(LightningSession):
    """Keys are those of the position before."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        model = runner.model
        assert isinstance(model, DecayedAttentionModel)
        layer = model.recurrent.forward

        def forward(q: Any, k: torch.Tensor, *args: Any) -> Any:
            return layer(q, k.roll(-1, -1), *args)

        model.recurrent.forward = forward
        return backend


class _StaleStates(hybrid._PaddedRowsKeepSlots, LightningSession):
    """Slots behind the live rows stay as the last batch had them."""


class _FirstSlots(hybrid._SlotsKept, LightningSession):
    """Slots are looked up when a graph is first replayed, and not again."""


class _EverythingStays(hybrid._EverythingStays, LightningSession):
    """Drafts that the model rejects are committed as well."""


class _Planted(LightningTarget):
    def __init__(self, session: type[LightningSession], mode: Any = "decode") -> None:
        super().__init__("sglang-lightning", mode)
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> LightningSession:
        return self._session(config, graphs)


def mended() -> _Planted:
    return _Planted(_Mended)


def mended_verify() -> _Planted:
    return _Planted(_Mended, "target_verify")


def slopes_of_the_next_layer() -> _Planted:
    return _Planted(_SlopesOfTheNextLayer)


def heads_swapped() -> _Planted:
    return _Planted(_HeadsSwapped, "target_verify")


def keys_a_position_late() -> _Planted:
    return _Planted(_KeysLate)


def stale_states() -> _Planted:
    return _Planted(_StaleStates)


def slots_of_the_first_batch() -> _Planted:
    return _Planted(_FirstSlots)


def everything_stays() -> _Planted:
    return _Planted(_EverythingStays, "target_verify")
