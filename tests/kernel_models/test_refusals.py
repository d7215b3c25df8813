"""What real host code refuses, a model refuses by a rule: it never stumbles by itself.

Each row changes one argument of a call that the kernel takes. What host code lets through the model
computes as the kernel does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.aiter import (
    get_mla_metadata_info_v1,
    mha_batch_prefill_func,
    paged_attention_ragged,
)
from fuzzgraph.kernel_models.block_indexer import prepare_group_queries, select_groups
from fuzzgraph.kernel_models.block_topk import select_blocks
from fuzzgraph.kernel_models.flash_attention import flash_attn_varlen_func, flash_attn_with_kvcache
from fuzzgraph.kernel_models.flash_attention_plan import get_scheduler_metadata
from fuzzgraph.kernel_models.flash_mla import get_mla_metadata
from fuzzgraph.kernel_models.flashinfer import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
)
from fuzzgraph.kernel_models.fp4_indexer import pack_index_keys
from fuzzgraph.kernel_models.index_key_store import store_with_index_key
from fuzzgraph.kernel_models.kv_compressor_extend import plan_compress_extend
from fuzzgraph.kernel_models.launch import routed, run_kernel
from fuzzgraph.kernel_models.lora_alignment import moe_lora_align_block_size
from fuzzgraph.kernel_models.low_ratio_compressor import compress_tokens
from fuzzgraph.kernel_models.memory import KernelMemory, Stray
from fuzzgraph.kernel_models.nvfp4 import nvfp4_kv_quantize
from fuzzgraph.kernel_models.packed_mqa import fp8_mqa_logits
from fuzzgraph.kernel_models.page_store import store_compressed, store_index_keys, store_rows
from fuzzgraph.kernel_models.paged_mqa import (
    fp8_fp4_paged_mqa_logits,
    get_paged_mqa_logits_metadata,
)
from fuzzgraph.kernel_models.planned_topk import transform_planned
from fuzzgraph.kernel_models.pooled_selection import max_pooling_1d_varlen, selected_slots
from fuzzgraph.kernel_models.prompt_scores import relative_scores
from fuzzgraph.kernel_models.routing import activation, activation_filtered
from fuzzgraph.kernel_models.row_quant import (
    per_tensor_quant_fp8,
    per_token_group_quant,
    per_token_quant_fp8,
)
from fuzzgraph.kernel_models.trtllm_gen import trtllm_batch_decode_with_kv_cache
from fuzzgraph.targets.offline.kernel_arguments import checks_kinds

Call = tuple[Callable[..., Any], dict[str, Any]]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def fa3(**changed: Any) -> Call:
    """A row of two query tokens over a page of four keys."""
    given: dict[str, Any] = {
        "q": torch.randn(2, 2, 8), "k_cache": torch.randn(2, 4, 1, 8),
        "v_cache": torch.randn(2, 4, 1, 8), "cache_seqlens": ints(4),
        "page_table": ints(1).view(1, 1), "cu_seqlens_q": ints(0, 2), "max_seqlen_q": 2,
        "causal": True,
    }  # fmt: skip
    return flash_attn_with_kvcache, {**given, **changed}


def fa3_varlen(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "q": torch.randn(2, 2, 8), "k": torch.randn(4, 1, 8), "v": torch.randn(4, 1, 8),
        "cu_seqlens_q": ints(0, 2), "cu_seqlens_k": ints(0, 4), "max_seqlen_q": 2,
        "max_seqlen_k": 4, "causal": True,
    }  # fmt: skip
    return flash_attn_varlen_func, {**given, **changed}


def fa3_plan(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "batch_size": 1, "max_seqlen_q": 1, "max_seqlen_k": 4, "num_heads": 2, "num_heads_k": 1,
        "headdim": 64, "cache_seqlens": ints(4),
    }  # fmt: skip
    return get_scheduler_metadata, {**given, **changed}


def mla_plan(**changed: Any) -> Call:
    given = {"cache_seqlens": ints(4), "num_q_tokens_per_head_k": 1, "num_heads_k": 1}
    return get_mla_metadata, {**given, **changed}


def paged_run(wrapper: Any, dims: int, **changed: Any) -> Call:
    """A row of one query over a page of two keys."""
    made = wrapper(torch.empty(1 << 20, dtype=torch.uint8))
    offsets = (ints(0, 1),) * dims
    made.plan(*offsets, ints(1), ints(2), 2, 1, 8, 2, q_data_type=torch.float32)
    caches = torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8)
    return made.run, {"q": torch.randn(1, 2, 8), "paged_kv_cache": caches, **changed}


def fi_decode(**changed: Any) -> Call:
    return paged_run(BatchDecodeWithPagedKVCacheWrapper, 1, **changed)


def fi_prefill(**changed: Any) -> Call:
    return paged_run(BatchPrefillWithPagedKVCacheWrapper, 2, **changed)


def fi_plan(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "qo_indptr": ints(0, 1, 2), "paged_kv_indptr": ints(0, 1, 2),
        "paged_kv_indices": ints(1, 2),
        "paged_kv_last_page_len": ints(2, 2), "num_qo_heads": 2, "num_kv_heads": 1,
        "head_dim_qk": 8, "page_size": 2, "custom_mask": torch.ones(4).bool(),
    }  # fmt: skip
    made = BatchPrefillWithPagedKVCacheWrapper(torch.empty(1 << 20, dtype=torch.uint8))
    return made.plan, {**given, **changed}


def trtllm(**changed: Any) -> Call:
    caches = torch.randn(2, 1, 4, 8), torch.randn(2, 1, 4, 8)
    given: dict[str, Any] = {
        "query": torch.randn(1, 2, 8), "kv_cache": caches, "seq_lens": ints(3), "max_seq_len": 4,
        "workspace_buffer": torch.zeros(1024, dtype=torch.uint8),
        "block_tables": ints(1).view(1, 1),
    }  # fmt: skip
    return trtllm_batch_decode_with_kv_cache, {**given, **changed}


def aiter_prefill(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "q": torch.randn(1, 2, 8), "k": torch.randn(4, 1, 8), "v": torch.randn(4, 1, 8),
        "cu_seqlens_q": ints(0, 1), "kv_indptr": ints(0, 2), "kv_page_indices": ints(1, 3),
        "max_seqlen_q": 1, "max_seqlen_k": 2, "causal": True,
    }  # fmt: skip
    return mha_batch_prefill_func, {**given, **changed}


def aiter_decode(**changed: Any) -> Call:
    one = torch.ones(1)
    given: dict[str, Any] = {
        "out": torch.zeros(1, 2, 8), "workspace_buffer": torch.zeros(4096, dtype=torch.uint8),
        "query": torch.randn(1, 2, 8), "key_cache": torch.randn(4, 1, 1, 8),
        "value_cache": torch.randn(4, 1, 1, 8), "scale": 1.0, "kv_indptr": ints(0, 2),
        "kv_page_indices": ints(1, 3), "kv_last_page_lens": ints(1), "block_size": 1,
        "max_num_partitions": 1, "alibi_slopes": None, "kv_cache_dtype": "auto",
        "kv_cache_layout": "NHD", "logits_soft_cap": 0.0, "k_scale": one, "v_scale": one,
    }  # fmt: skip
    return paged_attention_ragged, {**given, **changed}


def pooling(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "input": torch.zeros(1, 1, 16).half(), "cu_seqlens_q": ints(0, 1),
        "cu_seqlens_k": ints(0, 8), "cache_lens": ints(20), "max_seqlen_q": 1,
        "max_context_len": 64, "local_blocks": 1, "init_blocks": 1, "block_size": 16, "stride": 4,
    }  # fmt: skip
    return max_pooling_1d_varlen, {**given, **changed}


def slots(**changed: Any) -> Call:
    """One query that selects two blocks of three keys."""
    given: dict[str, Any] = {
        "out": torch.zeros(1, 1, 6).int(), "topk_idx": ints(0, 1).view(1, 1, 2),
        "block_table": torch.arange(10).view(1, 10).int(), "token_to_bs": ints(0),
        "token_pos_in_bs": ints(5), "seqlen_q": ints(6), "sizes": (2, 1, 3),
    }  # fmt: skip
    return selected_slots, {**given, **changed}


def fp4_rows(**changed: Any) -> Call:
    given = {"input": torch.ones(2, 16).half(), "global_scale": torch.ones(1)}
    return nvfp4_kv_quantize, {**given, **changed}


def tiles(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "q": torch.zeros(2, 8).bfloat16(), "k": torch.zeros(4, 8).bfloat16(),
        "logits": torch.zeros(1, 4), "starts": ints(0), "ends": ints(3), "heads": 2,
        "head_dim": 8, "block_n": 4, "block_q": 1,
    }  # fmt: skip
    return relative_scores, {**given, **changed}


def compressor_plan(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "req_pool_indices": torch.tensor([0]), "req_to_token": torch.zeros(1, 8).int(),
        "full_to_state": torch.zeros(512, dtype=torch.int64), "seq_lens": torch.tensor([4]),
        "extend_lens": torch.tensor([1]), "pin_buffer": torch.empty(0, dtype=torch.uint8),
        "num_q_tokens": 1, "compress_ratio": 4, "swa_page_size": 256, "ring_size": 16,
        "use_req_ring": False, "use_cuda_graph": True,
    }  # fmt: skip
    return plan_compress_extend, {**given, **changed}


def compressed_key(**changed: Any) -> Call:
    """A key of eight columns, which goes to a page of two."""
    given: dict[str, Any] = {
        "kv": torch.zeros(1, 8), "plan": torch.zeros(1, 16, dtype=torch.uint8),
        "norm_weight": torch.ones(8), "norm_eps": 0.0, "freq_cis": torch.zeros(8, 4),
        "out_loc": torch.tensor([0]), "kvcache": torch.zeros(2, 64, dtype=torch.uint8),
        "is_decode": True, "compress_ratio": 4, "page_size": 2, "width": 8,
        "dtype": torch.float32, "slot_dtype": torch.int64, "rotated": 4,
    }  # fmt: skip
    return store_compressed, {**given, **changed}


def rows_of_window(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "input": torch.zeros(1, 4), "cache": torch.zeros(2, 8), "indices": torch.tensor([1]),
        "page_size": 2, "type": "flashmla",
    }  # fmt: skip
    return store_rows, {**given, **changed}


def fp4_scores(**changed: Any) -> Call:
    numbers = torch.zeros(1, 1, 2, 64, dtype=torch.int8), torch.zeros(1, 1, 2).int()
    given: dict[str, Any] = {
        "q": numbers, "fused_kv_cache": torch.zeros(2, 64, 1, 68, dtype=torch.uint8),
        "weights": torch.zeros(1, 2), "context_lens": ints(3).view(1, 1),
        "block_table": ints(1).view(1, 1), "schedule_meta": torch.zeros(33, 2).int(),
        "max_context_len": 64,
    }  # fmt: skip
    return fp8_fp4_paged_mqa_logits, {**given, **changed}


def packed_scores_of_fp8(**changed: Any) -> Call:
    keys = torch.zeros(5, 32).to(torch.float8_e4m3fn)
    given: dict[str, Any] = {
        "q": torch.zeros(1, 2, 32).to(torch.float8_e4m3fn), "kv": (keys, torch.zeros(5)),
        "weights": torch.zeros(1, 2), "cu_seq_len_k_start": ints(0), "cu_seq_len_k_end": ints(5),
        "clean_logits": False, "max_seqlen_k": 64,
    }  # fmt: skip
    return fp8_mqa_logits, {**given, **changed}


def planned_keys(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "scores": torch.zeros(1, 4), "seq_lens": ints(3), "page_table": ints(1).view(1, 1),
        "page_indices": torch.zeros(1, 2).int(), "page_size": 4,
        "metadata": torch.zeros(2, 4).int(),
    }  # fmt: skip
    return transform_planned, {**given, **changed}


def group_queries(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "qk": torch.zeros(1, 128).bfloat16(), "q_out": torch.zeros(1, 1, 64).bfloat16(),
        "weight": torch.ones(64).bfloat16(), "cos_sin_cache": torch.zeros(8, 16),
        "axis_map": torch.zeros(8).int(), "positions": torch.zeros(1, 1, dtype=torch.int64),
        "num_axes": 1, "cache_loc": torch.tensor([0]),
        "key_state_buffer": torch.zeros(2, 64).bfloat16(),
        "rope_position_buffer": torch.zeros(2, 3, dtype=torch.int64), "num_q_heads": 1,
        "rotary_dim": 16, "eps": 1e-6, "width": 64, "dtype": torch.bfloat16,
    }  # fmt: skip
    return prepare_group_queries, {**given, **changed}


def best_groups(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "score": torch.zeros(1, 8), "row_starts": ints(0), "indices": torch.zeros(1, 4).int(),
        "lengths": ints(3), "topk": 4,
    }  # fmt: skip
    return select_groups, {**given, **changed}


def best_blocks(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "score": torch.zeros(1, 1, 4), "seq_lens": ints(3),
        "topk_idx": torch.zeros(1, 1, 2).int(), "block_size": 2, "topk": 2,
        "lens_dtype": torch.int32,
    }  # fmt: skip
    return select_blocks, {**given, **changed}


def index_row(**changed: Any) -> Call:
    row = torch.zeros(1, 8).bfloat16()
    given: dict[str, Any] = {
        **dict.fromkeys(("k", "v", "idx_k", "idx_v"), row),
        **dict.fromkeys(("k_cache", "v_cache", "idx_k_cache", "idx_v_cache"), row.repeat(4, 1)),
        "indices": ints(1), "num_kv_heads": 1, "heads_per_token": 3, "head_bytes": 16,
        "casts": False,
    }  # fmt: skip
    return store_with_index_key, {**given, **changed}


def v41_tokens(**changed: Any) -> Call:
    row = torch.zeros(1, 4).bfloat16()
    given: dict[str, Any] = {
        "kv_input": row, "kv_output": row.clone(), "norm_weight": torch.ones(4).bfloat16(),
        "freqs_cis": torch.zeros(8, 4), "positions": ints(1), "out_loc": ints(1),
        "kvcache": torch.zeros(2, 8), "eps": 0.0, "width": 4, "page_size": 2, "rotated": 4,
    }  # fmt: skip
    return compress_tokens, {**given, **changed}


def v41_keys(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "input": torch.zeros(1, 128).bfloat16(), "norm_weight": torch.ones(128).bfloat16(),
        "freqs_cis": torch.zeros(8, 64), "positions": ints(1), "loc": torch.tensor([1]),
        "cache": torch.zeros(2, 2 * 68, dtype=torch.uint8), "eps": 0.0, "page_size": 2, "ratio": 2,
        "sizes": (128, 64),
    }  # fmt: skip
    return pack_index_keys, {**given, **changed}


def quant_groups(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "input": torch.zeros(2, 32).bfloat16(),
        "output_q": torch.zeros(2, 32).to(torch.float8_e4m3fn), "output_s": torch.zeros(2, 2),
        "group": 16, "dtypes": (torch.bfloat16, torch.float8_e4m3fn), "by_rows": True,
    }  # fmt: skip
    return per_token_group_quant, {**given, **changed}


def quant_rows(**changed: Any) -> Call:
    given = {
        "input": torch.zeros(2, 32).bfloat16(),
        "output_q": torch.zeros(2, 32).to(torch.float8_e4m3fn), "output_s": torch.zeros(2, 1),
        "dtype": torch.bfloat16,
    }  # fmt: skip
    return per_token_quant_fp8, {**given, **changed}


def quant_all(**changed: Any) -> Call:
    given: dict[str, Any] = {
        "input": torch.zeros(32).bfloat16(), "output_q": torch.zeros(32).to(torch.float8_e4m3fn),
        "output_s": torch.ones(1), "is_static": True, "dtype": torch.bfloat16,
    }  # fmt: skip
    return per_tensor_quant_fp8, {**given, **changed}


def silu(**changed: Any) -> Call:
    given = {
        "input": torch.zeros(1, 32).bfloat16(), "out": torch.zeros(1, 16).bfloat16(),
        "type": "silu", "dtype": torch.bfloat16,
    }  # fmt: skip
    return activation, {**given, **changed}


FOUR = torch.zeros(2, 4, 1, 8)
CALLS: tuple[Callable[..., Call], ...] = (
    fa3, fa3_varlen, fa3_plan, mla_plan, fi_decode, fi_prefill, fi_plan, trtllm, aiter_prefill,
    aiter_decode, pooling, slots, fp4_rows, tiles, compressor_plan, compressed_key, rows_of_window,
    fp4_scores, packed_scores_of_fp8, planned_keys, group_queries, best_groups, best_blocks,
    index_row, v41_tokens, v41_keys, quant_groups, quant_rows, quant_all, silu,
)  # fmt: skip
REFUSED: tuple[tuple[Callable[..., Call], str, Any, str], ...] = (
    (fa3, "q", torch.zeros(1, 2, 2, 8), "q must have 3 dimensions with cu_seqlens_q"),
    (fa3, "cu_seqlens_q", None, "q must have 4 dimensions without cu_seqlens_q"),
    (fa3, "window_size", (), "window_size must have two numbers"),
    (fa3, "k_cache", FOUR[:, :, :0], "heads in key/value must divide"),
    (fa3_varlen, "window_size", (1,), "window_size must have two numbers"),
    (fa3_plan, "num_heads_k", 0, "heads in key/value must divide"),
    (fa3_plan, "batch_size", -2, "batch_size must not be negative"),
    (fa3_plan, "window_size", (), "window_size must have two numbers"),
    (mla_plan, "num_heads_k", 0, "num_heads_k must be positive"),
    (mla_plan, "num_q_tokens_per_head_k", -1, "num_q_tokens_per_head_k must be positive"),
    *(
        (run, "paged_kv_cache", caches, rule)
        for run in (fi_decode, fi_prefill)
        for caches, rule in (
            (True, "must be a tensor, or a tuple of keys and values; got bool"),
            (3, "must be a tensor, or a tuple of keys and values; got int"),
            ((), "must be a tensor, or a tuple of keys and values; got 0 of them"),
            ((FOUR, None), "v_cache must be a tensor"),
            ((FOUR[0, 0], FOUR), "k_cache must have 3 or 4 dimensions"),
            (torch.zeros(2, 3, 1, 8), "keys and values in its second dimension"),
            (torch.zeros(2, 2, 8), "must have 4 or 5 dimensions"),
        )
    ),
    (fi_plan, "qo_indptr", ints(), "qo_indptr must hold an offset or more"),
    (fi_plan, "paged_kv_indptr", ints(), "one offset more than paged_kv_last_page_len"),
    (fi_plan, "paged_kv_last_page_len", ints(), "one offset more than paged_kv_last_page_len"),
    (fi_plan, "qo_indptr", ints(0, 2), "paged_kv_indptr must be as long as qo_indptr, 2"),
    (fi_plan, "paged_kv_last_page_len", ints(-40, -40), "a mask must have no fewer than 0 bytes"),
    (trtllm, "kv_cache", (), "kv_cache must be keys and values; got 0"),
    (trtllm, "kv_cache", (FOUR[0], FOUR[0]), "k_cache must be .any, any, any, any"),
    (trtllm, "q_len_per_req", 0, "q_len_per_req must be positive"),
    (trtllm, "bmm1_scale", torch.zeros(0), "bmm1_scale must hold a number"),
    (aiter_prefill, "window_size", (), "window_size must have two numbers or more"),
    (aiter_prefill, "v", torch.zeros(1, 4, 1, 8), "k and v must have as many dimensions"),
    (aiter_prefill, "v", torch.zeros(4, 2, 8), "the same page size and heads"),
    (aiter_prefill, "sink_ptr", torch.zeros(3), "sink_ptr must have 2 logits"),
    (aiter_prefill, "k", torch.zeros(1, 8), "k must have 3 or 4 dimensions"),
    (aiter_decode, "block_size", 0, "block_size must be positive"),
    (pooling, "block_size", 0, "block_size must be positive"),
    (pooling, "stride", 0, "stride must be positive"),
    (slots, "topk_idx", ints(0, 1).view(1, 2), "topk_idx must have 3 dimensions"),
    (slots, "sizes", (1, 1, 6), "topk_idx must be .1, 1, 1."),
    (slots, "sizes", (2, 1, 4), "out must be .1, 1, 8."),
    (fp4_rows, "input", torch.zeros(0, 16).half(), "input must have rows"),
    (tiles, "block_q", 0, "block_q must be positive"),
    (tiles, "block_n", 0, "block_n must be positive"),
    (compressor_plan, "compress_ratio", 0, "compress_ratio must be one of"),
    (compressor_plan, "ring_size", 0, "ring_size must be positive"),
    (compressed_key, "freq_cis", torch.zeros(8, 2), r"freq_cis must be \[any, 4\]"),
    (compressed_key, "page_size", 4, r"kvcache must have the strides \[128, 1\]"),
    (compressed_key, "fp8_pages", False, "pages that the kernel is compiled for"),
    (rows_of_window, "page_size", -1, "page_size must be a power of two"),
    (fp4_scores, "q", (), "q must be numbers and the exponents of their scales"),
    (packed_scores_of_fp8, "kv", (), "kv must be keys and their scales"),
    (packed_scores_of_fp8, "q", torch.zeros(1, 3, 32), "heads must divide 128; got 3"),
    (packed_scores_of_fp8, "max_seqlen_k", -1, "max_seqlen_k must not be negative"),
    (packed_scores_of_fp8, "cu_seq_len_k_end", ints(5, 5), r"cu_seq_len_k_end must be \[1\]"),
    (planned_keys, "page_indices", ints(0, 0), "page_indices must have 2 dimensions"),
    (group_queries, "weight", torch.ones(64, 1).bfloat16(), "weight must have 1 dimensions"),
    (group_queries, "qk", torch.zeros(128).bfloat16(), "qk must have 2 dimensions"),
    (group_queries, "width", 32, r"weight must be \[32\]"),
    (group_queries, "dtype", torch.float16, "weight must be float16"),
    (best_groups, "topk", 2, r"indices must be \[1, 2\]"),
    (best_blocks, "lens_dtype", torch.int64, "seq_lens must be int64"),
    (index_row, "head_bytes", 32, "a head must have the 32 bytes compiled for"),
    (index_row, "casts", True, "k and k_cache must not have one dtype"),
    (v41_tokens, "rotated", 2, r"freqs_cis must be \[any, 2\]"),
    (v41_keys, "sizes", (64, 64), r"input must be \[any, 64\]"),
    (v41_keys, "sizes", (128, 32), r"freqs_cis must be \[any, 32\]"),
    (quant_groups, "dtypes", (torch.float16, torch.float8_e4m3fn), "input must be float16"),
    (quant_groups, "dtypes", (torch.bfloat16, torch.int8), "output_q must be int8"),
    (quant_groups, "by_rows", False, "output_s must lie by columns"),
    (quant_groups, "packed", True, "output_s must be int32"),
    (quant_groups, "activates", True, r"input must be \[2, 64\]"),
    (quant_rows, "dtype", torch.float32, "input must be float32"),
    (quant_all, "dtype", torch.float16, "input must be float16"),
    (silu, "dtype", torch.float16, "input must be float16"),
    (silu, "input", torch.zeros(1, 32, 1).bfloat16(), "input must have 2 dimensions"),
)


def run(called: Call) -> Any:
    function, given = called
    return checks_kinds(function, "kernel")(**given)


@pytest.mark.parametrize("call", CALLS, ids=lambda each: each.__name__)
def test_the_call_itself_is_taken(call: Callable[..., Call]) -> None:
    run(call())


@pytest.mark.parametrize(
    ("call", "argument", "value", "rule"),
    REFUSED,
    ids=[f"{call.__name__}-{argument}-{at}" for at, (call, argument, *_) in enumerate(REFUSED)],
)
def test_a_call_that_host_code_refuses_is_refused_by_its_rule(
    call: Callable[..., Call], argument: str, value: Any, rule: str
) -> None:
    with pytest.raises(KernelRefused, match=rule):
        run(call(**{argument: value}))


class _Told:
    """What launches did wrong."""

    def __init__(self) -> None:
        self.misuses: list[str] = []
        self.strays: list[Stray] = []

    def stray(self, found: Stray) -> None:
        self.strays.append(found)

    def misuse(self, argument: str, rule: str, got: str) -> None:
        self.misuses.append(rule)


def told(called: Call) -> _Told:
    """Runs a call; whatever breaks a rule on content, or misses its memory, is told."""
    found = _Told()
    with routed(lambda kernel, **given: run_kernel(KernelMemory(found), kernel, **given)):
        run(called)
    return found


@pytest.mark.parametrize(
    ("call", "longest"),
    [(fa3, "max_seqlen_q"), (fa3_varlen, "max_seqlen_q"), (aiter_prefill, "max_seqlen_q")],
)
def test_a_launch_of_fewer_than_no_tokens_serves_none(
    call: Callable[..., Call], longest: str
) -> None:
    out = torch.full_like(call()[1]["q"], 7.0)
    found = told(call(**{longest: -1, "out": out}))
    assert found.misuses == [f"{longest} must be at least the tokens of every row"]
    assert (out == 7.0).all()


@pytest.mark.parametrize("wrapper", [fi_decode, fi_prefill])
def test_queries_that_have_no_products_with_keys_are_told(wrapper: Callable[..., Call]) -> None:
    found = told(wrapper(q=torch.randn(1, 3, 8), paged_kv_cache=(FOUR[:, :2, [0, 0]],) * 2))
    assert found.misuses[-1] == "q must have the keys' 8 columns, and whole groups of heads"


def test_a_kernel_loads_one_number_of_a_scale_and_a_logit_of_each_head() -> None:
    _, given = trtllm()
    same = {"query": given["query"], "kv_cache": given["kv_cache"]}
    long = {"bmm1_scale": torch.tensor([0.5, 9.0]), "sinks": torch.tensor([0.1, 0.2, 9.0])}
    plain = {"bmm1_scale": 0.5, "sinks": torch.tensor([0.1, 0.2])}
    assert run(trtllm(**same, **long)).equal(run(trtllm(**same, **plain)))


def test_sinks_for_fewer_heads_are_read_behind_their_end() -> None:
    found = told(trtllm(sinks=torch.zeros(1)))
    assert [each.argument for each in found.strays] == ["sinks"]


def test_a_flag_of_another_number_than_0_counts_as_true() -> None:
    run(compressed_key(is_decode=2))


def test_pages_are_as_wide_as_the_kernel_is_compiled_for() -> None:
    rows, slots = torch.randn(2, 128), torch.tensor([1, 2])
    kept = [torch.zeros(3, 2 * 132, dtype=torch.uint8) for _ in range(2)]
    built: dict[str, Any] = {"page_size": 2, "dtype": torch.float32, "slot_dtype": torch.int64}
    store_index_keys(rows, kept[0], slots, **built)
    store_index_keys(rows, kept[1][:, :-1], slots, **built)
    assert kept[0].any() and kept[0].equal(kept[1])


def test_no_rows_have_a_plan_of_tiles() -> None:
    half = torch.bfloat16
    shapes = [shape for shape, _ in get_mla_metadata_info_v1(0, 1, 16, half, half, False)]
    assert shapes[3:5] == [1, (0, 2)]


def test_rows_without_tokens_have_no_splits() -> None:
    schedule = get_paged_mqa_logits_metadata(torch.zeros(2, 0).int(), 64, 3)
    assert schedule.tolist() == [[2, 0]] * 4


@pytest.mark.parametrize("shape", [(1, 4), (4, 1)])
def test_experts_are_read_by_their_address(shape: tuple[int, ...]) -> None:
    experts, out = ints(0, -1, 2, -1), torch.full((4, 4), 7.0)
    activation_filtered(torch.ones(4, 8), out, experts.view(shape), 1, "silu")
    assert (out[[1, 3]] == 7.0).all() and (out[[0, 2]] != 7.0).all()


@pytest.mark.parametrize(("given", "strays"), [(torch.int64, 0), (torch.int32, 1)])
def test_ids_are_read_as_the_kernel_is_compiled_for(given: torch.dtype, strays: int) -> None:
    other = torch.int32 if given is torch.int64 else torch.int64
    places = torch.zeros(8, dtype=torch.int32)
    ids = torch.tensor([[1], [2], [1]], dtype=given)
    named = {
        "topk_ids": ids, "seg_indptr": ints(0, 3), "req_to_lora": ints(0), "num_experts": 3,
        "block_size": 1, "max_loras": 1, "max_num_tokens_padded": 8, "max_num_m_blocks": 8,
        "sorted_token_ids": places, "expert_ids": torch.zeros(8).int(),
        "num_tokens_post_pad": ints(0), "adapter_enabled": ints(1), "lora_ids": ints(0),
        "maybe_expert_map": None, "cumsum_buffer": ints(0, 0, 0, 0), "token_mask": ints(0, 0, 0),
    }  # fmt: skip
    found = told((moe_lora_align_block_size, {**named, "dtype": given}))
    assert not found.strays and places[:3].tolist() == [0, 2, 1]
    found = told((moe_lora_align_block_size, {**named, "dtype": other}))
    assert len(found.strays) == strays
    assert places[:3].tolist() != [0, 2, 1]
