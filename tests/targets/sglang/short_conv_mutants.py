"""Planted bugs of sglang's short convolutions, each of them the change of one line, and a mended
one."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.short_conv import ShortConvSession, ShortConvTarget
from fuzzgraph.targets.sglang.gated_convolution_model import LFM2_MODEL
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang import gdn_mutants as hybrid
from tests.targets.sglang.changed_lines import change_line, replace_while_running


class _OfBackend(ShortConvSession):
    """Changes a line of `linear_attn_backend`."""

    method = ""
    line = ""
    other = "pass"

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        change_line(backend.linear_attn_backend, self.method, self.line, self.other)
        return backend


class _SlotsOfTheCapture(_OfBackend):
    """Slots are written once."""

    method = "_refresh_cache_indices"
    line = "buf[:n].copy_(idx)"
    other = "self._cache_indices is None and buf[:n].copy_(idx)"


class _SlotsElsewhere(_OfBackend):
    """Each step brings slots in a tensor of its own."""

    method = "_refresh_cache_indices"
    line = "elif buf is not None and idx.shape[0] <= buf.shape[0]:"
    other = "elif False:"


class _PaddedRowsKeepSlots(_OfBackend):
    """Slots behind the live rows stay as an earlier batch had them."""

    method = "_refresh_cache_indices"
    line = "buf[:n].copy_(idx)"
    other = "buf[:n].copy_(torch.where(idx < 0, buf[:n], idx))"


class _StaleRows(_OfBackend):
    """Up to 0.5.12 nothing else resets the rows of requests that pad a batch."""

    method = "_replay_metadata"
    line = "req_pool_indices[bs - num_padding :] = 0"


class _OfLayer(ShortConvSession):
    """Changes a line of the layer."""

    line = ""
    other = "pass"

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        change_line(runner.model.recurrent, "forward", self.line, self.other)
        return backend


class _GatesSwapped(_OfLayer):
    """The gate behind the convolution stands before it, and the other way round."""

    line = "B_gate, C_gate, x = proj.chunk(3, dim=-1)"
    other = "C_gate, B_gate, x = proj.chunk(3, dim=-1)"


class _RowsForSlots(_OfLayer):
    """A request's row is taken for its slot, as up to 0.5.10."""

    line = "conv_state_indices=mamba_indices.to(torch.int32),"
    other = "conv_state_indices=req_pool_indices.to(torch.int32),"


class _KeptWithoutTheGate(_OfLayer):
    """The convolution gets what the first gate should have multiplied."""

    line = "Bx = B_gate * x"
    other = "Bx = x.clone()"


class _OneScratchRow(ShortConvSession):
    """Inputs of a verify's tokens are kept in one place for all rows."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        runner.model.recurrent._intermediate_state_indices.zero_()
        return backend


class _StateBeforeTheLast(hybrid._StateBeforeTheLast, ShortConvSession):
    """What is committed is the state before the last token that stays."""


class _EverythingStays(hybrid._EverythingStays, ShortConvSession):
    """Drafts that the model rejects are committed as well."""


class _Mended(ShortConvSession):
    """The convolution of a verify leaves zeros where a row has no slot, as sglang PR 30974 has it
    for Mamba2."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        super().__init__(config, graphs)
        module = engine_module(LFM2_MODEL)
        replace_while_running(self, module, "causal_conv1d_update_triton", _zeros_behind)


def _zeros_behind(convolve: Any) -> Any:
    def update(*args: Any, conv_state_indices: torch.Tensor, **kwargs: Any) -> Any:
        out = convolve(*args, conv_state_indices=conv_state_indices, **kwargs)
        return out.masked_fill_((conv_state_indices < 0).view(-1, 1, 1), 0.0)

    return update


class _Planted(ShortConvTarget):
    def __init__(self, session: type[ShortConvSession], mode: Any = "decode") -> None:
        super().__init__("sglang-short-conv", mode)
        self._session = session

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> ShortConvSession:
        return self._session(config, graphs)


def slots_of_the_capture() -> _Planted:
    return _Planted(_SlotsOfTheCapture)


def slots_elsewhere() -> _Planted:
    return _Planted(_SlotsElsewhere)


def padded_rows_keep_slots() -> _Planted:
    return _Planted(_PaddedRowsKeepSlots)


def stale_rows() -> _Planted:
    return _Planted(_StaleRows)


def gates_swapped() -> _Planted:
    return _Planted(_GatesSwapped)


def rows_for_slots() -> _Planted:
    return _Planted(_RowsForSlots)


def kept_without_the_gate() -> _Planted:
    return _Planted(_KeptWithoutTheGate, "target_verify")


def one_scratch_row() -> _Planted:
    return _Planted(_OneScratchRow, "target_verify")


def state_before_the_last() -> _Planted:
    return _Planted(_StateBeforeTheLast, "target_verify")


def everything_stays() -> _Planted:
    return _Planted(_EverythingStays, "target_verify")


def mended_verify() -> _Planted:
    return _Planted(_Mended, "target_verify")
