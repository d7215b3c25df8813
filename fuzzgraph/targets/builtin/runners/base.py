"""What all runners share: padding a batch to a captured size, capture, replay, eager, observe.

A runner owns static input buffers and metadata buffers twice: one set for its graphs, one for
eager steps, which never touch what a graph reads. Outputs are handed out as the graph left them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import STATE_WIDTH
from fuzzgraph.observation import Observation
from fuzzgraph.ports import CapturedGraph, GraphEngine
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.local_tokens import LocalTokens
from fuzzgraph.targets.builtin.metadata.builder import (
    BuilderParts,
    BuiltView,
    MetadataBuilder,
    Tables,
)
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.model import ForwardInputs, Model
from fuzzgraph.targets.builtin.registry import BufferRegistry, FillContext
from fuzzgraph.targets.builtin.shape import Extent, row_tokens, smallest_fitting
from fuzzgraph.targets.builtin.slots import Slots
from fuzzgraph.world import Batch

__all__ = ["GraphRunner", "Outputs", "RunnerKit", "StaticBatch", "Step"]

Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RunnerKit:
    """What a runner is given: the session's shared parts and the classes to build with."""

    config: EngineConfig
    graphs: GraphEngine
    model: Model
    tables: Tables
    input_pool: InputPool
    local: LocalTokens
    slots: type[Slots]
    registry: Callable[..., BufferRegistry]
    builder: type[MetadataBuilder]
    builder_parts: BuilderParts

    @property
    def device(self) -> torch.device:
        return self.graphs.device


@dataclass
class StaticBatch:
    """Input and metadata buffers whose addresses graphs may keep."""

    registry: BufferRegistry
    builder: MetadataBuilder


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


@dataclass
class CaptureRecord:
    """What a graph saw when it was captured, to compare with what replays show it."""

    values: dict[str, torch.Tensor] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)


class GraphRunner:
    """Captures one graph per size on the request axis; decode as it stands."""

    mode: Mode = "decode"

    def __init__(self, kit: RunnerKit) -> None:
        self.kit = kit
        self.config = kit.config
        self.model = kit.model
        self.local = kit.local
        self.input_pool = kit.input_pool
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
        """The batch on the axis of the captured sizes."""
        return batch.raw_bs

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
        return StaticBatch(registry, self.make_builder(registry))

    def make_registry(self, largest: Extent, pool: InputPool) -> BufferRegistry:
        kit = self.kit
        return kit.registry(kit.config, self.mode, largest, pool, kit.device, kit.slots)

    def make_builder(self, registry: BufferRegistry) -> MetadataBuilder:
        kit = self.kit
        return kit.builder(
            kit.config, self.mode, kit.tables, registry, kit.builder_parts, kit.device
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
        self.graphs[size] = self.kit.graphs.capture(
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

    def capture_encoder_len(self) -> int:
        """Encoder length of the dummy rows; 0 would leave cross attention out of the graph."""
        return self.config.max_encoder_len

    def record_capture(self, size: int) -> None:
        step = self.current()
        static, extent = step.static, step.padded
        record = self.records[size] = CaptureRecord()
        for name in ("num_token_non_padded", "seq_lens", "encoder_lens"):
            value = static.registry.find(name, extent)
            if value is not None:
                record.values[name] = value.clone()
        for name, tensor in self.static_buffers(static).items():
            record.addresses[name] = tensor.data_ptr()

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

    def live_tokens(self, batch: Batch, sharded: int) -> int:
        """Live tokens in this rank's share of `sharded` padded ones."""
        return self.local.live(batch.num_tokens, sharded)

    def write_local_tokens(self, registry: BufferRegistry, live: int) -> None:
        slot = registry.slots.get("num_token_non_padded")
        if slot is not None:
            slot.buffer.fill_(live)

    def start_step(
        self, static: StaticBatch, raw: Extent, padded: Extent, size: int | None, sharded: int
    ) -> None:
        view = static.builder.view(self.attended(raw, padded))
        metadata = self.build_metadata(static, view)
        self.step = Step(static, raw, padded, view, metadata, size, sharded)

    def attended(self, raw: Extent, padded: Extent) -> Extent:
        """The extent for which metadata is built: padding comes before it."""
        return padded

    def build_metadata(self, static: StaticBatch, view: BuiltView) -> RawMetadata | FullMetadata:
        return static.builder.prepare(view)

    def current(self) -> Step:
        assert self.step is not None, "prepare_replay or eager comes first"
        return self.step

    # the forward

    def run_forward(self, step: Step) -> Outputs:
        """What a graph captures and an eager step runs."""
        metadata = step.static.builder.in_forward(step.metadata, step.view)
        if not step.padded.tokens:
            return self.empty_outputs()
        return self.run_model(step, metadata)

    def run_model(self, step: Step, metadata: FullMetadata) -> Outputs:
        return self.model.forward(self.step_inputs(step), metadata)

    def step_inputs(self, step: Step) -> ForwardInputs:
        return self.forward_inputs(step.static.registry, step.padded, step.sharded_tokens)

    def empty_outputs(self) -> Outputs:
        """Outputs of an eager step without tokens."""
        config, device = self.config, self.kit.device
        none = torch.zeros(
            0, config.num_q_heads, config.v_head_dim, dtype=self.model.dtype, device=device
        )
        outputs = {"attention": none}
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
        names = ["attention"]
        if self.config.recurrent_state:
            names.append("state")
        if self.config.attn_tp_size > 1:
            names.append("moe")
        return tuple(names)

    def keeps_outputs(self) -> bool:
        """Whether outputs handed out survive later replays; a graph's own do not."""
        return False

    def observe(self, batch: Batch) -> Observation:
        """Copies of outputs and of the used part of all metadata."""
        step = self.current()
        seen = Observation(
            step.raw.rows,
            step.padded.rows,
            step.raw.tokens,
            step.padded.tokens,
            outputs={name: output.clone() for name, output in self.outputs.items()},
            metadata=self.used_metadata(step),
            plan=self.plan(step),
            types=self.metadata_types(step),
        )
        return seen

    def used_metadata(self, step: Step) -> dict[str, torch.Tensor]:
        """Inputs of the padded batch, and what lies below the last offset."""
        found = {
            name: slot.view(step.padded).clone()
            for name, slot in step.static.registry.slots.items()
        }
        fields = step.view.full.fields
        for name, tensor in fields.items():
            offsets = fields.get(_offsets_of(name))
            used = tensor if offsets is None else tensor[: offsets[-1]]
            found[name] = used.clone()
        return found

    def plan(self, step: Step) -> dict[str, object]:
        """Frozen numbers that select how the kernel sums."""
        launch = step.view.full.attention[0]
        return {"max_kv_len": launch.max_kv_len, "split_kv": self.config.split_kv}

    def metadata_types(self, step: Step) -> dict[str, str]:
        needed = RawMetadata if step.static.builder.upgrades_in_graph() else FullMetadata
        if self.config.metadata == "full":
            needed = FullMetadata
        return {
            "forward_metadata": type(step.metadata).__name__,
            "forward_metadata.needed": needed.__name__,
        }

    def static_buffers(self, static: StaticBatch) -> dict[str, torch.Tensor]:
        """Every buffer that graphs keep the address of, as the engine would write it now."""
        found = {name: slot.buffer for name, slot in static.registry.slots.items()}
        return found | static.builder.static_buffers()

    def named_buffers(self) -> dict[str, torch.Tensor]:
        """Buffers of graphs and of eager steps, by the names that findings use."""
        named: dict[str, torch.Tensor] = {}
        for size, static in sorted(self.batches.items(), reverse=True):
            prefix = "" if static is self.batches[self.sizes()[-1]] else f"{size}."
            named |= {prefix + name: t for name, t in self.static_buffers(static).items()}
        eager = self.static_buffers(self.eager_static)
        return named | {f"eager.{name}": tensor for name, tensor in eager.items()}

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """Name -> (buffer as written now, address that the graphs hold)."""
        found = {}
        for size, record in self.records.items():
            for name, tensor in self.static_buffers(self.static_for(size)).items():
                if name in record.addresses:
                    found[name] = (tensor, record.addresses[name])
        return found

    def capture_values(self, batch: Batch) -> Mapping[str, tuple[torch.Tensor, torch.Tensor]]:
        """Name -> (seen by the graph at capture, what the capture's own batch makes it)."""
        size = self.choose_size(batch)
        if size is None or size not in self.records:
            return {}
        tokens = self.extent(size).tokens
        truth = {
            "num_token_non_padded": LocalTokens(self.config).at_capture(tokens),
            "seq_lens": self.config.seq_len_fill_value,
            "encoder_lens": self.config.max_encoder_len,
        }
        return {
            name: (value, torch.full_like(value, truth[name]))
            for name, value in self.records[size].values.items()
        }


_OFFSETS = {"custom_mask": "mask_indptr", "plan_tokens": "merge_indptr"}
_OFFSETS |= {"plan_chunks": "merge_indptr"}


def _offsets_of(name: str) -> str:
    """Field that says how much of field `name` is used; '' where all of it is."""
    if "_indices" in name:
        return name.replace("_indices", "_indptr")
    stem, _, suffix = name.partition("@")
    offsets = _OFFSETS.get(stem, "")
    return f"{offsets}@{suffix}" if suffix else offsets
