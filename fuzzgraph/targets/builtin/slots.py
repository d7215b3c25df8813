"""Which input buffers the runners have: the factories of the decode and the prefill registry."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.registry import BufferRegistry, GraphSlot, PaddingPolicy
from fuzzgraph.targets.builtin.shape import Extent
from fuzzgraph.targets.builtin.trees import ancestors
from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT, VOCAB

MROPE_ABSENT = VOCAB
"""Row of the model's mrope table that adds nothing."""

_FREE = {
    "keep": PaddingPolicy.KEEP,
    "zero": PaddingPolicy.ZERO,
    "copy_live": PaddingPolicy.COPY_LIVE,
}


def _rows(extent: Extent) -> tuple[int, ...]:
    return (extent.rows,)


def _tokens(extent: Extent) -> tuple[int, ...]:
    return (extent.tokens,)


class Slots:
    """Declares each input buffer in a method of its own."""

    def __init__(self, config: EngineConfig, mode: Mode) -> None:
        self.config = config
        self.mode = mode

    def free_policy(self) -> PaddingPolicy:
        """Policy of buffers whose padded rows select no memory."""
        return _FREE[self.config.free_padding]

    def input_ids(self) -> GraphSlot:
        return self._tokens_slot("input_ids", self.free_policy())

    def positions(self) -> GraphSlot:
        return self._tokens_slot("positions", self.free_policy())

    def out_cache_loc(self) -> GraphSlot:
        """Padded tokens write the reserved slot."""
        return GraphSlot(
            "out_cache_loc",
            _tokens,
            torch.int64,
            "tokens",
            PaddingPolicy.ZERO,
            RESERVED_SLOT,
            lambda batch: batch.slot_mapping,
        )

    def swa_out_cache_loc(self) -> GraphSlot:
        """Where the second layer's KV cache group has the same tokens."""
        return GraphSlot(
            "swa_out_cache_loc",
            _tokens,
            torch.int64,
            "tokens",
            PaddingPolicy.ZERO,
            RESERVED_SLOT,
            lambda batch: batch.more_groups[0].slot_mapping,
        )

    def draft_cache_loc(self) -> GraphSlot:
        """[rows, topk * steps]: where each branch writes at each draft step."""
        per_row = self.config.spec_topk * self.config.spec_steps
        return GraphSlot(
            "draft_cache_loc",
            lambda extent: (extent.rows, per_row),
            torch.int64,
            "batch",
            PaddingPolicy.ZERO,
            RESERVED_SLOT,
            lambda batch: batch.slot_mapping.reshape(-1, per_row),
        )

    def req_pool_indices(self) -> GraphSlot:
        """Padded rows name the reserved request row."""
        return GraphSlot(
            "req_pool_indices",
            _rows,
            torch.int32,
            "batch",
            PaddingPolicy.ZERO,
            RESERVED_ROW,
            lambda batch: batch.req_pool_indices,
        )

    def seq_lens(self) -> GraphSlot:
        """Padded rows have the length that the attention backend expects of them."""
        return GraphSlot(
            "seq_lens",
            _rows,
            torch.int32,
            "batch",
            PaddingPolicy.FILL_SENTINEL,
            self.seq_len_fill_value(),
            lambda batch: batch.seq_lens,
        )

    def seq_len_fill_value(self) -> int:
        return self.config.seq_len_fill_value

    def new_lens(self) -> GraphSlot:
        """Tokens per row in ragged modes; padded rows have as many as their length allows."""
        return GraphSlot(
            "new_lens",
            _rows,
            torch.int32,
            "batch",
            PaddingPolicy.FILL_SENTINEL,
            self.new_len_fill_value(),
            lambda batch: batch.new_lens,
        )

    def new_len_fill_value(self) -> int:
        return self.seq_len_fill_value()

    def encoder_lens(self) -> GraphSlot:
        """Padded rows have no encoder."""
        return GraphSlot(
            "encoder_lens",
            _rows,
            torch.int32,
            "batch",
            PaddingPolicy.FILL_SENTINEL,
            self.encoder_len_fill_value(),
            lambda batch: batch.encoder_lens,
        )

    def encoder_len_fill_value(self) -> int:
        return 0

    def state_indices(self) -> GraphSlot:
        """Padded rows name the reserved state slot."""
        return GraphSlot(
            "state_indices",
            _rows,
            torch.int64,
            "batch",
            PaddingPolicy.ZERO,
            0,
            lambda batch: batch.state_slots,
        )

    def mrope(self) -> GraphSlot:
        """Optional positions; absent ones add nothing to the query."""
        return GraphSlot(
            "mrope",
            _tokens,
            torch.int64,
            "tokens",
            PaddingPolicy.FILL_SENTINEL,
            MROPE_ABSENT,
            lambda batch: batch.mrope,
        )

    def tree_mask(self) -> GraphSlot:
        """[rows, draft, draft] which draft token sees which; 1 where it does."""
        width = self.config.draft_tokens
        window = self.config.sliding_window
        return GraphSlot(
            "tree_mask",
            lambda extent: (extent.rows, width, width),
            torch.int32,
            "batch",
            PaddingPolicy.ZERO,
            0,
            lambda batch: ancestors(batch.tree_parents, window),
        )

    def num_token_non_padded(self) -> GraphSlot:
        """[1] live tokens of this rank; the runner writes it, for it follows from both sizes."""
        return GraphSlot("num_token_non_padded", lambda extent: (1,), torch.int32, "none")

    def rank_tokens(self) -> GraphSlot:
        """[dp_size] padded tokens of each data-parallel rank, of which all have as many; the
        runner writes them."""
        return GraphSlot("rank_tokens", lambda extent: (self.config.dp_size,), torch.int32, "none")

    def _tokens_slot(self, name: str, policy: PaddingPolicy) -> GraphSlot:
        return GraphSlot(
            name, _tokens, torch.int64, "tokens", policy, 0, lambda batch: getattr(batch, name)
        )

    def for_decode(self) -> list[GraphSlot]:
        """Slots of the runners that pad request rows."""
        chosen = [self.req_pool_indices(), self.seq_lens(), self.input_ids(), self.positions()]
        chosen.append(self.draft_cache_loc() if self.mode == "draft" else self.out_cache_loc())
        if self.mode == "target_verify":
            chosen.append(self.tree_mask())
        if self.mode == "draft_extend":
            chosen.append(self.new_lens())
        return chosen + self._optional()

    def for_prefill(self) -> list[GraphSlot]:
        """Slots of the runners that pad tokens; their request rows are never padded."""
        chosen = [self.req_pool_indices(), self.seq_lens(), self.new_lens()]
        chosen += [self.input_ids(), self.positions(), self.out_cache_loc()]
        return chosen + self._optional()

    def _optional(self) -> list[GraphSlot]:
        chosen = []
        if self.config.max_encoder_len:
            chosen.append(self.encoder_lens())
        if self.config.swa_window:
            chosen.append(self.swa_out_cache_loc())
        if self.config.recurrent_state:
            chosen.append(self.state_indices())
        if self.mode != "draft":
            chosen.append(self.mrope())
        if self.config.attn_tp_size > 1:
            chosen.append(self.num_token_non_padded())
        if self.config.dp_size > 1:
            chosen.append(self.rank_tokens())
        return chosen


RegistryFactory = Callable[
    [EngineConfig, Mode, Extent, InputPool, torch.device, type[Slots]], BufferRegistry
]


def decode_registry(
    config: EngineConfig,
    mode: Mode,
    largest: Extent,
    pool: InputPool,
    device: torch.device,
    slots: type[Slots] = Slots,
    registry: type[BufferRegistry] = BufferRegistry,
) -> BufferRegistry:
    """Registry of a runner that pads request rows."""
    return registry(slots(config, mode).for_decode(), largest, pool, device)


def prefill_registry(
    config: EngineConfig,
    mode: Mode,
    largest: Extent,
    pool: InputPool,
    device: torch.device,
    slots: type[Slots] = Slots,
    registry: type[BufferRegistry] = BufferRegistry,
) -> BufferRegistry:
    """Registry of a runner that pads tokens."""
    return registry(slots(config, mode).for_prefill(), largest, pool, device)
