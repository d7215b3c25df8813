"""Of DeepSeek V4's attention and V4.1's."""

from __future__ import annotations

from fuzzgraph.handover import Excuse, HandoverRule
from fuzzgraph.targets.sglang.excuses.decode import EXCUSES

_CHUNKS = (
    "sglang dsv4/metadata.py plan_indexer_row_chunks: a forward without a graph scores its rows"
    " chunk by chunk where memory is short, with a schedule and a plan for each chunk"
)
_GATHERING = (
    "sglang dsv4/indexer.py _can_use_nonpaged_indexer: keys of a prompt that is alone in a batch"
    " are gathered before they are scored, and never for a graph"
)
_SCORED = "what rows of either run select is judged by outputs"
_FEW_BYTES = "index_logits_bytes"
_OF_CHUNKS: tuple[HandoverRule, ...] = ("missing", "live")
"""One call stands beside several, of which each has some of its rows."""

DSV4_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    Excuse(
        "DeepseekV4AttnBackend.*.spec_info.draft_token",
        "missing",
        "sglang deepseek_v4_backend.py _get_target_verify_bs: counts the drafts of a replay, where"
        " a capture has none",
        "the count is read with online compression of groups of 128 alone, which is off by default"
        " (SGLANG_OPT_USE_ONLINE_COMPRESS)",
    ),
    Excuse(
        "DeepseekV4AttnBackend.forward_metadata.seq_lens_cpu",
        "missing",
        "sglang 0.5.14 deepseek_v4_backend.py DSV4RawVerifyMetadata: raw metadata has it, what they"
        " are upgraded to has not; without a graph they are upgraded at once",
        "no upgrade reads it",
    ),
    Excuse(
        "plan_compress_prefill.req_to_token",
        "live",
        "sglang c_plan.cuh plan_compress_prefill_kernel_1: finds rows by the requests' numbers",
        "the request pool's whole table, which may have as many rows as a batch has tokens; what is"
        " summed by the plan is judged",
    ),
    Excuse(
        "*flashmla_metadata.config",
        "live",
        "FlashMLA flash_mla_interface.py FlashMLASchedMeta: shapes of the call that made the plan",
        "as many numbers as a batch may have tokens, none of them a token's",
    ),
    *(
        Excuse(f"{kernel}*", rule, _CHUNKS, _SCORED, only_with=_FEW_BYTES)
        for kernel in (
            "get_paged_mqa_logits_metadata",
            "fp8_paged_mqa_logits",
            "fp8_fp4_paged_mqa_logits",
            "topk_plan",
            "topk_transform",
        )
        for rule in _OF_CHUNKS
    ),
    *(
        Excuse(f"*indexer_metadata.{name}*", "missing", _CHUNKS, _SCORED, only_with=_FEW_BYTES)
        for name in ("deep_gemm_metadata", "topk_metadata_chunks")
    ),
)

_MADE_IN_GRAPH = (
    "sglang deepseek_v4_backend.py DSV4AttnMetadata.copy_, assign_fields: what the graph itself"
    " makes, at each replay, is not copied to where it lies; what a preparation has of it is held"
)
_CORE = "DeepseekV4AttnBackend.forward_metadata.core_attn_metadata"

DSV4_DRAFT_EXTEND_EXCUSES: tuple[Excuse, ...] = (
    *DSV4_EXCUSES,
    Excuse(
        f"{_CORE}.swa_out_cache_loc",
        "address",
        _MADE_IN_GRAPH,
        "keys are stored by the graph's own slots and attended to; outputs are judged",
    ),
    Excuse(
        f"{_CORE}.c?_flashmla_metadata.*",
        "missing",
        _MADE_IN_GRAPH,
        "the graph's own call of FlashMLA fills its plan; outputs are judged",
    ),
)

DSV4_PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *DSV4_EXCUSES,
    *(
        Excuse(name, "missing", _GATHERING, _SCORED, only_with="index_gather_threshold")
        for name in ("fp8_mqa_logits", "*indexer_metadata.nonpaged_plan*")
    ),
    Excuse(
        "*.capture_metadata.indexer_metadata.compress_ratio",
        "fits",
        "sglang deepseek_v4_backend.py init_forward_metadata_indexer: an indexer's keys are of four"
        " tokens, whatever the layer's are that attends",
        "no size; a layer of groups of 128 tokens has no indexer",
    ),
    Excuse(
        f"{_CORE}.c4_sparse_raw_indices",
        "live",
        "sglang deepseek_v4_backend.py init_flashmla_related: allocated and left as it is, for a"
        " layer's indexer to fill; layers of other groups have none",
        "the layer under test that has one is judged by what it selects",
    ),
    Excuse(
        f"{_CORE}.swa_out_cache_loc",
        "missing",
        "sglang deepseek_v4_backend.py get_swa_out_cache_loc: a graph whose metadata have no slots"
        " of the window, as up to 0.5.22, translates them where it stores keys",
        "keys that are stored are judged",
    ),
)

_VARIANT_GRAPHS = (
    "sglang runner_utils/capture_mode.py skip_low_ratio_indexer, skip_candidate_filtering: graphs"
    " for short requests select every key, or among all of them; an eager run has no such variant"
)

_EAGER_SCORES = "an eager run scores as the graphs of the longest requests do; outputs are judged"

_OF_CANDIDATES = (
    "_candidate_row_lens_kernel",
    "amax8_varlen",
    "topk_plan",
    "topk_transform_places",
    "candidate_block_table",
    "get_paged_sparse_mqa_logits_metadata",
    "fp8_fp4_paged_sparse_mqa_logits",
    "topk_transform_bf16",
)

DSV41_EXCUSES: tuple[Excuse, ...] = (
    *DSV4_EXCUSES,
    Excuse(
        "DeepseekV4AttnBackend.*.spec_info.custom_mask",
        "kind",
        "sglang dspark_verify.py run_non_compact: DSpark's verifies have no mask;"
        " dflash_utils.py resolve_dflash_verify_mask_policy: a capture has one on backends that"
        " it does not name, of which this is one",
        "deepseek_v4_backend.py init_cuda_graph_state: metadata of a verify never extracts it",
        where_unread=True,
    ),
    *(
        Excuse(kernel, "missing", _VARIANT_GRAPHS, _EAGER_SCORES, only_with="candidate_blocks")
        for kernel in (
            "index_q_rope_pack_weights",
            "fp8_fp4_paged_mqa_logits",
            "topk_transform_paged",
            "topk_transform",
            *_OF_CANDIDATES,
        )
    ),
    *(
        Excuse(
            f"{_CORE}.c{ratio}_sparse_page_indices",
            "live",
            _VARIANT_GRAPHS,
            "such a graph fills the indices of both ratios before any layer runs; what a layer"
            " reads is judged by its outputs",
            only_with="candidate_blocks",
        )
        for ratio in (1, 2)
    ),
)
