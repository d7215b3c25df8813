"""Builds the attention metadata of a batch from the static input buffers, in fixed shapes.

One builder serves one runner. Its buffers are allocated once, for the largest captured batch.
`prepare` runs before a replay, `in_forward` inside the captured forward; between them they decide
where raw metadata becomes full. Draft steps are the business of `draft`.
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.targets.builtin.attention import AttentionBatch
from fuzzgraph.targets.builtin.cached_method import cached_method
from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices, KvView
from fuzzgraph.targets.builtin.metadata.mask import TreeMask
from fuzzgraph.targets.builtin.metadata.naming import plan_buffers, view_fields
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.metadata.page_table import PageTable
from fuzzgraph.targets.builtin.metadata.views import BuilderComponents, BuiltView, Tables
from fuzzgraph.targets.builtin.metadata.work_plan import WorkPlan
from fuzzgraph.targets.builtin.registry import BufferRegistry
from fuzzgraph.targets.builtin.shape import Extent, row_tokens

__all__ = ["BuilderComponents", "BuiltView", "MetadataBuilder", "Tables"]


class MetadataBuilder:
    """Metadata of decode, verify, draft-extend and prefill batches."""

    def __init__(
        self,
        config: EngineConfig,
        mode: Mode,
        tables: Tables,
        registry: BufferRegistry,
        components: BuilderComponents,
        device: torch.device,
    ) -> None:
        self.config = config
        self.mode = mode
        self.tables = tables
        self.registry = registry
        self.components = components
        self.device = device
        self.kv: KvIndices | None = None
        self.pages: PageTable | None = None
        self.mask: TreeMask | None = None
        self.plan: WorkPlan | None = None
        self.encoder: KvIndices | None = None
        self._cached = cached_method(self.make_view)
        self.allocate()

    # sizes

    def rows_capacity(self) -> int:
        """Request rows of the largest padded batch, which may exceed the request pool."""
        return self.registry.largest.rows

    def tokens_capacity(self) -> int:
        """Query tokens of the largest padded batch."""
        return self.registry.largest.tokens

    def max_kv_len(self) -> int:
        """Longest sequence of a row, the tokens of this step included."""
        return self.config.max_context_len

    def table_len(self) -> int:
        """Tokens of one row that the page table has room for."""
        return self.max_kv_len()

    def max_q_len(self) -> int:
        """Most query tokens of one row."""
        if self.mode == "prefill":
            return self.config.max_context_len
        return row_tokens(self.config, self.mode)

    def listed_tokens(self) -> int:
        """Most keys that the attention is given of one row."""
        if not self.restricts_window():
            return self.max_kv_len()
        return min(self.max_kv_len(), self.config.sliding_window + self.max_q_len())

    # choices

    def is_ragged(self) -> bool:
        """Whether rows differ in their number of query tokens."""
        return self.mode in ("draft_extend", "prefill")

    def is_single(self) -> bool:
        """Whether row i is query token i."""
        return not self.is_ragged() and self.max_q_len() == 1

    def uses_pages(self) -> bool:
        return self.config.page_map == "page_table"

    def uses_mask(self) -> bool:
        return self.mode == "target_verify"

    def restricts_window(self) -> bool:
        """Whether kv_indices leaves out what no query of the row can see."""
        return bool(self.config.sliding_window) and not (self.uses_pages() or self.uses_mask())

    # buffers

    def allocate(self) -> None:
        """Every static buffer, once, at its true maximum."""
        config, rows = self.config, self.rows_capacity()
        self.qo_indptr = self.query_offsets()
        self.lens = torch.zeros(2, rows, dtype=torch.int32, device=self.device)
        if self.uses_pages():
            self.pages = self.components.page_table(
                self.tables.req_to_token, rows, self.table_len(), self.device
            )
        else:
            self.kv = self.components.kv_indices(
                self.tables.req_to_token, rows, self.listed_tokens(), self.device
            )
        if self.uses_mask():
            self.mask = self.components.mask(
                config.draft_tokens, config.sliding_window, rows, self.max_kv_len(), self.device
            )
        if config.split_kv:
            self.plan = self.components.plan(
                config.split_kv, self.tokens_capacity(), self.listed_tokens(), self.device
            )
        if self.tables.encoder is not None:
            self.encoder = self.components.encoder(
                self.tables.encoder, rows, self.tables.encoder.width(), self.device
            )

    def query_offsets(self) -> torch.Tensor:
        """int32 [rows + 1]; right from the start where every row has as many query tokens."""
        offsets = torch.arange(self.rows_capacity() + 1, dtype=torch.int32, device=self.device)
        return offsets * row_tokens(self.config, self.mode)

    # views

    def view(self, extent: Extent) -> BuiltView:
        """Views for one batch size; the same objects at every call."""
        return self._cached(extent)

    def make_view(self, extent: Extent) -> BuiltView:
        view = self.bare_view(extent)
        rows, requests, registry = extent.rows, view.raw.request_rows, self.registry
        if self.kv is not None:
            view.kv = self.kv.view(rows, requests, view.kv_lens, view.skipped)
        if self.pages is not None:
            view.pages = self.pages.view(rows, requests, view.raw.seq_lens)
        if self.mask is not None:
            tree, positions = registry.view("tree_mask", extent), registry.view("positions", extent)
            view.mask = self.mask.view(rows, view.raw.seq_lens, tree, positions)
        if self.plan is not None:
            view.plan = self.plan.view(extent, view.kv_lens, view.qo_indptr)
        if self.encoder is not None:
            view.encoder = self.encoder.view(rows, requests, registry.view("encoder_lens", extent))
        view.full = self.assemble(view)
        return view

    def bare_view(self, extent: Extent) -> BuiltView:
        """Inputs and lengths, before any page map."""
        rows, raw = extent.rows, self.raw_view(extent)
        offsets = None if self.is_single() else self.qo_indptr[: rows + 1]
        if self.restricts_window():
            return BuiltView(extent, raw, self.lens[0, :rows], self.lens[1, :rows], offsets)
        return BuiltView(extent, raw, raw.seq_lens, None, offsets)

    def raw_view(self, extent: Extent) -> RawMetadata:
        registry = self.registry
        return RawMetadata(
            registry.view("req_pool_indices", extent),
            registry.view("seq_lens", extent),
            registry.find("new_lens", extent),
        )

    def assemble(self, view: BuiltView) -> FullMetadata:
        """The object that the forward dereferences, over the views."""
        cross = None if view.encoder is None else self.cross_batch(view, view.encoder)
        return FullMetadata((self.attention_batch(view),), cross, self.fields(view))

    def attention_batch(self, view: BuiltView) -> AttentionBatch:
        """The launch of self-attention."""
        kv, pages, mask = view.kv, view.pages, view.mask
        return AttentionBatch(
            qo_indptr=view.qo_indptr,
            kv_lens=view.kv_lens,
            kv_indptr=None if kv is None else kv.indptr,
            kv_indices=None if kv is None else kv.indices,
            page_table=None if pages is None else pages.table,
            page_size=self.config.page_size,
            custom_mask=None if mask is None else mask.mask,
            mask_indptr=None if mask is None else mask.indptr,
            window=self.config.sliding_window,
            scale=self.scale(),
            k_scale=self.tables.kv.k_scale,
            v_scale=self.tables.kv.v_scale,
            max_q_len=self.max_q_len(),
            max_kv_len=self.listed_tokens(),
            plan=None if view.plan is None else view.plan.plan,
        )

    def cross_batch(self, view: BuiltView, encoder: KvView) -> AttentionBatch:
        """The launch over the encoder's tokens: every query sees all of its row's."""
        return AttentionBatch(
            qo_indptr=view.qo_indptr,
            kv_lens=encoder.kv_lens,
            kv_indptr=encoder.indptr,
            kv_indices=encoder.indices,
            causal=False,
            scale=self.scale(),
            k_scale=self.tables.kv.k_scale,
            v_scale=self.tables.kv.v_scale,
            max_q_len=self.max_q_len(),
            max_kv_len=self.config.max_encoder_len,
        )

    def scale(self) -> float:
        return float(self.config.head_dim**-0.5)

    def fields(self, view: BuiltView) -> dict[str, torch.Tensor]:
        """Buffers by the names under which the target declares them."""
        return view_fields(view)

    def static_buffers(self) -> dict[str, torch.Tensor]:
        """Whole buffers, by the names of `fields`, as they would be written now."""
        found: dict[str, torch.Tensor] = {}
        if not self.is_single():
            found["qo_indptr"] = self.qo_indptr
        if self.restricts_window():
            found["kv_lens"] = self.lens[0]
        if self.kv is not None:
            found |= {"kv_indptr": self.kv.indptr, "kv_indices": self.kv.indices}
        if self.pages is not None:
            found |= {"page_table": self.pages.table, "kv_last_page_len": self.pages.last_page_len}
        if self.mask is not None:
            found |= {"mask_indptr": self.mask.indptr, "custom_mask": self.mask.mask}
        if self.plan is not None:
            found |= plan_buffers(self.plan)
        return found | self.encoder_buffers()

    def encoder_buffers(self) -> dict[str, torch.Tensor]:
        if self.encoder is None:
            return {}
        return {
            "encoder_kv_indptr": self.encoder.indptr,
            "encoder_kv_indices": self.encoder.indices,
        }

    # the upgrade from raw to full

    def prepare(self, view: BuiltView) -> RawMetadata | FullMetadata:
        """Metadata as it stands when the forward starts."""
        if self.config.metadata == "full":
            return self.full(view)
        raw = self.raw(view)
        return raw if self.upgrades_in_graph() else self.upgrade_out_of_graph(raw, view)

    def in_forward(self, metadata: RawMetadata | FullMetadata, view: BuiltView) -> FullMetadata:
        """Metadata as the forward needs it; called inside the captured function."""
        if isinstance(metadata, RawMetadata) and self.upgrades_in_graph():
            return self.upgrade_in_graph(metadata, view)
        return metadata  # type: ignore[return-value]  # raw here is a fault that shows at use

    def upgrades_in_graph(self) -> bool:
        """Whether the conversion is captured; attention between graph segments never has it."""
        return self.config.metadata == "raw_in_graph" and self.mode != "prefill"

    def raw(self, view: BuiltView) -> RawMetadata:
        return view.raw

    def full(self, view: BuiltView) -> FullMetadata:
        if view.extent.rows:
            self.build(view)
        return view.full

    def upgrade_out_of_graph(self, raw: RawMetadata, view: BuiltView) -> RawMetadata | FullMetadata:
        """Full metadata, written before the graph runs."""
        return self.full(view)

    def upgrade_in_graph(self, raw: RawMetadata, view: BuiltView) -> FullMetadata:
        """Full metadata, written by operations that the graph holds."""
        return self.full(view)

    # the work

    def build(self, view: BuiltView) -> None:
        """Write every buffer of the view from the static inputs."""
        self.write_lens(view)
        self.write_query_offsets(view)
        if self.kv is not None and view.kv is not None:
            self.kv.write(view.kv)
        if self.pages is not None and view.pages is not None:
            self.pages.write(view.pages)
        if self.mask is not None and view.mask is not None:
            self.mask.write(view.mask)
        if self.plan is not None and view.plan is not None:
            self.plan.write(view.plan)
        if self.encoder is not None and view.encoder is not None:
            self.encoder.write(view.encoder)

    def write_lens(self, view: BuiltView) -> None:
        """Keys given and skipped of each row, where a window restricts them."""
        if view.skipped is None:
            return
        raw, window = view.raw, self.config.sliding_window
        if raw.new_lens is not None:
            torch.add(raw.new_lens, window, out=view.kv_lens)
            torch.minimum(view.kv_lens, raw.seq_lens, out=view.kv_lens)
        else:
            torch.clamp(raw.seq_lens, max=window + self.max_q_len(), out=view.kv_lens)
        torch.sub(raw.seq_lens, view.kv_lens, out=view.skipped)

    def write_query_offsets(self, view: BuiltView) -> None:
        """Prefix sums of the query tokens, where rows differ."""
        if view.qo_indptr is not None and view.raw.new_lens is not None:
            torch.cumsum(view.raw.new_lens, 0, dtype=torch.int32, out=view.qo_indptr[1:])
