"""Of decodes and verifies, on the decode runner and on the runner of CPU graphs."""

from __future__ import annotations

from fuzzgraph.handover import Excuse

VIEW = "sglang decode_cuda_graph_runner.py build_replay_fb_view: unpadded per-iter fields"

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
        "get_mla_metadata_v1.most",
        "fits",
        "sglang aiter_backend.py make_mla_decode_meta_data_buffer: beside other ranks the device's"
        " units are shared out over all rows, padded ones too",
        "an eager step has fewer rows, and more parts for each; outputs are judged",
        only_with="dp_size",
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
        VIEW,
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

HYBRID_VERIFY_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    Excuse(
        "*.forward_batch.mamba_track_indices",
        "missing",
        "sglang decode_cuda_graph_runner.py enable_mamba_track: graphs of a verify keep no states",
        "the commit behind a verify keeps them, and is told where by the scheduler's batch",
        where_unread=True,
    ),
    *(
        Excuse(
            f"*.spec_info.retrieve_next_{name}",
            "missing",
            "sglang hybrid_linear_attn_backend.py _capture_metadata: None where graphs are made",
            "a graph reads buffers of the backend, which each replay fills from the batch",
        )
        for name in ("token", "sibling")
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

RING_EXCUSES: tuple[Excuse, ...] = (
    Excuse(
        "qsa_index_*.ring_positions",
        "live",
        "sglang qsa_kv_pool.py QSATokenToKVPool: positions of the tokens of incomplete groups, by"
        " rows of the request pool",
        "a pool, in which other requests have theirs; what is read of it is judged as attention",
    ),
)
"""Of keys that wait for the rest of their group."""

GROUP_EXCUSES: tuple[Excuse, ...] = (
    *RING_EXCUSES,
    *(
        Excuse(
            f"qsa_index_k_compress.{name}_locs",
            "live",
            "sglang qwen_sparse_attn_backend.py _qsa_write_plan: completed groups alone, one after"
            " another",
            "a graph has an entry for each row, which writes to slot 0 where it completes no group",
        )
        for name in ("group", "write")
    ),
)
"""Of an indexer that selects groups of keys."""

QSA_EXCUSES: tuple[Excuse, ...] = (*EXCUSES, *GROUP_EXCUSES)

_ALL_ROWS = (
    "sglang minicpm/backend.py get_topk_for_sparse: without a graph rows that see all of their keys"
    " are left out, and those of a graph are all scored"
)

MINICPM_EXCUSES: tuple[Excuse, ...] = (
    *EXCUSES,
    *(
        Excuse(
            f"{kernel}.*",
            "live",
            _ALL_ROWS,
            "what a graph selects for a row that sees all is dropped behind it; outputs are judged",
        )
        for kernel in (
            "infllmv2_attn_stage1",
            "infllm_v2_max_pooling_1d_varlen",
            "get_block_table",
        )
    ),
)
