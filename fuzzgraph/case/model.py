"""The nouns of a case: config, row, step, case. Frozen, strict, without tensors."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import force_setattr

__all__ = ["SCHEMA_VERSION", "BatchRow", "Case", "EngineConfig", "Mode", "ReplayStep", "Via"]

SCHEMA_VERSION = 1

Mode = Literal["decode", "target_verify", "draft_extend", "draft", "prefill", "idle"]
Via = Literal["graph", "eager"]


def _one_empty_tuple(record: msgspec.Struct, *names: str) -> None:
    """Make every empty tuple the object `()`: msgspec omits a default if it is the same object.

    Python 3.10 makes others, and a case would have another digest once it was written and read.
    """
    for name in names:
        if not getattr(record, name):
            force_setattr(record, name, ())


class EngineConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What an engine is started with; every default is the simplest value.

    Sizes are in requests, tokens or pages as named. `req_pool_size` and
    `kv_pool_pages` count what requests may use: the reserved row and page 0 and
    the trap rows and pages come on top (see `world`).
    """

    modes: tuple[Mode, ...] = ("decode",)
    """Forward modes the engine captures graphs for."""
    capture_bs: tuple[int, ...] = (1, 2)
    """Captured batch sizes in request rows, ascending; gaps are fine."""
    capture_tokens: tuple[int, ...] = ()
    """Captured token counts, ascending, for the token-axis prefill runners."""
    page_size: int = 1
    max_context_len: int = 16
    req_pool_size: int = 8
    kv_pool_pages: int = 64
    num_q_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 4
    v_head_dim: int = 4
    attention: Literal["mha", "mla"] = "mha"
    """`mla`: one latent row serves as key and, in its first `v_head_dim` columns, as value."""
    page_map: Literal["csr", "page_table"] = "csr"
    """`csr`: kv_indptr + kv_indices in tokens; `page_table`: dense pages (unified attention)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    kv_dtype: Literal["auto", "float8_e4m3fn"] = "auto"
    kernels: Literal["torch", "triton"] = "torch"
    split_kv: int = 0
    """KV tokens per work item of the split plan; 0 means one item per row, no plan."""
    metadata: Literal["full", "raw_out_graph", "raw_in_graph"] = "full"
    """Whether metadata is built whole, or raw and upgraded before or inside the graph."""
    seq_len_fill_value: Literal[0, 1] = 1
    free_padding: Literal["keep", "zero", "copy_live"] = "keep"
    """Padding policy of buffers whose tail selects no memory (input_ids, positions)."""
    runner: Literal["graph", "cpu_graph"] = "graph"
    prefill_runner: Literal["piecewise", "breakable"] = "piecewise"
    sliding_window: int = 0
    """Keys a query sees besides itself; 0 means all."""
    max_encoder_len: int = 0
    """Room for encoder tokens per request; 0 means a decoder-only model."""
    recurrent_state: bool = False
    spec_steps: int = 1
    spec_topk: int = 1
    draft_tokens: int = 2
    """Tokens per request that a verify step checks."""
    attn_tp_size: int = 1
    attn_tp_rank: int = 0
    eager_above_ladder: bool = True
    """Whether a batch above the largest captured size runs eagerly instead of failing."""

    def __post_init__(self) -> None:
        _one_empty_tuple(self, "capture_tokens")


class BatchRow(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One live request in a step."""

    request: int
    """Logical name of the request, for the life of the case."""
    seq_len: int = 1
    """KV tokens the step attends over, those computed in this step included."""
    new_tokens: int = 1
    """Tokens computed in this step: 1 in decode, the accept length in draft_extend."""
    encoder_len: int = 0


class ReplayStep(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One forward of the engine. A request not seen before is added, one seen again continues."""

    mode: Mode = "decode"
    rows: tuple[BatchRow, ...] = ()
    finish: tuple[int, ...] = ()
    """Requests that left before this step; their row, pages and state are free again."""
    via: Via = "graph"
    mrope: bool = False
    """Whether the optional multi-modal position input is present."""

    def __post_init__(self) -> None:
        _one_empty_tuple(self, "rows", "finish")


class Case(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An engine config and the steps replayed on it."""

    schema_version: Literal[1]
    config: EngineConfig
    steps: tuple[ReplayStep, ...]
    seed: int = 0
    page_order: Literal["ascending", "descending", "shuffled", "fragmented"] = "ascending"
    shared_prefix_pages: int = 0
    """Leading pages that requests share, as prefix caching makes them."""
