"""What runners are built from and work on: shared parts, static buffers, the step in hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.builder import MetadataBuilder
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.metadata.views import BuilderComponents, BuiltView, Tables
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.registry import BufferRegistry
from fuzzgraph.targets.builtin.second_layer import SecondLayer, prefixed
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.targets.builtin.slots import Slots

Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RunnerContext:
    """What a runner is given: the session's shared parts and the classes to build with."""

    config: EngineConfig
    graphs: GraphEngine
    model: BuiltinModel
    tables: Tables
    input_pool: InputPool
    local: LocalTokens
    slots: type[Slots]
    registry: Callable[..., BufferRegistry]
    builder: type[MetadataBuilder]
    builder_components: BuilderComponents
    second: SecondLayer | None = None

    @property
    def device(self) -> torch.device:
        return self.graphs.device


@dataclass
class StaticBatch:
    """Input and metadata buffers whose addresses graphs may keep."""

    registry: BufferRegistry
    builder: MetadataBuilder
    second: MetadataBuilder | None = None
    """Of the second layer."""

    def buffers(self) -> dict[str, torch.Tensor]:
        """Every buffer that graphs keep the address of, as the engine would write it now."""
        found = self.registry.buffers | self.builder.static_buffers()
        return found | (prefixed(self.second.static_buffers()) if self.second is not None else {})


@dataclass
class Built:
    """Views and metadata of one layer."""

    view: BuiltView
    metadata: RawMetadata | FullMetadata


@dataclass
class Step:
    """What the runner is working on: set by prepare, read by replay, eager and observe."""

    static: StaticBatch
    raw: Extent
    padded: Extent
    view: BuiltView
    metadata: RawMetadata | FullMetadata
    size: int | None
    """Captured size to replay; None for an eager step."""
    sharded_tokens: int
    """Padded tokens that the attention-TP ranks share out."""
    second: Built | None = None
    """Of the second layer."""
