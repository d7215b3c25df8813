"""How an attention backend is described whose kernels need a GPU and whose metadata code does not.

A description says where the backend lies, what it runs on, where it holds what the kernels of a
graph read, and what stands in for compiled code that its constructor or its builders call. Each
backend's file has one; `metadata_only` drives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import has_module, release

__all__ = [
    "ATTENTION",
    "MetadataBackend",
    "attributes",
    "current",
    "few_bytes",
    "latent_table",
    "not_compiled",
]

Tensors = dict[str, torch.Tensor]

ATTENTION = "sglang.srt.layers.attention"


def current(backend: Any, size: int | None) -> Any:
    """Every preparation leaves its metadata in the same place."""
    return backend.forward_metadata


@dataclass(frozen=True, slots=True)
class MetadataBackend:
    """One backend of the engine, as `metadata_only.MetadataSession` drives it."""

    name: str
    """As `--attention-backend` spells it."""
    places: tuple[tuple[str, str], ...]
    """(module, class) under its names, the release's own first found."""
    attention: Literal["mha", "mla"]
    page_sizes: tuple[int, ...]
    fields: tuple[str, ...]
    """What it hands its kernels beyond the runner's inputs: names of `metadata_only`'s fields."""
    read: Callable[[Any], Tensors]
    """Metadata -> what kernels read of it, whole, by field."""
    held: Callable[[Any, int | None], Any] = current
    """(backend, size of the graph or None without one) -> its metadata."""
    planned: Callable[[Any], Tensors] = lambda metadata: {}
    """Metadata -> what a plan was made of on the host."""
    max_context_len: int = 64
    adapt: Callable[[Any], None] = lambda runner: None
    """Gives the model runner's stub what only this backend reads of it."""
    stubs: tuple[tuple[str, str, Any], ...] = ()
    """(module, name, what stands in for it on a machine without a GPU)."""
    asserts_gpu: tuple[str, ...] = ()
    """Functions in its module that assert tensors of a GPU and run without one."""
    settings: tuple[tuple[str, str], ...] = ()
    """What the engine reads from the environment, for the life of the worker."""

    def place(self) -> tuple[str, str]:
        """Module and class of the backend in this release.

        Raises:
            AdapterUnavailable: it has no such backend.
        """
        for module, backend in self.places:
            if has_module(module):
                return module, backend
        raise AdapterUnavailable(
            f"sglang {release()} has no {self.places[-1][1]}, which the targets of backend "
            f"{self.name!r} drive. Name a release that has it: fuzzgraph targets lists them."
        )


def attributes(**fields: str) -> Callable[[Any], Tensors]:
    """Field -> attribute of the metadata; what a mode does not have is left out."""

    def read(metadata: Any) -> Tensors:
        found = {field: getattr(metadata, name, None) for field, name in fields.items()}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}

    return read


def latent_table(backend: Any, size: int | None) -> Any:
    """For a graph the whole buffer: kernels find rows by its stride, whatever a view's width."""
    if size is None:
        return backend.forward_metadata
    return Stub(block_kv_indices=backend.cuda_graph_kv_indices[:size])


def few_bytes(*_: Any, **__: Any) -> int:
    """In place of what a compiled kernel says that its scratch memory needs."""
    return 64


def not_compiled(*_: Any, **__: Any) -> None:
    """In place of compiling a kernel for later."""
