"""What an engine is started with: the fields of a config, which are the table of dimensions."""

from __future__ import annotations

from typing import Annotated, Literal

from fuzzgraph.case.dimension import CORE, Dimension, Most, OneOf, Sizes, Switch, rows_of
from fuzzgraph.case.record import Record, one_empty_tuple

Mode = Literal["decode", "target_verify", "draft_extend", "draft", "prefill", "idle"]
LayerType = Literal["full_attention", "sliding_attention", "linear_attention"]
"""A layer of a hybrid model, as configurations of models call it; `linear_attention` is any layer
with recurrent state."""
LONGEST_CONTEXT = 1 << 14
"""Tokens of the longest context that is drawn."""
SPEC_MODES: tuple[Mode, ...] = ("target_verify", "draft_extend", "draft")
"""The modes of speculative decoding."""
BOUNDS_OF_KEYS = ("sliding_window", "swa_window", "attention_chunk_size", "index_topk")
"""Dimensions by which a query sees fewer keys than all before it."""


class EngineConfig(Record, frozen=True, kw_only=True):
    """What an engine is started with; every default is the simplest value.

    This is also the table of dimensions: each field is one row of it (see `case.dimension`). The
    fields keep their order, which is that of the JSON: a case's name is the digest of it.

    Sizes are in requests, tokens or pages as named. `req_pool_size` and
    `kv_pool_pages` count what requests may use: the reserved row and page 0 and
    the trap rows and pages come on top (see `world`).
    """

    # fmt: off
    modes: Annotated[tuple[Mode, ...], Dimension(
        needs=OneOf("modes"), feature=0, share=CORE, size=True
    )] = ("decode",)
    """Forward modes the engine captures graphs for."""
    capture_bs: Annotated[tuple[int, ...], Dimension(feature=1, share=CORE, size=True)] = (1, 2)
    """Captured batch sizes in request rows, ascending; gaps are fine."""
    capture_tokens: Annotated[tuple[int, ...], Dimension(feature=2, share=CORE, size=True)] = ()
    """Captured token counts, ascending, for the token-axis prefill runners."""
    page_size: Annotated[int, Dimension(
        bounds=(1, 1024), needs=Sizes("page_sizes", (1, 2, 3, 16, 32, 64, 128, 256)), feature=3,
        share=65, edge="page", label="page_size={}", group="page size"
    )] = 1
    max_context_len: Annotated[int, Dimension(
        bounds=(1, 1 << 17), needs=Most("max_context_len", 64, LONGEST_CONTEXT), feature=4,
        share=CORE, size=True
    )] = 16
    req_pool_size: Annotated[int, Dimension(
        bounds=(1, 4096), feature=21, size=True, resets_with="pool"
    )] = 8
    kv_pool_pages: Annotated[int, Dimension(bounds=(1, 1 << 20), size=True)] = 64
    """Follows from the other sizes wherever a case is drawn or shrunk."""
    num_q_heads: Annotated[int, Dimension(
        bounds=(1, 256), needs=Most("max_q_heads", 4, 4), feature=6, share=40, resets_with="heads"
    )] = 1
    num_kv_heads: Annotated[int, Dimension(bounds=(1, 256), resets_with="heads")] = 1
    head_dim: Annotated[int, Dimension(
        bounds=(1, 1024), needs=Most("max_head_dim", 16, 16), feature=7, resets_with="head dims"
    )] = 4
    v_head_dim: Annotated[int, Dimension(
        bounds=(1, 1024), needs=Most("max_head_dim", 16, 16), resets_with="head dims"
    )] = 4
    attention: Annotated[Literal["mha", "mla"], Dimension(
        needs=OneOf("attentions"), feature=8
    )] = "mha"
    """`mla`: one latent row serves as key and, in its first `v_head_dim` columns, as value."""
    page_map: Annotated[Literal["csr", "page_table"], Dimension(
        needs=OneOf("page_maps"), feature=13, label="page map {}", group="page map"
    )] = "csr"
    """`csr`: kv_indptr + kv_indices in tokens; `page_table`: dense pages (unified attention)."""
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Dimension(
        needs=OneOf("dtypes"), feature=9, label="dtype {}", group="dtype"
    )] = "float32"
    kv_dtype: Annotated[Literal["auto", "float8_e4m3fn", "nvfp4"], Dimension(
        needs=OneOf("kv_dtypes"), feature=10, share=30, label="kv dtype {}", group="dtype"
    )] = "auto"
    """`nvfp4`: two numbers in a byte, beside them a scale for every 16 (`fuzzgraph.nvfp4`)."""
    unit_kv_scale: Annotated[bool, Dimension(
        needs=Switch("unit_kv_scales"), label="unscaled kv", group="dtype"
    )] = False
    """Whether keys and values in FP8 lie there as they are, as where a checkpoint has no scales of
    them, which is what most servers have; else they are divided by scales."""
    kernels: Annotated[Literal["torch", "triton"], Dimension(
        needs=OneOf("kernels"), feature=11, label="kernels {}", group="kernels"
    )] = "torch"
    split_kv: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("split_kv"), feature=17, edge="split",
        label="split plan", group="metadata"
    )] = 0
    """KV tokens per work item of the split plan; 0 means one item per row, no plan."""
    metadata: Annotated[Literal["full", "raw_out_graph", "raw_in_graph"], Dimension(
        needs=OneOf("metadata"), feature=12, label="metadata {}", group="metadata"
    )] = "full"
    """Whether metadata is built whole, or raw and upgraded before or inside the graph."""
    seq_len_fill_value: Annotated[Literal[0, 1], Dimension(
        needs=OneOf("seq_len_fill_values"), feature=14, label="fill value {}", group="padding"
    )] = 1
    free_padding: Annotated[Literal["keep", "zero", "copy_live"], Dimension(
        needs=OneOf("free_paddings"), feature=15, label="free padding {}", group="padding"
    )] = "keep"
    """Padding policy of buffers whose tail selects no memory (input_ids, positions)."""
    runner: Annotated[Literal["graph", "cpu_graph"], Dimension(
        needs=OneOf("runners"), feature=24, share=9, label="runner {}", group="kernels"
    )] = "graph"
    prefill_runner: Annotated[Literal["piecewise", "breakable", "full"], Dimension(
        needs=OneOf("prefill_runners"), feature=16, share=20, label="prefill runner {}",
        only_in=("prefill",), group="kernels"
    )] = "piecewise"
    sliding_window: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("sliding_window"), feature=18, edge="window"
    )] = 0
    """Keys a query sees besides itself; 0 means all."""
    max_encoder_len: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("encoder"), feature=19, tried=(1, 3, 4, 9, 16, 40),
        label="encoder", group="features", carried_by=("encoder_lens",)
    )] = 0
    """Room for encoder tokens per request; 0 means a decoder-only model."""
    recurrent_state: Annotated[bool, Dimension(
        needs=Switch("recurrent_state"), feature=25, share=12, label="recurrent state",
        group="features",
        carried_by=("state_indices", "state_slots", "mamba_cache_indices", "spec_state_indices.0"),
    )] = False
    spec_steps: Annotated[int, Dimension(
        bounds=(1, 16), needs=Most("max_spec_steps", 1, 5), label="spec steps {}",
        only_in=SPEC_MODES, group="speculation"
    )] = 1
    spec_topk: Annotated[int, Dimension(
        bounds=(1, 16), needs=Most("max_spec_topk", 1, 4, one_is_none=True), feature=5,
        share=CORE, label="topk {}", only_in=SPEC_MODES, group="speculation"
    )] = 1
    draft_tokens: Annotated[int, Dimension(
        bounds=(1, 64), needs=Most("max_draft_tokens", 2, 8), label="draft tokens {}",
        only_in=SPEC_MODES, group="speculation"
    )] = 2
    """Tokens per request that a verify step checks."""
    attn_tp_size: Annotated[int, Dimension(
        bounds=(1, 64), needs=Most("max_tp_size", 1, 8, one_is_none=True), feature=20,
        resets_with="ranks", label="tp {}", group="features",
        carried_by=("num_token_non_padded",)
    )] = 1
    attn_tp_rank: Annotated[int, Dimension(
        bounds=(0, 63), resets_with="ranks", label="tp rank>0", group="features"
    )] = 0
    eager_above_ladder: Annotated[bool, Dimension(
        feature=22, share=6, label="no eager fallback", group="ladder"
    )] = True
    """Whether a batch above the largest captured size runs eagerly instead of failing."""
    row_mixing: Annotated[Literal["none", "fp8_scale", "nan", "router"], Dimension(
        needs=OneOf("row_mixings"), feature=26, share=24, label="row mixing {}", group="features"
    )] = "none"
    """What stands behind attention (see `fuzzgraph.row_mixing`): nothing; one FP8 scale over all
    rows; all rows added with a factor of zero; or, on one of several ranks, a router that counts
    tokens."""
    index_topk: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Sizes("index_topks", widest=(0, 1, 3, 16, 64)), feature=27,
        share=CORE, label="index topk {}", group="features"
    )] = 0
    """Keys, compressed keys, groups or blocks of keys that an indexer selects for each query by
    `Content.key_scores`, or groups by `block_index.block_scores`; 0 means all."""
    index_group: Annotated[Literal[1, 4], Dimension(
        needs=OneOf("index_groups"), label="index group {}", group="features"
    )] = 1
    """Keys that an indexer selects together: each for itself, or as in Qwen's sparse attention four
    by four. Those of a group that is not whole are always seen."""
    index_block: Annotated[int, Dimension(
        bounds=(0, 1024), needs=Sizes("index_blocks", widest=(0, 16, 128)),
        label="index blocks of {}", group="features"
    )] = 0
    """Keys of a block, a power of two, where an indexer selects `index_topk` blocks for each query,
    as MiniMax's does: that of the query itself, and those whose best key is best. The model then
    has a layer before this one that sees all keys. 0: it selects single keys."""
    pooled_block: Annotated[int, Dimension(
        bounds=(0, 1024), needs=Sizes("pooled_blocks", widest=(0, 32)),
        resets_with="pooled blocks", label="pooled blocks of {}", group="features"
    )] = 0
    """Keys of a block where a layer's own queries select `index_topk` blocks for each KV head by
    keys that are means of several, as MiniCPM's do (see `fuzzgraph.pooled_blocks`). 0: none do."""
    dense_len: Annotated[int, Dimension(
        bounds=(0, 1 << 17), resets_with="pooled blocks", label="dense rows", group="features"
    )] = 0
    """Keys from which on a row selects blocks, where `pooled_block` says so; a row of fewer sees
    all."""
    kv_compression: Annotated[Literal["none", "window", "c4", "c128", "c1", "c2"], Dimension(
        needs=OneOf("kv_compressions"), label="kv compression {}", group="features"
    )] = "none"
    """What DeepSeek V4's layers keep of the past: all of it; the last 128 tokens; these, and one
    compressed key for each 4 or 128 tokens, or for each 1 or 2 in V4.1's (see
    `reference.geometry`)."""
    candidate_blocks: Annotated[int, Dimension(
        bounds=(0, 2048), needs=Sizes("candidate_blocks", widest=(0, 8, 16, 32)),
        resets_with="index layers", label="candidate blocks {}", group="features"
    )] = 0
    """Blocks of eight compressed keys that the indexer of one of a model's layers keeps for those
    of layers behind it, which select among the keys of these alone, as DeepSeek V4.1's do; 0: every
    indexer selects among all keys."""
    index_layer: Annotated[Literal["own", "source", "candidates", "shared"], Dimension(
        needs=OneOf("index_layers"), resets_with="index layers", label="index layer {}",
        group="features"
    )] = "own"
    """What the layer has of compressed keys and their selection: keys and an indexer of its `own`;
    these, and it is the `source` of candidates; keys of a layer before, and an indexer that selects
    among its `candidates`; keys and selection of a layer before (`shared`)."""
    index_logits_bytes: Annotated[int, Dimension(
        bounds=(0, 1 << 30), needs=Sizes("index_logits_bytes", widest=(0, 1, 2048, 8192)),
        label="scores in chunks", group="features"
    )] = 0
    """Memory for an indexer's scores of a forward without a graph. Rows whose scores take more of
    it are scored in chunks, each of them at least one row; 0: there is room for those of a case."""
    index_gather_threshold: Annotated[int, Dimension(
        bounds=(1, 1 << 20), needs=Sizes("index_gather_thresholds", widest=(8192, 1, 16, 64)),
        label="gathered index keys", only_in=("prefill",), group="features"
    )] = 8192
    """Tokens from which on a prompt that is alone in a batch without a graph has its indexer's keys
    gathered before they are scored; those of fewer are scored where they lie in pages."""
    sparse_kernel: Annotated[Literal["fa3", "flashmla_sparse"], Dimension(
        needs=OneOf("sparse_kernels"), label="sparse kernel {}", group="kernels"
    )] = "fa3"
    """Which kernel attends to the keys that an indexer has selected, where a server can choose."""
    compute_capability: Annotated[Literal[9, 10], Dimension(
        needs=OneOf("compute_capabilities"), label="compute capability {}", group="kernels"
    )] = 9
    """Of the device for which the engine chooses its code, where a target drives both. What
    `trtllm_kernel` names follows from the device by itself."""
    topk_kernel: Annotated[Literal["planned", "unplanned"], Dimension(
        needs=OneOf("topk_kernels"), label="key selection {}", group="kernels"
    )] = "planned"
    """Which kernel selects an indexer's keys, where a server can choose: the newer one, which works
    by a plan of the batch, or the older one, which has none."""
    trtllm_kernel: Annotated[Literal["trtllm_gen", "xqa"], Dimension(
        needs=OneOf("trtllm_kernels"), label="TensorRT-LLM by {}", group="kernels"
    )] = "trtllm_gen"
    """Which kernel of TensorRT-LLM attends, which follows from the device: `trtllm_gen` where its
    compute capability is 10, `xqa` where it is 9 or 12."""
    logit_cap: Annotated[int, Dimension(
        bounds=(0, 1024), needs=Sizes("logit_caps", widest=(0, 1, 2)), label="logit cap {}",
        group="features"
    )] = 0
    """What attention's logits stay below, by `cap * tanh(logit / cap)`, as Gemma 2 and Grok have
    it; 0: they are not capped."""
    final_logit_cap: Annotated[int, Dimension(
        bounds=(0, 1024), needs=Sizes("final_logit_caps", widest=(0, 2, 4)),
        label="final logit cap {}", only_in=("decode", "target_verify", "prefill"),
        group="features"
    )] = 0
    """What the logits of a model's head stay below, likewise, as Gemma 2 has it; 0: they are not
    capped."""
    returned_hidden: Annotated[Literal["none", "full", "last", "aux"], Dimension(
        needs=OneOf("returned_hidden"), label="returned hidden states {}",
        only_in=("decode", "target_verify", "prefill"), group="features"
    )] = "none"
    """Which hidden states a model with a head hands out beside logits: in decodes and prefills
    those that a server returns to its clients, of all tokens (`full`) or of last ones (`last`), or
    `none`; in verifies those for the drafts that follow, of the last layer (`none` more than these)
    or of several (`aux`), as EAGLE-3 has it, which reads those of prefills too."""
    gathered_logits: Annotated[bool, Dimension(
        needs=Switch("gathered_logits"), label="head of all ranks", resets_with="data ranks",
        only_in=("decode", "target_verify"), group="features"
    )] = False
    """Whether data-parallel ranks share a model's head, see `fuzzgraph.language_head`; else each
    has one of its own."""
    prompt_logprobs: Annotated[Literal["none", "whole", "chunked"], Dimension(
        needs=OneOf("prompt_logprobs"), label="prompt logprobs {}", only_in=("prefill",),
        group="features"
    )] = "none"
    """Whether clients ask for logprobs of their prompts' tokens, and whether a model's head makes
    those of a step at once (`whole`) or a few rows at a time (`chunked`)."""
    platform: Annotated[Literal["cuda", "rocm"], Dimension(
        needs=OneOf("platforms"), label="platform {}", group="kernels"
    )] = "cuda"
    """For whose GPUs the engine launches its Triton kernels, where it can run on either."""
    swa_window: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("swa_window"), feature=28, share=9, edge="swa window",
        resets_with="swa", label="sliding-window layer", group="features"
    )] = 0
    """Keys that a query of the model's second attention layer sees besides itself. That layer has a
    KV cache group of its own, whose pages are freed behind the window. 0: the model has one layer,
    or layers of one kind."""
    swa_page_size: Annotated[int, Dimension(
        bounds=(0, 1024), needs=Sizes("swa_page_sizes", widest=(0, 1, 2, 4, 16)),
        resets_with="swa", label="swa_page_size={}", group="page size"
    )] = 0
    """Tokens of a page of the second group; 0: as many as `page_size`."""
    layer_types: Annotated[tuple[LayerType, ...], Dimension(
        needs=Switch("layer_types"), resets_with="swa", label="several layers of a kind",
        group="features"
    )] = ()
    """The model's layers in their order, where it has several of a kind or begins with another one
    than a target's simplest model: those that see all keys, and those behind `swa_window` or with
    recurrent state. Each attends with content of its own. (): one layer of each kind."""
    attention_chunk_size: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("attention_chunks"), edge="attention chunk",
        label="chunked attention", group="features"
    )] = 0
    """Tokens of a chunk, whole pages of them: a query sees keys of its own chunk alone. 0: all."""
    state_track_interval: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("state_tracking"), edge="state track",
        label="state tracking", group="features", 
        carried_by=("mamba_track_mask", "mamba_track_indices"),
    )] = 0
    """Tokens between the states that an engine keeps of a request for its prefix cache: a decode
    that reaches a multiple copies the state to another slot, and so does a prompt with the state
    behind as many whole intervals as it computes, and a verify with the state behind the last
    multiple that its tokens which stay reach. A draft-extend is told of the slots. 0: none are
    kept."""
    prefix_branches: Annotated[bool, Dimension(
        needs=Switch("prefix_branches"), label="prefixes that branch", group="features"
    )] = False
    """Whether the prefix that prompts of requests with even names share with another prompt ends
    one interval before the last that they compute: the state behind its end is kept in place of the
    last. Of one interval alone the state is kept as ever."""
    state_pool_size: Annotated[int, Dimension(
        bounds=(0, 4096), needs=Switch("few_states"), label="few states", group="features"
    )] = 0
    """Requests that may have a recurrent state at once; 0: as many as the request pool has rows."""
    drafted_prompts: Annotated[bool, Dimension(
        needs=Switch("drafted_prompts"), label="drafts behind prompts", group="speculation"
    )] = False
    """Whether a request that joins a verify of layers with recurrent state has drafts behind the
    last token of its prompt, so that all rows have as many tokens. They are placeholders: none
    stays."""
    dp_size: Annotated[int, Dimension(
        bounds=(1, 64), needs=Most("max_dp_size", 1, 8, one_is_none=True),
        resets_with="data ranks", label="dp {}", group="features",
        carried_by=("rank_tokens", "global_num_tokens_gpu", "num_tokens_across_dp")
    )] = 1
    """Data-parallel ranks, started alike, each with requests of its own. They replay graphs of one
    size, that of the largest batch among them; see `ReplayStep.other_ranks`."""
    dp_rank: Annotated[int, Dimension(
        bounds=(0, 63), resets_with="data ranks", label="dp rank>0", group="features"
    )] = 0
    """Which of them the engine under test is."""
    max_loras: Annotated[int, Dimension(
        bounds=(0, 64), needs=Switch("loras"), resets_with="adapters", label="LoRA adapters",
        group="features", carried_by=("lora_ranks_of_tokens", "token_lora_mapping"),
    )] = 0
    """LoRA adapters that one batch may have, beside requests without one. The engine loads others
    than these too, as requests need them. 0: it has none."""
    lora_eviction: Annotated[Literal["lru", "fifo"], Dimension(
        needs=OneOf("lora_evictions"), resets_with="adapters", label="LoRA eviction {}",
        group="features", carried_by=("lora_pool",),
    )] = "lru"
    """Which adapter leaves a full pool for another one: of those that the batch does not have and
    that are not pinned, the one that was used least recently (`lru`), or came first (`fifo`)."""
    pinned_loras: Annotated[int, Dimension(
        bounds=(0, 64), needs=Switch("pinned_loras"), resets_with="adapters",
        label="pinned LoRA adapters", group="features", carried_by=("lora_pool",),
    )] = 0
    """How many adapters, from the first on, stay in the pool once they are there. Beside
    data-parallel ranks all do."""
    adapted_embeddings: Annotated[bool, Dimension(
        needs=Switch("adapted_embeddings"), resets_with="adapters",
        label="adapters of embeddings", group="features",
    )] = False
    """Whether some adapters have weights of the embedding and of the head as well, others of one of
    them or of neither (see `adapted_layer.has_weights`)."""
    experts_shared_outer_loras: Annotated[bool, Dimension(
        needs=Switch("experts_shared_outer_loras"), resets_with="adapters",
        label="shared outer LoRA", group="features",
    )] = False
    """Whether the experts of a layer have in common the sides of their adapters that meet the
    residual stream, see `fuzzgraph.experts.adapted`. Adapters of a model with experts have weights
    of these, too."""
    lora_use_virtual_experts: Annotated[bool, Dimension(
        needs=Switch("lora_use_virtual_experts"), resets_with="adapters",
        label="virtual experts", group="features",
    )] = False
    """Whether kernels of experts see each expert of each adapter as an expert of its own, and so
    run once for all adapters."""
    num_experts: Annotated[int, Dimension(
        bounds=(0, 512), needs=Switch("experts"), label="experts {}", group="features",
        carried_by=("topk_ids.0",),
    )] = 0
    """Experts of the layer behind attention, see `fuzzgraph.experts`, or with `max_loras`
    `fuzzgraph.experts.adapted`; 0: there is none."""
    experts_per_token: Annotated[int, Dimension(
        bounds=(1, 16), needs=Most("max_experts_per_token", 1, 4),
        label="experts per token {}", group="features"
    )] = 1
    """Experts that a router chooses for each token."""
    expert_scoring: Annotated[Literal["softmax", "sigmoid"], Dimension(
        needs=OneOf("expert_scorings"), label="expert scoring {}", group="features"
    )] = "softmax"
    """What the router's numbers become before those of the chosen experts are normalised. Behind
    sigmoids a router prefers experts by biases, which weights leave out."""
    expert_groups: Annotated[int, Dimension(
        bounds=(1, 64), needs=Most("max_expert_groups", 1, 4, one_is_none=True),
        label="expert groups {}", group="features",
    )] = 1
    """Groups of experts, one after another; those of a token come from the better half of them, by
    the sum of the two best of each. 1: from anywhere."""
    expert_activation: Annotated[Literal["silu", "clamped_swiglu"], Dimension(
        needs=OneOf("expert_activations"), label="experts {}", group="features"
    )] = "silu"
    """What an expert computes between its two products. With `clamped_swiglu`, GPT-OSS's, both
    products and the router have biases."""
    expert_quantisation: Annotated[
        Literal[
            "none", "fp8_blocks", "fp8_channels", "fp8_tensors", "fp8_dynamic", "int8_channels"
        ],
        Dimension(
            needs=OneOf("expert_quantisations"), label="experts in {}", group="features"
        ),
    ] = "none"
    """What a checkpoint holds of the experts: weights in the model's dtype, or FP8 or INT8 with a
    scale for each block of rows and columns, for each row (`_channels`), or for each matrix
    (`fp8_tensors`, `fp8_dynamic`). What such experts take is quantised as well: by groups of
    columns beside `fp8_blocks`, by the token's row beside `_channels`, by one scale beside
    matrices, which the checkpoint has, or which is found for all tokens of a batch
    (`fp8_dynamic`)."""
    shared_experts: Annotated[Literal["none", "apart", "fused"], Dimension(
        needs=OneOf("shared_experts"), label="shared expert {}", group="features"
    )] = "none"
    """Whether one more expert computes every token, which no router chooses (see
    `fuzzgraph.experts`): none, one that is a layer of its own (`apart`), or one that lies
    behind the others and is named for each token behind those that were chosen (`fused`)."""
    expert_copies: Annotated[int, Dimension(
        bounds=(0, 64), needs=Switch("expert_copies"), label="expert copies {}", group="features",
    )] = 0
    """Experts that lie in memory twice or more, beside one of each: with them experts lie at places
    of `fuzzgraph.experts`, and a token gets the copies that its row is given. 0: an expert
    lies where its number says."""
    ep_size: Annotated[int, Dimension(
        bounds=(1, 64), needs=Most("max_ep_size", 1, 4, one_is_none=True),
        resets_with="expert ranks", label="ep {}", group="features",
        carried_by=("num_token_non_padded",)
    )] = 1
    """Ranks that share out the experts. All compute the same tokens, each with its own experts
    alone, and add up what they give. Beside data-parallel ranks these share them out: each has the
    tokens of all of them gathered before its experts."""
    ep_rank: Annotated[int, Dimension(
        bounds=(0, 63), resets_with="expert ranks", label="ep rank>0", group="features"
    )] = 0
    """Which of them the engine under test is."""
    expert_exchange: Annotated[
        Literal["scatterv", "gatherv", "scatter", "reduce"],
        Dimension(
            needs=OneOf("expert_exchanges"), resets_with="data ranks",
            label="expert exchange {}", group="features"
        ),
    ] = "scatterv"
    """How data-parallel ranks exchange tokens around their experts. What all of them give is summed
    and goes back to the rank whose token it is by one collective over ranks of various sizes
    (`scatterv`), with ranks of various sizes before the experts as well (`gatherv`), by one over
    ranks of one size where they are padded so (`scatter`), or it is summed for all of them
    (`reduce`) and each takes its own."""
    virtual_pages: Annotated[bool, Dimension(
        needs=Switch("virtual_pages"), feature=30, share=9, label="virtual pages", group="features"
    )] = False
    """Whether page maps name pages by virtual numbers, which last as long as a request has the
    page, and a table of the engine's pool has the physical number of each KV cache group. Pages of
    requests that stay move when others leave."""
    drafted_blocks: Annotated[Literal["none", "whole", "causal"], Dimension(
        needs=OneOf("drafted_blocks"), label="drafted blocks {}", only_in=("target_verify",),
        group="speculation"
    )] = "none"
    """Whether each row of a verify is a block that a model drafts by one forward: behind its first
    token stand placeholders, of which none stays. A token sees the `whole` block, or of it those
    before it alone (`causal`)."""
    plan_stream: Annotated[bool, Dimension(
        needs=Switch("plan_streams"), label="plan stream", only_in=("target_verify",),
        group="speculation"
    )] = False
    """Whether what a scheduler reserves for a verify is reserved on a stream of its own, for which
    that of the forward waits. It shows with `--overlap` alone."""
    drafted_window: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("drafted_windows"), edge="drafted window",
        label="window of drafted blocks", only_in=("target_verify",), group="speculation"
    )] = 0
    """Tokens before a drafted block that its model sees, and those before them in the same page; it
    has a page map of its own, which begins there, also beside verifies of its drafts. 0: it sees
    all."""
    draft_adapter: Annotated[bool, Dimension(
        needs=Switch("draft_adapters"), label="adapter of drafts", only_in=("target_verify",),
        group="speculation"
    )] = False
    """Whether a model drafts blocks by itself, with a LoRA adapter on all tokens of a row but the
    first. Where it verifies them no token has one."""
    ngram_drafts: Annotated[bool, Dimension(
        needs=Switch("ngram_drafts"), label="n-gram drafts", only_in=("target_verify",),
        group="speculation"
    )] = False
    """Whether drafts are looked up by the last tokens in text that the engine has seen, and no
    model drafts."""
    draft_window_size: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("draft_windows"), edge="draft window",
        label="window of drafts", only_in=("draft",), group="speculation"
    )] = 0
    """How many of the last tokens that a request has at the start of a draft each of the draft's
    steps sees, beside those that the draft itself has added; 0: it sees all."""
    draft_sink_size: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("draft_windows"), label="sink of drafts",
        only_in=("draft",), group="speculation"
    )] = 0
    """How many of a request's first tokens a draft with a window sees beside it."""
    draft_reach: Annotated[Literal["drafts", "past"], Dimension(
        needs=OneOf("draft_reaches"), label="drafts see {}", only_in=("draft",),
        group="speculation"
    )] = "drafts"
    """Whether each step of a draft sees itself and the drafts before it beside its row's past, or
    the `past` alone, as on backends whose lengths do not grow with the steps."""
    draft_branches: Annotated[Literal["apart", "chosen"], Dimension(
        needs=OneOf("draft_branches"), label="branches {}", only_in=("draft",),
        group="speculation"
    )] = "apart"
    """Whether each branch of a draft goes on by itself, or the best of all branches' tokens are
    `chosen` at each step (see `reference.draft_tree`)."""
    shared_selection: Annotated[bool, Dimension(
        needs=Switch("shared_selections"), label="shared selection", only_in=("draft",),
        group="speculation"
    )] = False
    """Whether no step of a draft selects groups of keys: each sees those that the last token before
    the draft has selected, what lies behind that token's last whole group, and the drafts so far.
    """
    sampling: Annotated[Literal["greedy", "target", "draft"], Dimension(
        needs=OneOf("samplings"), label="sampling {}", only_in=("target_verify",),
        group="speculation"
    )] = "greedy"
    """Whether requests sample at temperatures, beside some that do not (see `reference.sampled`).
    `target`: drafts are the most likely tokens, and the model that verifies them draws by its own
    probabilities alone. `draft`: drafts are drawn too, and a verify weighs both models'."""
    later_stage: Annotated[bool, Dimension(
        needs=Switch("later_stages"), label="later pipeline stage", only_in=("decode", "prefill"),
        group="features"
    )] = False
    """Whether the layers are those of a later rank of a pipeline: their numbers go on behind those
    of the ranks before, while memory for their KV begins with theirs."""
    two_batch_overlap: Annotated[bool, Dimension(
        needs=Switch("two_batch_overlap"), label="two-batch overlap",
        only_in=("decode", "target_verify"), group="features"
    )] = False
    """Whether the model computes each half of a batch by itself, on metadata of its own: one half
    computes while experts of other ranks work for the other."""
    backend_beside: Annotated[Literal["none", "fa3", "flashinfer", "triton"], Dimension(
        needs=OneOf("backends_beside"), resets_with="backends", label="{} beside",
        only_in=("decode", "target_verify"), group="features"
    )] = "none"
    """The attention backend that has the modes which the one under test has not, where a server has
    one for prefills and another one for decodes. `none`: one backend has all modes."""
    verifies_as_prefill: Annotated[bool, Dimension(
        resets_with="backends", label="verify on the backend of prefills",
        only_in=("target_verify",), group="features"
    )] = False
    """Whether the backend under test, which verifies, is that of prefills, and `backend_beside` is
    that of decodes."""
    prefill_slots: Annotated[int, Dimension(
        bounds=(1, 4096), needs=Most("max_prefill_slots", 1, 8, one_is_none=True),
        label="prefill slots {}", only_in=("prefill",), group="features"
    )] = 1
    """Requests for which each full prefill graph has room; a batch of more takes no graph."""
    image_len: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("images"), label="images", only_in=("prefill",),
        group="features", carried_by=("input_embeds",)
    )] = 0
    """Tokens of the image with which the prompts of requests with even names begin: they come as
    embeddings, and every token has multi-modal positions. 0: the model takes text alone."""
    image_encoder: Annotated[bool, Dimension(
        needs=Switch("image_encoders"), label="encoder of images", only_in=("prefill",),
        group="features"
    )] = False
    """Whether rows are images, whose patches a model's vision encoder computes at once: none has a
    past, and all patches of an image, or of a window of it (`attention_chunk_size`), see each
    other."""
    state_ring_len: Annotated[int, Dimension(
        bounds=(0, 64), needs=Switch("state_rings"), label="ring of states", group="features",
        carried_by=("replayssm_write_pos",)
    )] = 0
    """Tokens after which an engine writes a recurrent state. What those since the last time have
    brought lies in a ring beside it, and the state is replayed from both. 0: it writes the state at
    every token."""
    state_flush_interval: Annotated[int, Dimension(
        bounds=(0, 1 << 17), needs=Switch("state_flushes"), resets_with="state rings",
        edge="state flush", label="states flushed", group="features"
    )] = 0
    """Tokens of a request at whose multiples a state is written whatever its ring holds, where a
    prefix cache may copy it. 0: by the ring alone."""
    safe_gate: Annotated[bool, Dimension(
        needs=Switch("safe_gates"), label="safe gate", group="features"
    )] = False
    """Whether decays of a recurrent layer have a bound: their logarithm is `bound * sigmoid(gate)`
    in the place of `-softplus(gate)`, as in KDA of Kimi K3 and GLM-5.3."""
    linear_head_dim: Annotated[Literal[0, 128, 256], Dimension(
        needs=OneOf("linear_head_dims"), label="linear heads of {}", group="features"
    )] = 0
    """Columns of a key and of a value in each head of a recurrent layer, as models have them; of
    Mamba2 the columns of a state, and twice those of a value. 0: so few that kernels take them in
    one block."""
    even_ranks: Annotated[bool, Dimension(
        needs=Switch("even_ranks"), label="ranks of equal length", group="features"
    )] = False
    """Whether experts are exchanged by kernels that need as many tokens of each data-parallel rank:
    batches without a graph are padded to the largest rank's then, beside prompts as well."""
    all_reduce_kib: Annotated[int, Dimension(
        bounds=(0, 1 << 20), needs=Switch("custom_all_reduce"), label="custom all-reduce",
        only_in=("decode",), group="features"
    )] = 0
    """KiB that the custom all-reduce of all ranks takes. Where it takes the tokens of all of them,
    those of a graph of decodes are gathered by a sum. 0: the ranks have none."""
    chunked_prefix_cache_threshold: Annotated[int, Dimension(
        bounds=(0, 1 << 20), needs=Sizes("prefix_thresholds", widest=(8192, 1, 12, 24)),
        label="prompts expanded sooner", only_in=("prefill",), group="features"
    )] = 8192
    """Tokens that the requests of a batch have cached from which on its prompts expand latent rows
    into the keys and values of each head. Between none and as many, attention stays latent."""
    max_kv_chunk_capacity: Annotated[int, Dimension(
        bounds=(1, 1 << 20), needs=Sizes("kv_chunk_capacities", widest=(1 << 17, 8, 16, 40)),
        label="cached tokens expanded in chunks", only_in=("prefill",), group="features"
    )] = 1 << 17
    """Tokens that are expanded at a time, of all requests of a batch together; of more, what is
    cached is expanded in chunks, and their parts are merged."""
    chain_hidden_states: Annotated[bool, Dimension(
        needs=Switch("chained_layers"), label="draft layers that chain", only_in=("draft_extend",),
        group="features"
    )] = False
    """Whether each layer of a draft model with several is given the hidden states of the one before
    it, as Step-3.5's are, in the place of the target model's, as MiMo-V2's are."""
    outer_join: Annotated[bool, Dimension(
        needs=Switch("outer_joins"), label="hidden states joined outside", only_in=("prefill",),
        group="features"
    )] = False
    """Whether a draft model joins the target model's hidden states with its embeddings outside of
    the layers that graphs hold, as Qwen3-Next's, in the place of inside, as EAGLE's for Llama."""
    sample_from_anchor: Annotated[bool, Dimension(
        needs=Switch("given_anchors"), label="drafts behind an anchor alone",
        only_in=("target_verify",), group="features"
    )] = True
    """Whether a model that drafts blocks samples at a block's first token too; else it drafts one
    token less."""
    cpu_seq_lens: Annotated[bool, Dimension(
        needs=Switch("cpu_seq_lens"), label="lengths on the host", only_in=("target_verify",),
        group="features"
    )] = False
    """Whether the attention backend of a worker's other model asks for lengths on the host. Else
    they are exact there only if the one under test asks."""
    verify_budget: Annotated[Literal["none", "cap_accept", "compact", "verify_all"], Dimension(
        needs=OneOf("verify_budgets"), label="verify budget {}", only_in=("target_verify",),
        group="features"
    )] = "none"
    """What a budget of tokens, shared out by how sure a draft model is of its drafts, does to a
    verify: there is `none`; every draft is verified, and those beyond it do not stay
    (`cap_accept`, see `Batch.most_kept`); rows have as many tokens as it gives them, in graphs that
    are captured by tokens (`compact`); or such graphs verify whole blocks (`verify_all`)."""
    # fmt: on

    def __post_init__(self) -> None:
        one_empty_tuple(self, "capture_tokens")


DIMENSIONS = rows_of(EngineConfig)
"""The table: every field of `EngineConfig` by name, in its order."""
