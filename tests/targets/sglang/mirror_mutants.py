"""FlashInfer plans by a host mirror of the lengths that nobody updates; opened by name."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends import flashinfer_mla
from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget

__all__ = ["stale_mirror"]


def stale_mirror() -> BackendTarget:
    """`seq_lens_cpu` is made once of `seq_lens`, and no batch brings its own."""
    target = flashinfer_mla.target("sglang-flashinfer-mla", "decode")
    open_session = target.open

    def open_stale(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        buffers, translate = session.runner.buffers, session._translate
        buffers.seq_lens_cpu = buffers.seq_lens.to("cpu")

        def without_lens(batch: Any) -> Any:
            translated = translate(batch)
            translated.seq_lens_cpu = None
            return translated

        session._translate = without_lens  # type: ignore[method-assign]
        return session

    target.open = open_stale  # type: ignore[method-assign]
    return target
