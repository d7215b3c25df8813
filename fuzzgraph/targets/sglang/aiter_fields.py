"""What each piece of AITER replay metadata promises, with the lines of sglang that promise it."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Contract, Field
from fuzzgraph.world import RESERVED_PAGE, RESERVED_ROW, RESERVED_SLOT

__all__ = ["aiter_fields"]

_POOL = (
    "sglang memory_pool.py ReqToTokenPool: row 0 is the padding row, so that reads of padded rows "
    "land there; cuda_graph_buffer_registry.py build_decode_registry: req_pool_indices ZERO"
)
_SLOT = "sglang cuda_graph_buffer_registry.py build_decode_registry: out_cache_loc ZERO"
_FILL = (
    "sglang cuda_graph_buffer_registry.py build_decode_registry: seq_lens FILL_SENTINEL with "
    "aiter_backend.py get_cuda_graph_seq_len_fill_value"
)
_FREE = "sglang cuda_graph_buffer_registry.py build_decode_registry: FOREACH_COPY keeps the tail"
_WRITER = (
    "sglang attention/utils.py create_flashinfer_kv_indices_triton writes below kv_indptr[bs]; "
    "a padded row has the fill value's length and lies in the pool's padding row"
)
_TABLE = (
    "sglang aiter_backend.py: unified_attention walks rows [0, bs), each below its own length; a "
    "padded row lies in the pool's padding row"
)
_SUMS = "sglang aiter_backend.py: cumsum over all bs rows at every replay; entry 0 stays from init"
_ONES = "sglang aiter_backend.py init_cuda_graph_state: ones, indices count tokens"
_MASK = "sglang aiter_backend.py: custom_mask and mask_indptr choose visibility, no memory"

_FREE_TAIL = Contract("free")
_ROW = Contract("reserved", RESERVED_ROW)
_RESERVED_SLOT = Contract("reserved", RESERVED_SLOT)
_PAGE = Contract("reserved", RESERVED_PAGE)
_SPAN = Contract("reserved")  # a padded row spans what it may read: see the field it cuts


def aiter_fields(config: EngineConfig) -> tuple[Field, ...]:
    """Declared metadata of one session; the fill value is that of the mode it captures."""
    verify = "target_verify" in config.modes
    fill = Contract("fill", config.draft_tokens if verify else 1)
    return (
        Field("input_ids", "tokens", "nothing", _FREE_TAIL, source=_FREE),
        Field("positions", "tokens", "nothing", _FREE_TAIL, source=_FREE),
        Field("req_pool_indices", "requests", "row", _ROW, source=_POOL),
        Field("seq_lens", "requests", "length", fill, source=_FILL),
        Field("seq_lens_cpu", "requests", "length", fill, source=_FILL),
        Field("out_cache_loc", "tokens", "slot", _RESERVED_SLOT, source=_SLOT),
        Field("kv_indptr", "indptr", "offset", _SPAN, source=_SUMS),
        Field("kv_indices", "indices", "slot", _RESERVED_SLOT, rewritten=True, source=_WRITER),
        Field("page_table", "page_table", "page", _PAGE, rewritten=True, source=_TABLE),
        Field("qo_indptr", "indptr", "offset", _SPAN, source=_SUMS),
        Field("kv_last_page_len", "requests", "length", Contract("fill", 1), source=_ONES),
        # int64 by design, so not judged as an indptr of the kernels, which are int32.
        Field("mask_indptr", "scalar", "nothing", _FREE_TAIL, source=_MASK),
        Field("custom_mask", "scalar", "nothing", _FREE_TAIL, source=_MASK),
    )
