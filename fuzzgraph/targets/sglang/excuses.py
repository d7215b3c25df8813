"""What sglang hands over by another rule than `oracles.handover` has, with the lines that say so.

One table for all targets: what is excused is listed and counted by `fuzzgraph check-target`.
"""

from __future__ import annotations

from fuzzgraph.handover import Excuse

_VIEW = "sglang decode_cuda_graph_runner.py build_replay_fb_view: unpadded per-iter fields"

_WORK = "ROCm/aiter v1_2_device.cuh: the keys of all rows of a batch are shared out at once"

_TILES = "FlashMLA get_mla_metadata: parts of the work are shared out over all rows of a batch"

_SPLITS = "DeepGEMM csrc/apis/attention.hpp: keys of all rows of a call are shared out at once"

_NO_SPEC = "sglang 0.5.9 cuda_graph_runner.py get_spec_info: a capture's has no batch behind it"

EXCUSES: tuple[Excuse, ...] = (
    Excuse("*.tiles", "live", _TILES, "padded rows take part; the model follows the plan it gets"),
    Excuse(
        "*.num_kv_splits",
        "live",
        "sglang get_num_kv_splits_triton: shares cores out over all rows, padded ones too",
        "any number of splits is right; outputs are judged",
    ),
    Excuse(
        "*.work_meta*", "live", _WORK, "holds addresses, and an eager run allocates its own plan"
    ),
    Excuse(
        "*.work_in*", "live", _WORK, "padded rows take part; the model follows the plan it gets"
    ),
    Excuse("*.work_indptr", "form", _WORK, "one more than workers, which may be as many as rows"),
    Excuse("*.reduce_*", "live", _WORK, "the same plan: where results are made of several parts"),
    Excuse(
        "get_mla_metadata_v1",
        "missing",
        "sglang 0.5.9 aiter_backend.py forward_decode: the first layer makes the plan in the graph",
        "an eager run makes it while it prepares as well; outputs say whether a plan is stale",
    ),
    Excuse(
        "TritonAttnBackend.forward_metadata.window_num_kv_splits",
        "missing",
        "sglang triton_backend.py init_forward_metadata: a verify without a graph makes none",
        "splits are read by forward_decode; a verify runs forward_extend",
    ),
    Excuse(
        "FlashAttentionBackend.*swa_page_table",
        "missing",
        "sglang flashattention_backend.py forward_extend: a window's layer reads swa_spec_metadata"
        " where drafts have branches",
        "an eager preparation makes the table as well; outputs of the layer are judged",
    ),
    Excuse(
        "store_cache.*_cache",
        "live",
        "sglang kvcache.cuh store_kvcache: rows are copied as words of four bytes",
        "the pool seen as numbers; what is written to its slots is judged as KV",
    ),
    Excuse("*.deep_gemm_metadata", "live", _SPLITS, "padded rows take part; the model follows it"),
    Excuse("*.paged_mqa_schedule_metadata", "live", _SPLITS, "the same for another indexer"),
    Excuse("*.schedule*", "live", _SPLITS, "the same schedule, as it is made and as it is read"),
    Excuse("*.num_splits", "live", _TILES, "padded rows take part in the plan"),
    Excuse("*.flashmla_metadata", "live", _TILES, "the same plan, as the backend keeps it"),
    Excuse(
        "trtllm_batch_decode_with_kv_cache_mla.max_seq_len",
        "fits",
        "sglang trtllm_mla_backend.py forward_extend: adds the drafts of a verify to a maximum in"
        " which init_forward_metadata counted them already",
        "the eager run's is too large; the kernel's model holds the graph's against the lengths",
    ),
    Excuse(
        "*.spec_info.num_accept_tokens",
        "meaning",
        "sglang multi_layer_eagle.py fill_draft_extend_prepare_buffers: sentinels of padded rows",
        "the graphs of a multi-layer draft skip rows by this -1",
    ),
    Excuse(
        "*.forward_batch.spec_info.topk_*",
        "live",
        "sglang frozen_kv_mtp_cuda_graph_runner.py: topk_p and topk_index are produced by the"
        " captured seed iteration",
        "the graph computes them before it reads them",
    ),
    Excuse(
        "AiterAttnBackend.forward_metadata.kv_last_page_len",
        "missing",
        "sglang aiter_backend.py init_forward_metadata: a verify without a graph leaves it None",
        "its kernels find the last page by the lengths",
    ),
    Excuse(
        "AiterAttnBackend.*kv_in*",
        "missing",
        "sglang aiter_backend.py forward_decode: unified attention reads the page table",
        "an eager preparation makes the token-level lists beside the table, a graph has no use",
    ),
    Excuse(
        "*.forward_batch.out_cache_loc",
        "form",
        _VIEW,
        "backends write KV by the graph's own buffer; the view carries the batch's slots beside it",
    ),
    Excuse(
        "*.forward_batch.out_cache_loc_virtual",
        "missing",
        "sglang kv_loc_plan.py KVLocPlan.bind: runner slots have no virtual ids at capture; those"
        " of a replay stay with the live batch, for the scheduler",
        "no backend reads it; what it is translated to is judged as out_cache_loc",
        where_unread=True,
    ),
    Excuse(
        "*SparseAttnBackend.*.indexer_seq_lens*",  # of its metadata, and of what it returns
        "missing",
        "sglang dsa_indexer.py, once nsa_indexer.py: read by the extend paths of the indexer, which"
        " no graph holds",
        "a graph's indexer reads the lengths of the paged logits, cache_seqlens_int32",
    ),
    *(
        Excuse(
            name,
            "missing",
            "sglang dsa_backend.py init_cuda_graph_state, dsa_drop_wide_page_table: the table of"
            " tokens is left out of graphs of decodes whose keys topk_v2.cuh selects",
            "that kernel and the scores read real_page_table, a declared field; the older"
            " selection fails without the table",
        )
        for name in ("*SparseAttnBackend.*page_table_1", "*SparseAttnBackend.token_ind*")
    ),
    Excuse(
        "*._replay_forward_batch*",
        "missing",
        "sglang 0.5.12 cuda_graph_runner.py replay: sets it around the preparation, then to None",
        "only the preparation of DeepSeek V4 reads it",
    ),
    Excuse(
        "*.forward_batch.num_token_non_padded",
        "live",
        "sglang cuda_graph_runner.py replay_prepare: a rank's share of the graph's tokens",
        "ranks of an eager run share fewer tokens",
    ),
    Excuse(
        "*.forward_batch.global_num_tokens_*",
        "live",
        "sglang cuda_graph_buffer_registry.py build_decode_registry: filled with a graph's tokens",
        "counts of ranks, not of rows; declared fields judge the graph's",
    ),
    Excuse(
        "*.dp_padding_mode",
        "fits",
        "sglang dp_attention.py DpPaddingMode: a graph has get_default_mode_in_cuda_graph, a batch"
        " without one get_dp_padding_mode",
        "sizes of a data-parallel gather follow from it; no backend reads the mode",
    ),
    Excuse(
        "*.spec_info.draft_token",
        "missing",
        "sglang decode_cuda_graph_runner.py get_spec_info: draft_token=None at capture",
        "what is verified comes by the input ids, which have a buffer of their own",
        where_unread=True,
    ),
    Excuse(
        "*.spec_info.positions",
        "missing",
        _NO_SPEC,
        "positions have a buffer of their own",
        where_unread=True,
    ),
    Excuse(
        "*.spec_info.seq_lens_*",
        "missing",
        _NO_SPEC,
        "a capture's lengths are those of the runner's buffers, which come beside it",
        where_unread=True,
    ),
)

_DRAFT = "sglang eagle_draft_cuda_graph_runner.py: the batch that a graph is captured with"
_COUNTS = "the graph is captured for full batches; no backend of a draft reads the count"
_BUFFERS = "the graph reads buffers of its own"

DRAFT_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    Excuse(
        "*.input_ids",
        "form",
        "sglang eagle_draft_extend_cuda_graph_runner.py: the view for a replay carries the batch's",
        "no backend takes a size from it while it prepares a draft extend",
    ),
    Excuse(
        "*.spec_info.hidden_states",
        "form",
        "sglang eagle_draft_cuda_graph_runner.py and eagle_draft_extend_cuda_graph_runner.py: copy"
        " those of the batch before the replay",
        f"{_BUFFERS}; the view carries the batch's, of live tokens",
        where_unread=True,
    ),
    Excuse(
        "*.spec_info.topk_*",
        "form",
        "sglang eagle_draft_cuda_graph_runner.py: copies topk_p and topk_index before the replay",
        f"{_BUFFERS}; the view carries those of live rows",
        where_unread=True,
    ),
    Excuse(
        "*.input_ids",
        "missing",
        _DRAFT,
        "each of a draft's steps takes the tokens that the step before it chose",
    ),
    Excuse(
        "*.spec_info.bonus_tokens",
        "missing",
        _DRAFT,
        "no step of a draft reads it; the worker makes a draft's batch of it",
        where_unread=True,
    ),
    Excuse("*.*num_token_non_padded*", "missing", _DRAFT, _COUNTS, where_unread=True),
    Excuse(
        "*.*global_num_tokens*",
        "kind",
        "sglang eagle_draft_cuda_graph_runner.py: rows of all ranks choose the graph",
        f"{_BUFFERS}; no backend of a draft reads them",
    ),
    Excuse(
        "*.global_dp_buffer_len",
        "kind",
        "sglang eagle_draft_cuda_graph_runner.py capture_one_shape: the rows that ranks gather",
        "frozen in the graph; no backend reads it",
        where_unread=True,
    ),
    Excuse(
        "*.sampling_info",
        "kind",
        _DRAFT,
        f"{_BUFFERS}, filled where drafts are sampled",
        where_unread=True,
    ),
    Excuse(
        "*.extend_seq_lens*",
        "kind",
        _DRAFT,
        "a draft's step is a decode; extends read them",
        where_unread=True,
    ),
    Excuse(
        "*.mrope_positions",
        "kind",
        _DRAFT,
        f"{_BUFFERS}, filled for models with such positions",
        where_unread=True,
    ),
    Excuse(
        "*.dp_padding_mode",
        "kind",
        "sglang forward_batch_info.py prepare_mlp_sync_batch: sets it under data parallelism alone",
        "the sizes of a data-parallel gather are frozen in the graph; no backend reads the mode",
        where_unread=True,
    ),
    Excuse(
        "*.spec_info.select_index",
        "kind",
        "sglang eagle_draft_extend_cuda_graph_runner.py execute: takes it by itself",
        f"{_BUFFERS}, filled before the replay; what is taken by it is judged",
        where_unread=True,
    ),
    Excuse(
        "*.spec_info.capture_hidden_mode",
        "fits",
        "sglang eagle_info.py EagleDraftInput, up to 0.5.11: FULL unless somebody sets it",
        "which hidden states a forward keeps is read from the batch; they are judged",
        where_unread=True,
    ),
    Excuse(
        "*.attn_backend",
        "missing",
        "sglang eagle_worker.py draft_forward up to 0.5.12: each step sets its own on the batch",
        "the batch that a graph is captured with has none before the first step",
    ),
    Excuse(
        "*.spec_info.num_correct_drafts",
        "padding",
        "sglang multi_layer_eagle.py fill_draft_extend_prepare_buffers: padded rows keep theirs",
        "what is gathered by them is discarded",
    ),
    Excuse(
        "*.spec_info.bonus_tokens",
        "form",
        "sglang frozen_kv_mtp_cuda_graph_runner.py: copies the tokens of live rows",
        f"{_BUFFERS}; the view carries those of live rows",
        where_unread=True,
    ),
    Excuse(
        "*.spec_info.bonus_tokens",
        "padding",
        "sglang frozen_kv_mtp_cuda_graph_runner.py: copies the tokens of live rows",
        "token ids; padded rows draft from any of them",
    ),
    Excuse(
        "*.out_cache_loc",
        "missing",
        "sglang frozen_kv_mtp_cuda_graph_runner.py: its drafts write no KV",
        "the KV cache is frozen, so that there is no place to write to",
    ),
)

_TWO_PARTS = (
    "sglang flashinfer_backend.py init_forward_metadata: a draft-extend without a graph attends to"
    " the past by one wrapper and to its own tokens by another, as a prompt does"
)
_ONE_PART = "the graph attends to both by one wrapper; outputs of both runs are judged"

DRAFT_EXTEND_EXCUSES: tuple[Excuse, ...] = (
    *DRAFT_EXCUSES,
    Excuse(
        "*SparseAttnBackend.*dsa_extend_seq_lens_list",
        "live",
        "sglang dsa_backend.py _build_forward_metadata_cuda_graph: a 1 for each token of a row,"
        " where init_forward_metadata has the row's width",
        "dsa_indexer.py reads the sum alone, and the kernel that reads a table of tokens takes"
        " each token for a row",
    ),
    *(
        Excuse(name, "missing", _TWO_PARTS, _ONE_PART)
        for name in (
            "BatchPrefillWithRaggedKVCache",
            "merge_state",
            "segment_packbits",
            "BatchPrefillWithPagedKVCache.custom_mask",
            "BatchPrefillWithPagedKVCache.mask_indptr",
            "BatchPrefillWithPagedKVCache.lse",
            "FlashInferAttnBackend.*multi_item_params",
        )
    ),
    Excuse("BatchPrefillWithPagedKVCache", "meaning", _TWO_PARTS, _ONE_PART),
    Excuse("BatchPrefillWithPagedKVCache.paged_kv_ind*", "live", _TWO_PARTS, _ONE_PART),
    Excuse("BatchPrefillWithPagedKVCache.causal", "fits", _TWO_PARTS, _ONE_PART),
)

LAYERS_EXCUSES: tuple[Excuse, ...] = (
    *DRAFT_EXTEND_EXCUSES,
    Excuse(
        "*.forward_batch.input_ids",
        "live",
        "sglang multi_layer_eagle_draft_extend_cuda_graph_runner.py _capture_one_graph: one graph"
        " holds all layers, and moves the tokens on before each but the first",
        "taken down before the replay; tokens of the first layer are a field, those of others show"
        " in what is judged",
    ),
    Excuse(
        "*.spec_info.select_index",
        "missing",
        "sglang multi_layer_eagle_draft_extend_cuda_graph_runner.py prepare: none for a replay",
        f"{_BUFFERS}, filled before the replay; what is taken by it is judged",
    ),
    Excuse(
        "*.spec_info.select_index",
        "padding",
        "sglang multi_layer_eagle.py fill_draft_extend_prepare_buffers: padded rows keep theirs",
        "what is gathered by them is discarded",
    ),
)

_EARLIER = (
    "sglang 0.5.9 to 0.5.14, multi_layer_eagle_utils.py assign_new_state: rows of a later layer"
    " begin with tokens of the past, which a run without a graph leaves as they are"
)
_WRITTEN_AGAIN = (
    "keys and values of these tokens stay the same bits, which is judged; so are outputs"
)

OWN_INPUTS_EXCUSES: tuple[Excuse, ...] = (
    *LAYERS_EXCUSES,
    *(
        Excuse(name, "live", _EARLIER, _WRITTEN_AGAIN)
        for name in ("flash_attn_with_kvcache.cu_seqlens_q", "store_cache.*")
    ),
    Excuse("flash_attn_with_kvcache", "meaning", _EARLIER, _WRITTEN_AGAIN),
)
"""Where each layer has inputs of its own."""

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
        Excuse(kernel, "missing", _VARIANT_GRAPHS, _EAGER_SCORES)
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
            f"DeepseekV4AttnBackend.forward_metadata.core_attn_metadata.c{ratio}_sparse_page_indices",
            "live",
            _VARIANT_GRAPHS,
            "such a graph fills the indices of both ratios before any layer runs; what a layer"
            " reads is judged by its outputs",
        )
        for ratio in (1, 2)
    ),
)
DSPARK_VERIFY_EXCUSES: tuple[Excuse, ...] = (
    *VERIFY_EXCUSES,
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
        _VIEW,
        "positions have a buffer of their own, which is judged; no backend reads Uno's",
        where_unread=True,
    ),
)

_CPU_GRAPH = "sglang cpu_graph_runner.py prepare_replay: hands over the batch of the capture"

CPU_GRAPH_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    Excuse(
        "*.forward_batch.seq_lens_sum",
        "fits",
        _CPU_GRAPH,
        "intel_amx_backend.py and torch_native_backend.py, which run on a CPU, never read it",
    ),
    Excuse(
        "*.forward_batch.can_run_*cuda_graph",
        "fits",
        _CPU_GRAPH,
        "lora_manager.py reads it under data parallelism, which this runner refuses",
        where_unread=True,
    ),
)

_STATIC = "sglang prefill_cuda_graph_runner.py: the batch of a replay is made anew, without them"
_AGREED = "what all groups agreed on before the graph was chosen; no backend reads it"

_LATE_ROWS = (
    "sglang base_attn_backend.py late_layer_num_tokens: says how many rows late layers compute"
)

PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    Excuse(
        "*.forward_batch.input_ids",
        "live",
        "sglang mm_utils.py embed_mm_inputs: puts ids of images below the vocabulary, in place",
        "a layer gets embeddings; ids of text alone, and all embeddings, are declared fields",
    ),
    Excuse("*.can_run_*cuda_graph", "fits", _STATIC, _AGREED, where_unread=True),
    Excuse("*.is_extend_in_batch", "fits", _STATIC, _AGREED, where_unread=True),
    Excuse(
        "*.late_layer_num_tokens.*",
        "form",
        _LATE_ROWS,
        "data-parallel ranks ask before they choose a graph, of an idle rank's batch too",
        where_unread=True,
    ),
)

HYBRID_VERIFY_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    Excuse(
        "*.forward_batch.mamba_track_indices",
        "missing",
        "sglang decode_cuda_graph_runner.py enable_mamba_track: graphs of a verify keep no states",
        "the commit behind a verify keeps them, and is told where by the scheduler's batch",
        where_unread=True,
    ),
)

HYBRID_PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *PREFILL_EXCUSES,
    Excuse(
        "*.static_forward_batch.global_num_tokens_gpu",
        "live",
        "sglang prefill_cuda_graph_runner.py: a graph's own batch holds its bucket for each rank",
        "the exchange asks for it; no recurrent backend does",
        where_unread=True,
    ),
    Excuse(
        "HybridLinearAttnBackend.mamba_track_*",
        "missing",
        "sglang 0.5.13 breakable_cuda_graph_runner.py: what a graph runs on is told of no states to"
        " keep",
        "metadata are made from the batch itself, which is told; kept states are judged",
    ),
)

_VIEW_OF_LIVE = (
    "sglang prefill_cuda_graph_runner.py _prepare_forward_metadata_for_replay: a copy of the live "
    "batch whose requests alone are padded"
)
_READ_ENDS = "sglang base_attn_backend.py: says when tables are read no more, prepares nothing"

FULL_PREFILL_EXCUSES: tuple[Excuse, ...] = (
    *PREFILL_EXCUSES,
    *(
        Excuse(
            "*.init_forward_metadata_out_graph.forward_batch.*",
            rule,
            _VIEW_OF_LIVE,
            "the graph reads buffers of its own; what is prepared of the view is read",
            where_unread=True,
        )
        for rule in ("form", "kind", "missing")
    ),
    Excuse(
        "*.resolve_prefill_shared_read_ends.*",
        "form",
        _READ_ENDS,
        "it waits and computes nothing",
        where_unread=True,
    ),
)
