"""What all runners share: padding a batch to a captured size, capture, replay, eager, observe.

A runner owns static input buffers and metadata buffers twice: one set for its graphs, one for
eager steps, which never touch what a graph reads. Outputs are handed out as the graph left them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fuzzgraph.case import Mode, attention_outputs
from fuzzgraph.case.kv_groups import SECOND_LAYER
from fuzzgraph.content import STATE_WIDTH
from fuzzgraph.observation import Observation
from fuzzgraph.ports import CapturedGraph
from fuzzgraph.row_mixing import mixed_outputs
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.metadata.builder import MetadataBuilder
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.metadata.views import BuiltView
from fuzzgraph.targets.builtin.model import ForwardInputs
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext
from fuzzgraph.targets.builtin.runners.context import (
    Built,
    Outputs,
    RunnerContext,
    StaticBatch,
    Step,
)
from fuzzgraph.targets.builtin.runners.observe import CaptureRecord, observation_of
from fuzzgraph.targets.builtin.second_layer import SecondLayer
from fuzzgraph.targets.builtin.shape import Extent, row_tokens, smallest_fitting
from fuzzgraph.world import Batch

__all__ = ["GraphRunner", "Outputs", "RunnerContext", "StaticBatch", "Step"]


class GraphRunner:
    """Captures one graph per size on the request axis; decode as it stands."""

    mode: Mode = "decode"

    def __init__(self, context: RunnerContext) -> None:
        self.context = context
        self.config = context.config
        self.model = context.model
        self.local = context.local
        self.input_pool = context.input_pool
        self.graphs: dict[int, CapturedGraph[Outputs]] = {}
        self.records: dict[int, CaptureRecord] = {}
        self.batches = self.allocate_batches()
        self.eager_static = self.allocate(self.largest_eager(), InputPool())
        self.step: Step | None = None
        self.outputs: Outputs = {}

    # sizes

    def sizes(self) -> tuple[int, ...]:
        """Captured sizes, ascending."""
        return self.config.capture_bs

    def size_of(self, batch: Batch) -> int:
        """The largest rank's batch on the axis of the captured sizes."""
        return batch.largest_rank

    def tokens_per_row(self) -> int:
        return row_tokens(self.config, self.mode)

    def extent(self, size: int) -> Extent:
        """A padded batch of a captured size."""
        return Extent(size, size * self.tokens_per_row())

    def raw_extent(self, batch: Batch) -> Extent:
        return Extent(batch.raw_bs, batch.num_tokens)

    def largest(self) -> Extent:
        """Capacity of the static buffers: the largest captured size, beyond the pool or not."""
        return self.extent(max(self.sizes()))

    def largest_eager(self) -> Extent:
        """Capacity of the eager buffers: as many requests as the pool has rows."""
        return self.extent(self.config.req_pool_size)

    def choose_size(self, batch: Batch) -> int | None:
        """The captured size to replay; None sends the batch to the eager forward."""
        if batch.via == "eager":
            return None
        return smallest_fitting(self.sizes(), self.size_of(batch))

    # buffers

    def allocate_batches(self) -> dict[int, StaticBatch]:
        """Static buffers of each captured size: the same ones, as large as the largest needs."""
        shared = self.allocate(self.largest(), self.input_pool)
        return dict.fromkeys(self.sizes(), shared)

    def allocate(self, largest: Extent, pool: InputPool) -> StaticBatch:
        registry = self.make_registry(largest, pool)
        second = self.context.second
        return StaticBatch(
            registry,
            self.make_builder(registry),
            None if second is None else self.make_second_builder(registry, second),
        )

    def make_registry(self, largest: Extent, pool: InputPool) -> BufferRegistry:
        context = self.context
        return context.registry(
            context.config, self.mode, largest, pool, context.device, context.slots
        )

    def make_builder(self, registry: BufferRegistry) -> MetadataBuilder:
        context = self.context
        return context.builder(
            context.config,
            self.mode,
            context.tables,
            registry,
            context.builder_components,
            context.device,
        )

    def make_second_builder(self, registry: BufferRegistry, second: SecondLayer) -> MetadataBuilder:
        context = self.context
        return context.builder(
            second.config,
            self.mode,
            second.tables,
            registry,
            context.builder_components,
            context.device,
        )

    def static_for(self, size: int) -> StaticBatch:
        """The buffers that the graph of this size reads."""
        return self.batches[size]

    # capture

    def warm_up(self) -> None:
        """Run the forward once before anything is captured."""
        size = self.sizes()[0]
        self.prepare_capture(size)
        self.run_forward(self.current())

    def capture(self) -> None:
        """Capture every size, the largest first, so that the pool is as large as it gets."""
        for size in reversed(self.sizes()):
            self.capture_size(size)

    def capture_size(self, size: int) -> None:
        self.prepare_capture(size)
        step = self.current()
        self.graphs[size] = self.context.graphs.capture(
            lambda: self.run_forward(step), key=f"{self.mode}[{size}]"
        )
        self.record_capture(size)

    def prepare_capture(self, size: int) -> None:
        """Inputs and metadata of a dummy batch in which every row is live."""
        static, extent = self.static_for(size), self.extent(size)
        self.fill_dummies(static.registry, extent)
        self.start_step(static, extent, extent, size, extent.tokens)

    def fill_dummies(self, registry: BufferRegistry, extent: Extent) -> None:
        """Dummy rows are padded rows, except where a capture must see live values."""
        registry.reset_padding(FillContext(Extent(0, 0), extent))
        encoder_lens = registry.find("encoder_lens", extent)
        if encoder_lens is not None:
            encoder_lens.fill_(self.capture_encoder_len())
        self.write_local_tokens(registry, self.local.at_capture(extent.tokens))
        self.write_rank_tokens(registry, extent.tokens)

    def capture_encoder_len(self) -> int:
        """Encoder length of the dummy rows; 0 would leave cross attention out of the graph."""
        return self.config.max_encoder_len

    def record_capture(self, size: int) -> None:
        step = self.current()
        self.records[size] = CaptureRecord.of(step)

    # one step

    def prepare_replay(self, batch: Batch) -> None:
        """The host's updates before a replay: inputs, padding, metadata."""
        size = self.choose_size(batch)
        if size is None:
            self.prepare_eager(batch)
            return
        static = self.static_for(size)
        raw, padded = self.raw_extent(batch), self.extent(size)
        self.fill_inputs(static.registry, batch, FillContext(raw, padded), padded.tokens)
        self.start_step(static, raw, padded, size, padded.tokens)

    def replay(self, batch: Batch) -> None:
        """Replay the graph that `prepare_replay` chose, or run eagerly where it chose none."""
        step = self.current()
        if step.size is None:
            self.outputs = self.run_forward(step)
        else:
            self.outputs = self.run_graph(step.size)

    def run_graph(self, size: int) -> Outputs:
        """Replay; what it leaves is valid until the next replay."""
        graph = self.graphs[size]
        graph.replay()
        return graph.outputs

    def eager(self, batch: Batch) -> None:
        """The same forward without a graph or padding."""
        self.prepare_eager(batch)
        self.outputs = self.run_forward(self.current())

    def prepare_eager(self, batch: Batch) -> None:
        raw, sharded = self.raw_extent(batch), self.sharded_tokens(batch)
        self.fill_inputs(self.eager_static.registry, batch, FillContext(raw, raw), sharded)
        self.start_step(self.eager_static, raw, raw, None, sharded)

    def sharded_tokens(self, batch: Batch) -> int:
        """Padded tokens of the batch: ranks share them out alike with a graph and without."""
        size = self.choose_size(batch)
        return batch.num_tokens if size is None else self.extent(size).tokens

    def fill_inputs(
        self, registry: BufferRegistry, batch: Batch, context: FillContext, sharded: int
    ) -> None:
        registry.fill_from(batch, context)
        self.write_local_tokens(registry, self.live_tokens(batch, sharded))
        self.write_rank_tokens(registry, context.padded.tokens)

    def live_tokens(self, batch: Batch, sharded: int) -> int:
        """Live tokens in this rank's share of `sharded` padded ones."""
        return self.local.live(batch.num_tokens, sharded)

    def write_local_tokens(self, registry: BufferRegistry, live: int) -> None:
        count = registry.buffers.get("num_token_non_padded")
        if count is not None:
            count.fill_(live)

    def write_rank_tokens(self, registry: BufferRegistry, padded: int) -> None:
        counts = registry.buffers.get("rank_tokens")
        if counts is not None:
            counts.fill_(padded)

    def start_step(
        self, static: StaticBatch, raw: Extent, padded: Extent, size: int | None, sharded: int
    ) -> None:
        extent = self.attended(raw, padded)
        view = static.builder.view(extent)
        metadata = self.build_metadata(static, view)
        second = None if static.second is None else self.build_second(static.second, extent)
        self.step = Step(static, raw, padded, view, metadata, size, sharded, second)

    def attended(self, raw: Extent, padded: Extent) -> Extent:
        """The extent for which metadata is built: padding comes before it."""
        return padded

    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        return static.builder.prepare(view)

    def build_second(self, builder: MetadataBuilder, extent: Extent) -> Built:
        """Metadata of the second layer, whose keys lie on other pages."""
        view = builder.view(extent)
        return Built(view, builder.prepare(view))

    def current(self) -> Step:
        assert self.step is not None, "prepare_replay or eager comes first"
        return self.step

    # the forward

    def run_forward(self, step: Step) -> Outputs:
        """What a graph captures and an eager step runs."""
        metadata = self.full_metadata(step)
        if not step.padded.tokens:
            return self.empty_outputs()
        return self.run_model(step, metadata)

    def full_metadata(self, step: Step) -> FullMetadata:
        """Metadata as attention needs it, upgraded where it is raw."""
        return step.static.builder.in_forward(step.metadata, step.view)

    def run_model(self, step: Step, metadata: FullMetadata) -> Outputs:
        inputs = self.step_inputs(step)
        outputs = self.model.forward(inputs, metadata)
        return outputs if step.second is None else outputs | self.run_second(step, inputs)

    def run_second(self, step: Step, inputs: ForwardInputs) -> Outputs:
        """The second layer; it has inputs, but for the slots of its group, in common."""
        layer, builder, built = self.context.second, step.static.second, step.second
        assert layer is not None and builder is not None and built is not None
        slots = step.static.registry.view("swa_out_cache_loc", step.padded)
        metadata = builder.in_forward(built.metadata, built.view)
        return {SECOND_LAYER: layer.attend(inputs, slots, metadata)}

    def step_inputs(self, step: Step) -> ForwardInputs:
        return self.forward_inputs(step.static.registry, step.padded, step.sharded_tokens)

    def empty_outputs(self) -> Outputs:
        """Outputs of an eager step without tokens."""
        config, device = self.config, self.context.device
        none = torch.zeros(
            0, config.num_q_heads, config.v_head_dim, dtype=self.model.dtype, device=device
        )
        outputs = dict.fromkeys((*attention_outputs(config), *mixed_outputs(config)), none)
        if config.recurrent_state:
            outputs["state"] = torch.zeros(0, STATE_WIDTH, device=device)
        if config.attn_tp_size > 1:
            outputs["moe"] = none
        return outputs

    def forward_inputs(
        self, registry: BufferRegistry, extent: Extent, sharded_tokens: int
    ) -> ForwardInputs:
        return ForwardInputs(
            extent,
            registry.view("input_ids", extent),
            registry.view("positions", extent),
            registry.view("out_cache_loc", extent),
            registry.find("mrope", extent),
            registry.find("state_indices", extent),
            registry.find("num_token_non_padded", extent),
            sharded_tokens=sharded_tokens,
            crosses=self.crosses(),
            ragged=self.is_ragged(),
        )

    def crosses(self) -> bool:
        """Whether the forward holds cross attention: decided on the host, frozen at capture."""
        return self.config.max_encoder_len > 0 and self.capture_encoder_len() > 0

    def is_ragged(self) -> bool:
        return self.mode in ("draft_extend", "prefill")

    # what is seen from outside

    def promised_outputs(self) -> tuple[str, ...]:
        names = [*attention_outputs(self.config), *mixed_outputs(self.config)]
        if self.config.recurrent_state:
            names.append("state")
        if self.config.attn_tp_size > 1:
            names.append("moe")
        return tuple(names)

    def keeps_outputs(self) -> bool:
        """Whether outputs handed out survive later replays; a graph's own do not."""
        return False

    def observe(self, batch: Batch) -> Observation:
        """Copies of what the last step produced and used."""
        step = self.current()
        record = None if step.size is None else self.records.get(step.size)
        frozen = () if record is None else record.launches
        return observation_of(batch, step, self.outputs, self.config, frozen)

    def named_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers of graphs and of eager steps, by the names that findings use."""
        named: dict[str, torch.Tensor] = {}
        for size, static in sorted(self.batches.items(), reverse=True):
            prefix = "" if static is self.batches[self.sizes()[-1]] else f"{size}."
            named |= {prefix + name: tensor for name, tensor in static.buffers().items()}
        eager = self.eager_static.buffers()
        return named | {f"eager.{name}": tensor for name, tensor in eager.items()}

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """Name -> (buffer as written now, address that the graphs hold)."""
        found = {}
        for size, record in self.records.items():
            for name, tensor in self.static_for(size).buffers().items():
                if name in record.addresses:
                    found[name] = (tensor, record.addresses[name])
        return found

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        """Name -> what the graph saw of it at capture."""
        size = self.choose_size(batch)
        if size is None or size not in self.records:
            return {}
        return self.records[size].values
