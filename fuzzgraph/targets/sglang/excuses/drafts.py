"""Of EAGLE's drafts and draft-extends, of one layer and of several."""

from __future__ import annotations

from dataclasses import replace

from fuzzgraph.handover import Excuse
from fuzzgraph.targets.sglang.excuses.decode import EXCUSES

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

COPIED_BATCH_EXCUSES: tuple[Excuse, ...] = tuple(
    replace(
        excuse,
        what=f"QwenSparseMultiStepDraftBackend.{excuse.what}",
        source=f"{excuse.source}; qwen_sparse_attn_backend.py _make_step_forward_batch copies the"
        " batch for each step, and no preparation of a decode reads it",
        where_unread=False,
    )
    for excuse in DRAFT_EXCUSES
    if excuse.where_unread and "spec_info" not in excuse.what
)
"""What a draft's backend leaves unread of batches that it copies, which counts as reading all."""

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
