"""FlashInfer's latent attention whose host mirror is never updated; opened by name in a worker."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.metadata_only import MetadataTarget, metadata_target

__all__ = ["stale_mirror"]


class _NeverWritten:
    """A mirror whose writes were forgotten."""

    def __init__(self, mirror: torch.Tensor) -> None:
        self._mirror = mirror

    def __getitem__(self, where: Any) -> torch.Tensor:
        return self._mirror[where]

    def __setitem__(self, where: Any, value: Any) -> None: ...


def stale_mirror() -> MetadataTarget:
    """`cuda_graph_kv_indptr_cpu`, made by `.to("cpu")`, stays as it was at the start."""
    target = metadata_target("flashinfer_mla", "decode")
    open_session = target.open

    def open_stale(config: EngineConfig, graphs: Any) -> Any:
        session = open_session(config, graphs)
        backend = session.backend
        backend.cuda_graph_kv_indptr_cpu = _NeverWritten(backend.cuda_graph_kv_indptr_cpu)
        return session

    target.open = open_stale  # type: ignore[method-assign]
    return target
