"""Planted bugs of sglang's backend for Mamba2, and a mended one."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.mamba2 import Mamba2Session, Mamba2Target
from fuzzgraph.targets.sglang.mamba2_model import MIXER
from fuzzgraph.targets.sglang.release import engine_module
from tests.targets.sglang import gdn_mutants as hybrid


class _Mended(Mamba2Session):
    """The convolution leaves zeros where a row has no slot, as sglang PR 30974 has it."""

    def _open_backend(self, runner: Any) -> Any:
        backend = super()._open_backend(runner)
        kernel = engine_module(MIXER).causal_conv1d_update_triton

        def update(*args: Any, conv_state_indices: Any, **kwargs: Any) -> Any:
            out = kernel(*args, conv_state_indices=conv_state_indices, **kwargs)
            padded = (conv_state_indices < 0).view(-1, *[1] * (out.dim() - 1))
            return out.masked_fill_(padded, 0.0)

        runner.model.mixer.forward = _with_kernel(runner.model.mixer.forward, update)
        return backend


def _with_kernel(forward: Any, kernel: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        module = engine_module(MIXER)
        before = module.causal_conv1d_update_triton
        module.causal_conv1d_update_triton = kernel
        try:
            return forward(*args, **kwargs)
        finally:
            module.causal_conv1d_update_triton = before

    return run


class _PaddedRowsKeepSlots(hybrid._PaddedRowsKeepSlots, Mamba2Session):
    """Slots behind the live rows stay as the last batch had them."""


class _RowsForSlots(hybrid._RowsForSlots, Mamba2Session):
    """A request's row is taken for its slot."""


class _EverythingStays(hybrid._EverythingStays, Mamba2Session):
    """Drafts that the model rejects are committed as well."""


class _Planted(Mamba2Target):
    def __init__(self, session: type[Mamba2Session], mode: Any = "decode") -> None:
        super().__init__("sglang-mamba", mode)
        self._session = session

    def open_session(self, config: Any, graphs: Any) -> Mamba2Session:
        return self._session(config, graphs)


def mended() -> _Planted:
    return _Planted(_Mended)


def mended_verify() -> _Planted:
    return _Planted(_Mended, "target_verify")


def stale_states() -> _Planted:
    return _Planted(_PaddedRowsKeepSlots)


def rows_for_slots() -> _Planted:
    return _Planted(_RowsForSlots)


def everything_stays() -> _Planted:
    return _Planted(_EverythingStays, "target_verify")
