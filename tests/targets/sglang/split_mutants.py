"""Planted bugs of sglang's choice between the backend of prefills and that of decodes; targets
opened by name in a worker."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import AttentionBackend, BackendSession
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import PlantedBackend


class _Changed(BackendSession):
    """One line of a method of `HybridAttnBackend` is another one."""

    changed: tuple[str, str, str]

    def _open_runner(self, graphs: GraphEngine) -> Any:
        change_line(self.backend, *self.changed)
        return super()._open_runner(graphs)


def _planted(
    method: str,
    line: str,
    other: str,
    backend: AttentionBackend = FA3,
    mode: Mode = "target_verify",
) -> PlantedBackend:
    session = type("Changed", (_Changed,), {"changed": (method, line, other)})
    return PlantedBackend(session, backend, mode)


_SELECTED = "backend = self._select_backend(forward_batch.forward_mode)"


def decodes_prepare_prefills() -> PlantedBackend:
    """A decode's metadata is prepared by the backend of prefills."""
    prepare = "init_forward_metadata_out_graph"
    return _planted(prepare, _SELECTED, "backend = self.prefill_backend", FA3, "decode")


def verifies_prepare_decodes() -> PlantedBackend:
    """A verify's metadata is prepared by the backend of decodes, whatever the server says."""
    prepare = "init_forward_metadata_out_graph"
    return _planted(prepare, _SELECTED, "backend = self.decode_backend")


def prepared_eagerly_by_decodes() -> PlantedBackend:
    """Without a graph a verify's metadata is prepared by the backend of decodes."""
    return _planted("init_forward_metadata", _SELECTED, "backend = self.decode_backend", FLASHINFER)


def unsized() -> PlantedBackend:
    """The backend of prefills, on which drafts are verified, has no buffers for graphs."""
    line = "self.prefill_backend.init_cuda_graph_state(max_bs, max_num_tokens)"
    return _planted("init_cuda_graph_state", line, "pass", FLASHINFER)


def writes_no_kv() -> PlantedBackend:
    """Keys and values of a step are not written."""
    return _planted("forward", "save_kv_cache=save_kv_cache,", "save_kv_cache=False,")


def captured_as_a_replay() -> PlantedBackend:
    """A capture is prepared as a replay is."""
    line, other = "in_capture=in_capture", "in_capture=False"
    return _planted("init_forward_metadata_out_graph", line, other)


def verifies_on_the_other() -> PlantedBackend:
    """Verifies run on the backend that the server has not named for them."""
    line, other = "if self.spec_attn_is_decode", "if not self.spec_attn_is_decode"
    return _planted("_select_backend", line, other)


class _Swapped(BackendSession):
    """Prefills and decodes have each other's backend."""

    def _open_runner(self, graphs: GraphEngine) -> Any:
        split = self.backend
        split.prefill_backend, split.decode_backend = split.decode_backend, split.prefill_backend
        return super()._open_runner(graphs)


def swapped() -> PlantedBackend:
    return PlantedBackend(_Swapped, FA3, "target_verify")
