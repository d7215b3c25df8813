"""What a builder is made of and what it works on: pools, parts, and the views of one size."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fuzzgraph.targets.builtin.metadata.draft_indices import DraftKvIndices
from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices, KvView
from fuzzgraph.targets.builtin.metadata.mask import MaskView, TreeMask
from fuzzgraph.targets.builtin.metadata.objects import FullMetadata, RawMetadata
from fuzzgraph.targets.builtin.metadata.page_table import PageTable, PageView
from fuzzgraph.targets.builtin.metadata.work_plan import PlanView, WorkPlan
from fuzzgraph.targets.builtin.pools import EncoderMap, PagedKVPool, ReqToTokenPool
from fuzzgraph.targets.builtin.shape import Extent


@dataclass(frozen=True)
class Tables:
    """The pools that metadata is built from."""

    req_to_token: ReqToTokenPool
    kv: PagedKVPool
    encoder: EncoderMap | None


@dataclass(frozen=True)
class BuilderComponents:
    """The classes a builder is made of."""

    kv_indices: type[KvIndices] = KvIndices
    page_table: type[PageTable] = PageTable
    mask: type[TreeMask] = TreeMask
    plan: type[WorkPlan] = WorkPlan
    encoder: type[KvIndices] = KvIndices
    draft_indices: type[DraftKvIndices] = DraftKvIndices


@dataclass(slots=True)
class BuiltView:
    """All that is written and read for one batch size; made once, at capture."""

    extent: Extent
    raw: RawMetadata
    kv_lens: torch.Tensor
    """int32 [rows] keys that the attention is given of each row."""
    skipped: torch.Tensor | None
    """int32 [rows] leading keys it is not given, where a window restricts them."""
    qo_indptr: torch.Tensor | None
    kv: KvView | None = None
    pages: PageView | None = None
    mask: MaskView | None = None
    plan: PlanView | None = None
    encoder: KvView | None = None
    full: FullMetadata = field(default_factory=lambda: FullMetadata(()))
