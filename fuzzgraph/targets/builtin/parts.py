"""The classes that the engine is made of; a planted fault replaces one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.builder import BuilderParts, MetadataBuilder
from fuzzgraph.targets.builtin.model import Model
from fuzzgraph.targets.builtin.pools import EncoderMap, PagedKVPool, ReqToTokenPool, StatePool
from fuzzgraph.targets.builtin.registry import BufferRegistry
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.slots import Slots, decode_registry, prefill_registry

__all__ = ["Parts"]


@dataclass(frozen=True)
class Parts:
    """`dataclasses.replace(Parts(), slots=MySlots)` is an engine with one thing changed."""

    req_to_token: type[ReqToTokenPool] = ReqToTokenPool
    kv: type[PagedKVPool] = PagedKVPool
    state: type[StatePool] = StatePool
    encoder: type[EncoderMap] = EncoderMap
    input_pool: type[InputPool] = InputPool
    slots: type[Slots] = Slots
    decode_registry: Callable[..., BufferRegistry] = decode_registry
    prefill_registry: Callable[..., BufferRegistry] = prefill_registry
    builder: type[MetadataBuilder] = MetadataBuilder
    builder_parts: BuilderParts = field(default_factory=BuilderParts)
    local: type[LocalTokens] = LocalTokens
    model: type[Model] = Model
    decode: type[GraphRunner] = GraphRunner
    draft_builder: type[MetadataBuilder] = MetadataBuilder

    def runner(self, mode: Mode, config: EngineConfig) -> type[GraphRunner]:
        """The runner class that serves `mode`."""
        return self.decode
