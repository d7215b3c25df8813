"""Of blocks: those that DFLASH, DSpark and Uno draft, and their verifies."""

from __future__ import annotations

from fuzzgraph.handover import Excuse
from fuzzgraph.targets.sglang.excuses.decode import EXCUSES, VIEW

_BOUND_SUM = (
    "sglang triton_backend.py init_forward_metadata: a list of seq_lens_sum entries, which for a"
    " drafted block is a bound (dflash_worker_v2.py and uno_worker_v2.py, draft_seq_lens_sum)"
)

_BOUNDED_LIST = Excuse(
    "TritonAttnBackend.*kv_in*",
    "live",
    _BOUND_SUM,
    "kernels read below the last offset; both are declared fields, of eager runs too",
)

BLOCK_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    _BOUNDED_LIST,
    *(
        Excuse(
            name,
            "live",
            "sglang dflash_worker_v2.py _rebuild_compact_draft_cache: a window's page map begins"
            " with the window, so that a row has fewer pages than its request",
            "without a window tables are declared fields; outputs are judged",
        )
        for name in ("*page_table", "*block_tables")
    ),
)

VERIFY_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    _BOUNDED_LIST,
    Excuse(
        "*.forward_batch.lora_ids",
        "missing",
        "sglang forward_batch_info.py init_new: an adapter's name for each request, none without"
        " LoRA; decode_cuda_graph_runner.py captures without names there",
        "no attention backend reads it",
    ),
)

_BACKEND_ASKS = (
    "flashattention_backend.py, triton_backend.py, trtllm_mha_backend.py: without them a bound that"
    " follows from the context stands in; tables and lengths on the device are judged"
)

_NO_LENGTHS = (
    "sglang 0.5.23 dspark_draft.py _run_forward: a backend that asks for no lengths on the host"
    " gets none; decode_cuda_graph_runner.py captures with them"
)

VERIFIED_OFFSETS = (
    "sglang trtllm_mha_backend.py init_cuda_graph_state: offsets of queries as wide as a verify;"
    " forward_extend reads them of verifies that are cut alone"
)

DSPARK_DRAFT_EXCUSES: tuple[Excuse, ...] = (
    *BLOCK_EXCUSES,
    *(
        Excuse(f"*.forward_batch.{name}", "kind", _NO_LENGTHS, _BACKEND_ASKS)
        for name in ("seq_lens_cpu", "seq_lens_sum")
    ),
    Excuse(
        "TRTLLMHAAttnBackend.forward_metadata.cu_seqlens_q",
        "live",
        VERIFIED_OFFSETS,
        "lengths and tables are declared fields; outputs are judged",
    ),
)

_LAST_ROW = (
    "sglang ragged_verify.py padded_to_bucket: where a graph by tokens has no padded rows, the last"
    " row gets the tokens that none has; without a graph there are none"
)
_CUT_COLUMNS = (
    "sglang dspark_verify.py _run_ragged: which places of whole blocks the tokens are;"
    " decode_cuda_graph_runner.py captures a verify without them"
)
_BY_TOKENS = ("compact", "verify_all")
_BUDGET_EXCUSES = (
    *(
        Excuse(
            name,
            "live",
            _LAST_ROW,
            "declared fields hold what follows from that; outputs are judged",
            only_with="verify_budget",
            only_as=_BY_TOKENS,
        )
        for name in (
            "*.lens",
            "*.seq_lens",
            "*.cu_seqlens_q",
            "*.offsets",
            "*.forward_metadata.cache_seqlens_int32",
            "*.forward_metadata.cu_seqlens_k",
        )
    ),
    *(
        Excuse(
            f"*.forward_batch.{name}",
            "kind",
            "sglang dspark_verify.py _run_ragged: a backend that asks for no lengths on the host"
            " gets none; decode_cuda_graph_runner.py captures with them",
            _BACKEND_ASKS,
            only_with="verify_budget",
            only_as=_BY_TOKENS,
        )
        for name in ("seq_lens_cpu", "seq_lens_sum")
    ),
    Excuse(
        "*.forward_batch.kv_loc_cols",
        "missing",
        _CUT_COLUMNS,
        "slots of tokens are judged, and so is what lies in them",
        only_with="verify_budget",
        only_as=_BY_TOKENS,
    ),
)

DSPARK_VERIFY_EXCUSES: tuple[Excuse, ...] = (
    *VERIFY_EXCUSES,
    *_BUDGET_EXCUSES,
    Excuse(
        "*.spec_info.live_seq_lens_cpu",
        "missing",
        "sglang dspark_verify.py run_non_compact: the scheduler's lengths on the host, beside those"
        " of the batch; decode_cuda_graph_runner.py captures a verify without them",
        "dflash_info.py prepare_for_verify reads it on an NPU alone, dspark_verify.py for DeepSeek"
        " V4.1; no backend with CUDA does",
        where_unread=True,
    ),
)

UNO_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    _BOUNDED_LIST,
    Excuse(
        "*.spec_info.positions",
        "form",
        VIEW,
        "positions have a buffer of their own, which is judged; no backend reads Uno's",
        where_unread=True,
    ),
)
