"""The classes that the engine is made of; a planted fault replaces one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.builder import BuilderComponents, MetadataBuilder
from fuzzgraph.targets.builtin.metadata.draft import DraftBuilder
from fuzzgraph.targets.builtin.model import BuiltinModel
from fuzzgraph.targets.builtin.pools import EncoderMap, PagedKVPool, ReqToTokenPool, StatePool
from fuzzgraph.targets.builtin.registry import BufferRegistry
from fuzzgraph.targets.builtin.runners.base import GraphRunner
from fuzzgraph.targets.builtin.runners.cpu_graph import CpuGraphRunner
from fuzzgraph.targets.builtin.runners.prefill import BreakableRunner, PiecewiseRunner
from fuzzgraph.targets.builtin.runners.speculation import (
    DraftExtendRunner,
    DraftRunner,
    VerifyRunner,
)
from fuzzgraph.targets.builtin.slots import Slots, decode_registry, prefill_registry


@dataclass(frozen=True)
class Components:
    """`dataclasses.replace(Components(), slots=MySlots)` is an engine with one thing changed."""

    req_to_token: type[ReqToTokenPool] = ReqToTokenPool
    swa_to_token: type[ReqToTokenPool] = ReqToTokenPool
    kv: type[PagedKVPool] = PagedKVPool
    state: type[StatePool] = StatePool
    encoder: type[EncoderMap] = EncoderMap
    input_pool: type[InputPool] = InputPool
    slots: type[Slots] = Slots
    decode_registry: Callable[..., BufferRegistry] = decode_registry
    prefill_registry: Callable[..., BufferRegistry] = prefill_registry
    builder: type[MetadataBuilder] = MetadataBuilder
    builder_components: BuilderComponents = field(default_factory=BuilderComponents)
    local: type[LocalTokens] = LocalTokens
    model: type[BuiltinModel] = BuiltinModel
    draft_builder: type[DraftBuilder] = DraftBuilder
    decode: type[GraphRunner] = GraphRunner
    cpu_graph: type[CpuGraphRunner] = CpuGraphRunner
    verify: type[VerifyRunner] = VerifyRunner
    draft_extend: type[DraftExtendRunner] = DraftExtendRunner
    draft: type[DraftRunner] = DraftRunner
    piecewise: type[PiecewiseRunner] = PiecewiseRunner
    breakable: type[BreakableRunner] = BreakableRunner

    def runner(self, mode: Mode, config: EngineConfig) -> type[GraphRunner]:
        """The runner class that serves `mode`."""
        if mode == "prefill":
            return self.piecewise if config.prefill_runner == "piecewise" else self.breakable
        if mode == "decode" or mode == "idle":
            return self.decode if config.runner == "graph" else self.cpu_graph
        return {
            "target_verify": self.verify,
            "draft_extend": self.draft_extend,
            "draft": self.draft,
        }[mode]
