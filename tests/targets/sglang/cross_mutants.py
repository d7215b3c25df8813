"""sglang with one changed line where a decode of a model with an encoder is prepared or run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    BackendSession,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA3_CROSS
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER_CROSS
from tests.targets.sglang.changed_lines import change_line

Change = Callable[[Any], None]
"""Changes an opened backend."""


class _Changed(BackendTarget):
    def __init__(self, backend: AttentionBackend, change: Change) -> None:
        super().__init__(f"sglang-{backend.name}-cross", backend, "decode")
        self._change = change

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BackendSession:
        change = self._change

        class Session(BackendSession):
            def _open_backend(self, runner: Any) -> Any:
                backend = super()._open_backend(runner)
                change(backend)
                return backend

        return Session(config, graphs, self.backend)


def _fa3(method: str, line: str, other: str) -> BackendTarget:
    return _Changed(FA3_CROSS, partial(change_line, name=method, line=line, other=other))


_PREPARES = "_apply_cuda_graph_metadata"


def keeps_encoder_lens() -> BackendTarget:
    """A replay sees the encoder lengths of the capture."""
    line = "metadata.encoder_lens_int32[:bs].copy_(encoder_lens[:bs].to(torch.int32))"
    return _fa3(_PREPARES, line, "pass")


def takes_the_first_rows_length() -> BackendTarget:
    """All rows get the length of the first one's encoder, as up to 0.5.12."""
    line = "copy_(encoder_lens[:bs].to(torch.int32))"
    return _fa3(_PREPARES, line, "copy_(encoder_lens[:1].to(torch.int32))")


def keeps_the_encoders_table() -> BackendTarget:
    """The page table of encoders is not refilled."""
    line = "metadata.encoder_page_table[:bs, : metadata.encoder_max_seq_len_k].copy_("
    return _fa3(_PREPARES, line, "(lambda _: None)(")


def keeps_the_encoders_offsets() -> BackendTarget:
    """The prefix sums over encoder lengths are not refilled."""
    line = "metadata.encoder_cu_seqlens_k[1 : bs + 1].copy_("
    return _fa3(_PREPARES, line, "(lambda _: None)(")


def begins_the_text_at_the_encoder() -> BackendTarget:
    """The first layer's page table begins with the slots of the encoder."""
    line = "text_col = encoder_lens[:bs].long().unsqueeze(1) + "
    return _fa3(_PREPARES, line, "text_col = 0 * encoder_lens[:bs].long().unsqueeze(1) + ")


def begins_all_texts_at_one_column() -> BackendTarget:
    """All rows' text begins behind the longest encoder."""
    line = "text_col = encoder_lens[:bs].long().unsqueeze(1) + "
    other = "text_col = encoder_lens[:bs].long().max() + 0 * encoder_lens[:bs, None] + "
    return _fa3(_PREPARES, line, other)


def attends_by_the_texts_length() -> BackendTarget:
    """Cross attention is over as many tokens as the text has."""
    line = "cache_seqlens=metadata.encoder_lens_int32,"
    return _fa3("forward_decode", line, "cache_seqlens=metadata.cache_seqlens_int32,")


def _flashinfer(line: str, other: str) -> BackendTarget:
    def change(backend: Any) -> None:
        updater = backend.indices_updater_decode
        change_line(updater, "update_cross_attention", line, other)
        updater.update = updater.update_cross_attention  # which its constructor has bound

    return _Changed(FLASHINFER_CROSS, change)


def lists_the_encoder_as_text() -> BackendTarget:
    """The first layer's list begins with the slots of the encoder."""
    return _flashinfer("kv_start_idx = encoder_lens", "kv_start_idx = None")


def lists_as_many_as_text() -> BackendTarget:
    """The list of encoder slots is as long as the text."""
    return _flashinfer("paged_kernel_lens = encoder_lens", "paged_kernel_lens = seq_lens")


def plans_by_the_texts_length() -> BackendTarget:
    """Cross attention is planned by the lengths of the text, as in 0.5.9."""
    return _flashinfer("kv_lens_cpu = encoder_lens_cpu", "kv_lens_cpu = seq_lens_cpu")


def gives_layers_each_others_wrapper() -> BackendTarget:
    """Each layer runs with the plan of the other one."""
    line = "return layer.is_cross_attention"
    change = partial(change_line, name="_get_wrapper_idx", line=line, other=f"{line} is False")
    return _Changed(FLASHINFER_CROSS, change)
