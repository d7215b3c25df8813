"""What each piece of AITER replay metadata promises, with the lines of sglang that promise it."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.sglang.fields import FREE_TAIL, input_fields
from fuzzgraph.world import RESERVED_PAGE, RESERVED_SLOT

__all__ = ["aiter_fields"]

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

_EITHER = "a verify lists its drafts in an eager run, and in a replay it does not"

_RESERVED_SLOT = PaddingRule("reserved", RESERVED_SLOT)
_PAGE = PaddingRule("reserved", RESERVED_PAGE)
_SPAN = PaddingRule("reserved")  # a padded row spans what it may read: see the field it cuts


def aiter_fields(config: EngineConfig) -> tuple[Field, ...]:
    """Declared metadata of one session; the fill value is that of the mode it captures."""
    verify = "target_verify" in config.modes
    return (
        *input_fields(config, config.draft_tokens if verify else 1),
        Field("kv_indptr", "indptr", "offset", _SPAN, source=_SUMS,
              repeats="" if verify else "seq_lens",
              unjudged=_EITHER if verify else ""),
        Field("kv_indices", "indices", "slot", _RESERVED_SLOT, rewritten=True, source=_WRITER),
        Field("page_table", "page_table", "page", _PAGE, rewritten=True, source=_TABLE),
        Field("qo_indptr", "indptr", "offset", _SPAN, source=_SUMS, repeats="new_lens"),
        Field("kv_last_page_len", "requests", "length", PaddingRule("fill", 1), source=_ONES,
              repeats="one_each"),
        # int64 by design, so not judged as an indptr of the kernels, which are int32.
        Field("mask_indptr", "scalar", "nothing", FREE_TAIL, source=_MASK,
              repeats="mask_offsets"),
        Field("custom_mask", "scalar", "nothing", FREE_TAIL, source=_MASK, repeats="mask"),
    )  # fmt: skip
