"""What two features of a config, or their absence, make contradict each other, mended."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities, least_page_numbers, page_numbers
from fuzzgraph.case import DIMENSIONS, SPEC_MODES, EngineConfig, group_configs
from fuzzgraph.case.config_rules import (
    SCORED,
    WITHOUT_BLOCKS,
    WITHOUT_CAP,
    WITHOUT_LAYER_TYPES,
    hands_out,
    set_among,
)
from fuzzgraph.strategies.coherent_adapters import adapted_experts, adapters
from fuzzgraph.strategies.coherent_drafts import (
    bound_draft,
    draft_branches,
    draft_models,
    draft_reach,
    draft_window,
    drafted_blocks,
    drafted_prompts,
    ngram_drafts,
    plan_streams,
    sampling,
    usual_steps,
    verify_budget,
    whole_blocks,
)
from fuzzgraph.strategies.coherent_pooling import pooled_blocks
from fuzzgraph.strategies.coherent_prompts import (
    image_encoder,
    images,
    prefill_slots,
    prefix_chunks,
)
from fuzzgraph.strategies.coherent_ranks import (
    all_reduce,
    data_ranks,
    even_ranks,
    experts,
    later_stage,
    ranks_that_share_drafts,
    ranks_that_share_prompts,
    two_batches,
)
from fuzzgraph.strategies.coherent_states import (
    few_states,
    linear_heads,
    safe_gates,
    state_rings,
    tracked_states,
)
from fuzzgraph.strategies.config_features import Fields, Pins
from fuzzgraph.strategies.draws import Draws
from fuzzgraph.strategies.wide_batches import is_wide

_POOL_SLOTS = 512
"""Upper bound of page_size times requests, which keeps the pool's tensors small."""
_PLANNED_ITEMS = 1 << 20
"""Upper bound of the work items of a split plan, where an eager prefill has a context of tokens."""


def pages_per_request(config: EngineConfig) -> int:
    """Pages that one request can need at most, drafts on each branch and encoder included."""
    topk, steps = (config.spec_topk, config.spec_steps) if "draft" in config.modes else (0, 0)
    encoder = -(-config.max_encoder_len // config.page_size)
    pages = [group.page_size for group in group_configs(config)]
    groups = sum(-(-config.max_context_len // page) for page in pages)
    drafts = sum(topk * (-(-steps // page) + 1) for page in pages)
    return groups + drafts + encoder


_FP4_HEADS = 64
"""Columns of a head whose keys and values are in FP4."""


_BESIDE_FP4 = "flashinfer"
"""What has the prefills of servers whose decodes read FP4 by XQA."""
_ODD_LATENT_ROWS = ((12, 8), (14, 10))
"""Columns of a row and of its value. Some kernels of Triton demand parts that are powers of two, as
a server's are, others a row and a value that round up to the same one."""


def coherent(
    fields: Fields, can: Capabilities, draws: Draws, pins: Pins = (), *, served: bool = False
) -> EngineConfig:
    """Mend what two features, or their absence, make contradict each other.

    Args:
        served: whether pools are as large as a server's.
    """
    if fields["kv_dtype"] == "nvfp4":
        _fp4_kv(fields, can)
        if "num_kv_heads" not in dict(pins):
            _fp4_heads(fields, can, draws)
    if fields["num_q_heads"] % fields["num_kv_heads"]:
        fields["num_kv_heads"] = 1
    if fields["attention"] == "mla":
        fields["num_kv_heads"] = 1
        drawn, heads = fields["num_q_heads"], can.latent_heads
        if drawn not in heads:
            fields["num_q_heads"] = draws.pick("num_q_heads", heads) or drawn
        if not {"head_dim", "v_head_dim"} & dict(pins).keys():
            _odd_latent_row(fields, can, draws)
        widest = max(1, fields["head_dim"] - can.min_rope_dim)
        fields["v_head_dim"] = min(fields["v_head_dim"], widest)
    if can.query_heads_each:
        fields["num_q_heads"] = fields["num_kv_heads"] * can.query_heads_each
    _built_head_dims(fields, can)
    if fields["kv_dtype"] != "auto":
        fields["dtype"] = can.fp8_kv_beside or fields["dtype"]
    if "unit_kv_scale" not in dict(pins):
        _unit_scale(fields, can, draws)
    _widen_pages(fields, can)
    if fields["runner"] == "cpu_graph" or (fields["recurrent_state"] and "decode" in can.modes):
        fields["modes"] = ("decode",)
    if "draft" in fields["modes"] and "decode" in can.modes:
        fields["swa_window"] = DIMENSIONS["swa_window"].default
    if fields["dp_size"] > 1 and len(fields["modes"]) > 1:  # as a test has bounded it
        fields["modes"] = tuple(mode for mode in fields["modes"] if mode != "prefill")
    if fields["dp_size"] > 1 and fields["modes"] == ("prefill",):
        fields["row_mixing"] = DIMENSIONS["row_mixing"].default
    if "prefill" not in fields["modes"]:
        fields["capture_tokens"] = ()
    speculates = not set(SPEC_MODES).isdisjoint(fields["modes"])
    if not speculates:
        for name in ("spec_topk", "spec_steps", "draft_tokens"):
            fields[name] = DIMENSIONS[name].default
    elif "draft_tokens" not in dict(pins):
        fields["draft_tokens"] = max(fields["draft_tokens"], can.min_draft_tokens)
    if "draft" in fields["modes"]:
        if fields["swa_window"]:  # only drafts of one branch attend
            fields["spec_topk"] = 1
        bound_draft(fields)
        usual_steps(fields, can, draws)
    room = fields["draft_tokens"] + 1 if speculates else max(2, can.min_seq_len)
    fields["max_context_len"] = max(fields["max_context_len"], min(room, can.max_context_len))
    fields["draft_tokens"] = min(fields["draft_tokens"], fields["max_context_len"])
    if can.swa_only and not fields["swa_window"]:
        _second_window(fields, draws)
    if can.encoder_only and not fields["max_encoder_len"]:
        fields["max_encoder_len"] = draws.pick("max_encoder_len", (1, 5, 2, 16, 3, 9))
    for window in ("sliding_window", "swa_window"):
        fields[window] = min(fields[window], fields["max_context_len"])
    _bound_split(fields)
    _whole_chunks(fields, can, draws)
    tracked_states(fields, can, draws)
    if not fields["swa_window"]:
        fields["swa_page_size"] = DIMENSIONS["swa_page_size"].default
    _virtual_pages(fields)
    if not (served or is_wide(fields["req_pool_size"])):
        fields["req_pool_size"] = max(
            1, min(fields["req_pool_size"], _POOL_SLOTS // fields["page_size"])
        )
    few_states(fields, can, draws)
    state_rings(fields, can, draws)
    if "safe_gate" not in dict(pins):
        safe_gates(fields, can, draws)
    if "linear_head_dim" not in dict(pins):
        linear_heads(fields, can, draws)
    drafted_prompts(fields, can, draws)
    drafted_blocks(fields, can, draws)
    if "plan_stream" not in dict(pins):
        plan_streams(fields, can, draws)
    if not {"draft_tokens", "max_context_len"} & dict(pins).keys():
        whole_blocks(fields, can, draws)
    draft_models(fields, can, pins, draws)
    ngram_drafts(fields, can, draws)
    sampling(fields, can, draws)
    if "verify_budget" not in dict(pins):
        verify_budget(fields, can, draws)
    draft_window(fields, can, draws)
    draft_branches(fields, can)
    draft_reach(fields, can)
    later_stage(fields, can, draws)
    if "dp_size" not in dict(pins):
        data_ranks(fields, can, draws)
    if "attn_tp_size" not in dict(pins):
        ranks_that_share_drafts(fields, can, draws)
    ranks_that_share_prompts(fields, can, pins, draws)
    adapters(fields, can, draws)
    if can.experts:
        experts(fields, can, pins, draws)
    if can.loras:
        adapted_experts(fields, can, pins, draws)
    prefill_slots(fields, can, draws)
    prefix_chunks(fields, can, pins, draws)
    images(fields, can, pins, draws)
    two_batches(fields, can, draws)
    if "trtllm_kernel" not in dict(pins):
        _trtllm_kernel(fields, can, draws)
    if not {"compute_capability", "sparse_kernel"} & dict(pins).keys():
        _compute_capability(fields, can, draws)
    if "index_logits_bytes" not in dict(pins):
        _index_logits(fields, can, draws)
    if "index_gather_threshold" not in dict(pins):
        _index_gathering(fields, can, draws)
    if "backend_beside" not in dict(pins):
        _backend_beside(fields, can, draws)
    if "platform" not in dict(pins):
        _platform(fields, can, draws)
    if "logit_cap" not in dict(pins):
        _logit_cap(fields, can, draws)
    if not {"final_logit_cap", "returned_hidden", "gathered_logits"} & dict(pins).keys():
        _model_head(fields, can, draws)
    if "prompt_logprobs" not in dict(pins):
        _prompt_logprobs(fields, can, draws)
    if "layer_types" not in dict(pins):
        _layer_types(fields, can, draws)
    if "even_ranks" not in dict(pins):
        even_ranks(fields, can, draws)
    if "all_reduce_kib" not in dict(pins):
        all_reduce(fields, can, draws)
    if set_among(fields, WITHOUT_BLOCKS):
        fields["index_block"] = DIMENSIONS["index_block"].default
    pooled_blocks(fields, can, pins, draws)
    if not can.capture_beyond_pool:
        pool = fields["req_pool_size"]
        within = tuple(size for size in fields["capture_bs"] if size <= pool)
        fields["capture_bs"] = within or (pool,)
    image_encoder(fields, can)
    config = EngineConfig(**{**fields, "kv_pool_pages": 1})
    fields["kv_pool_pages"] = fields["req_pool_size"] * pages_per_request(config) + 2
    return EngineConfig(**fields)


def _fp4_kv(fields: Fields, can: Capabilities) -> None:
    """KV in FP4 has heads of whole groups of scales, and neither latent rows, nor encoders, nor a
    second pool; a target whose every model has one of these has the pool of its model."""
    latent = "mha" not in can.attentions
    if latent or can.encoder_only or can.swa_only or can.built_heads or can.attention_chunks:
        fields["kv_dtype"] = DIMENSIONS["kv_dtype"].default
        return
    fields["head_dim"] = fields["v_head_dim"] = _FP4_HEADS
    fields["attention"] = "mha"
    for name in ("swa_window", "max_encoder_len", "virtual_pages"):
        fields[name] = DIMENSIONS[name].default


def _fp4_heads(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Several heads of KV in half of the configs in FP4: their scales are laid out by heads."""
    one = fields["kv_dtype"] == "nvfp4" and fields["num_kv_heads"] == 1
    if one and can.max_q_heads > 1 and draws.percent("num_kv_heads", 50):
        drawn = fields["num_q_heads"]
        fields["num_q_heads"], fields["num_kv_heads"] = max(2, drawn - drawn % 2), 2


def _second_window(fields: Fields, draws: Draws) -> None:
    """A window for the second layer."""
    page, context = fields["page_size"], fields["max_context_len"]
    windows = (1, 2, 3, page, page + 1)
    fields["swa_window"] = max(1, min(draws.pick("swa_window", windows), context - 2))


def _virtual_pages(fields: Fields) -> None:
    """Where pages of layers of two kinds have one virtual number; drafts of a step have none."""
    kinds = fields["swa_window"] or fields["recurrent_state"]
    apart = fields["swa_page_size"] not in (0, fields["page_size"]) or fields["max_encoder_len"]
    if not kinds or apart or "draft" in fields["modes"]:
        fields["virtual_pages"] = DIMENSIONS["virtual_pages"].default


def _whole_chunks(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Chunks of one to four pages for a target whose layers attend in chunks; it has no windows.
    A third of the encoders of images attend in windows of a few patches."""
    bounded = fields["sliding_window"] or fields["swa_window"]
    if bounded:
        fields["attention_chunk_size"] = DIMENSIONS["attention_chunk_size"].default
    drawn, page = fields["attention_chunk_size"], fields["page_size"]
    if can.attention_chunks and can.image_encoders and not bounded:
        some = draws.percent("attention_chunk_size", 33) and not fields["image_len"]
        drawn = drawn or (draws.pick("attention_chunk_size", (4, 1, 16, 5)) if some else 0)
    elif can.attention_chunks and not can.sliding_window and not drawn:
        drawn = page * (1 + draws.below("attention_chunk_size", 4))
    fields["attention_chunk_size"] = drawn + -drawn % page


def _backend_beside(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Another backend for the other modes in a quarter of the decodes and verifies of a target that
    has some; half of these verifies run on the backend of prefills."""
    others = [name for name in can.backends_beside if name != "none"]
    fp4, modes = fields["kv_dtype"] == "nvfp4", (("decode",), ("target_verify",))
    if not others or fp4 or fields["modes"] not in modes:
        for name in ("backend_beside", "verifies_as_prefill"):
            fields[name] = DIMENSIONS[name].default
        if fp4 and fields["trtllm_kernel"] == "xqa" and _BESIDE_FP4 in others:
            fields["backend_beside"] = _BESIDE_FP4
        return
    if fields["backend_beside"] == "none" and draws.percent("backend_beside", 25):
        fields["backend_beside"] = draws.pick("backend_beside", others)
        verifies = fields["modes"] == ("target_verify",)
        fields["verifies_as_prefill"] = verifies and draws.percent("verifies_as_prefill", 50)


def _trtllm_kernel(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Each kernel that a target has in as many of its configs."""
    if fields["trtllm_kernel"] == can.trtllm_kernels[0]:
        fields["trtllm_kernel"] = draws.pick("trtllm_kernel", can.trtllm_kernels)


def _compute_capability(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """The newer device in a third of the configs of a target that drives two; FlashAttention 3 is
    not among the kernels that it has."""
    others = [kernel for kernel in can.sparse_kernels if kernel != "fa3"]
    if len(can.compute_capabilities) > 1 and draws.percent("compute_capability", 33):
        fields["compute_capability"] = can.compute_capabilities[-1]
        if fields["sparse_kernel"] == "fa3":
            fields["sparse_kernel"] = draws.pick("sparse_kernel", others)


def _index_logits(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Little memory for scores in two fifths of the configs whose keys have some."""
    few = [size for size in can.index_logits_bytes if size]
    if fields["kv_compression"] not in SCORED:
        fields["index_logits_bytes"] = DIMENSIONS["index_logits_bytes"].default
    elif few and draws.percent("index_logits_bytes", 40):
        fields["index_logits_bytes"] = draws.pick("index_logits_bytes", few)


def _index_gathering(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Each of a target's thresholds as often in configs whose prompts may gather keys."""
    if fields["kv_compression"] != "c4" or fields["modes"] != ("prefill",):
        fields["index_gather_threshold"] = DIMENSIONS["index_gather_threshold"].default
    elif fields["index_gather_threshold"] == can.index_gather_thresholds[0]:
        fields["index_gather_threshold"] = draws.pick(
            "index_gather_threshold", can.index_gather_thresholds
        )


def _logit_cap(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """One of a target's caps in a fifth of the configs whose layers may have one."""
    if set_among(fields, WITHOUT_CAP):
        fields["logit_cap"] = DIMENSIONS["logit_cap"].default
    elif fields["logit_cap"] == can.logit_caps[0]:
        caps = can.logit_caps[1:]
        if caps and draws.percent("logit_cap", 20):
            fields["logit_cap"] = draws.pick("logit_cap", caps)


def _model_head(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Half of the configs of a target with a head cap its logits, each kind of hidden states is
    handed out by as many, and three in five of those beside other ranks share it."""
    caps = can.final_logit_caps[1:]
    if caps and draws.percent("final_logit_cap", 50):
        fields["final_logit_cap"] = draws.pick("final_logit_cap", caps)
    shared = fields["dp_size"] > 1 and 64 % fields["dp_size"] == 0
    if not (can.gathered_logits and shared):
        fields["gathered_logits"] = DIMENSIONS["gathered_logits"].default
    elif draws.percent("gathered_logits", 60):
        fields["gathered_logits"] = True
    kinds = [kind for kind in can.returned_hidden if hands_out(kind, tuple(fields["modes"]))]
    if len(kinds) > 1:
        fields["returned_hidden"] = draws.pick("returned_hidden", kinds)


def _prompt_logprobs(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Clients of a server whose data is not parallel ask for each kind as often."""
    if fields["dp_size"] > 1:
        fields["prompt_logprobs"] = DIMENSIONS["prompt_logprobs"].default
    elif len(can.prompt_logprobs) > 1:
        fields["prompt_logprobs"] = draws.pick("prompt_logprobs", can.prompt_logprobs)


_WINDOW_ORDERS = ("sff", "sfs")
"""Kinds of layers by their first letters: two that see all keys behind one with a window, or one
between two; such pools have various numbers of layers."""
_ORDERS_OF_PAIRS = {"swa_window": "sffs", "recurrent_state": "lflf"}
"""The same with as many of each kind: layers of one memory have one size of pages so, and a
configuration that gives every second layer all keys can say the other one."""
_KINDS = {"f": "full_attention", "s": "sliding_attention", "l": "linear_attention"}


def _layer_types(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Several layers of a kind, the first of which does not see all keys, in about a fifth
    of the configs that have layers of two kinds."""
    kinds = [name for name in _ORDERS_OF_PAIRS if fields[name]]
    others = set_among(fields, WITHOUT_LAYER_TYPES)
    drafts = {"draft", "draft_extend"} & {*fields["modes"]}
    if not can.layer_types or len(kinds) != 1 or others or drafts:
        fields["layer_types"] = DIMENSIONS["layer_types"].default
        return
    if not fields["layer_types"] and draws.percent("layer_types", 22):
        order = _ORDERS_OF_PAIRS[kinds[0]]
        if fields["swa_window"] and not fields["virtual_pages"]:
            order = draws.pick("layer_types", _WINDOW_ORDERS)
        fields["layer_types"] = tuple(_KINDS[letter] for letter in order)


def _unit_scale(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Half of the configs with KV in FP8 have no scales of it."""
    fp8 = can.unit_kv_scales and fields["kv_dtype"] == "float8_e4m3fn"
    fields["unit_kv_scale"] = bool(fp8 and draws.percent("unit_kv_scale", 50))


def _platform(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """The last of a target's platforms in a third of its configs, but for those with a backend
    beside it, which the first one alone has."""
    fields["platform"] = can.platforms[0]
    if fields["backend_beside"] == "none" and draws.percent("platform", 33):
        fields["platform"] = can.platforms[-1]


def _odd_latent_row(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """A row whose width is no power of two, as that of a server's 576 columns is none: only there
    a block of a kernel, which is one, goes beyond the row."""
    usual = fields["head_dim"] == DIMENSIONS["head_dim"].default
    if usual and can.min_rope_dim and not can.built_heads and draws.percent("latent_row", 30):
        row, value = draws.pick("latent_row", _ODD_LATENT_ROWS)
        if row <= can.max_head_dim and can.min_rope_dim <= row - value:
            fields["head_dim"], fields["v_head_dim"] = row, value


def _built_head_dims(fields: Fields, can: Capabilities) -> None:
    """The narrowest heads that kernels are built for and that are no narrower than those drawn."""
    drawn = fields["head_dim"], fields["v_head_dim"]
    built = can.built_heads
    if built and drawn not in built:
        wide = [pair for pair in built if pair[0] >= drawn[0]] or built[-1:]
        fields["head_dim"], fields["v_head_dim"] = wide[0]


def _widen_pages(fields: Fields, can: Capabilities) -> None:
    """Wider rows, then more KV heads, then more tokens, until a page has room for what else the
    target keeps in one."""

    def too_small() -> bool:
        config = EngineConfig(**{**fields, "kv_pool_pages": 1})
        return page_numbers(config) < least_page_numbers(can, config)

    any_heads = not can.built_heads
    while any_heads and too_small() and 2 * fields["head_dim"] <= can.max_head_dim:
        fields["head_dim"] *= 2
        fields["v_head_dim"] = fields["head_dim"]
    while too_small() and 2 * fields["num_kv_heads"] <= can.max_q_heads:
        fields["num_kv_heads"] *= 2
        if fields["num_q_heads"] % fields["num_kv_heads"]:
            fields["num_q_heads"] = fields["num_kv_heads"]
    for size in sorted(can.page_sizes):
        if too_small() and size > fields["page_size"]:
            fields["page_size"] = size


def _bound_split(fields: Fields) -> None:
    """Larger parts of a split plan, until those of a context of tokens are within their bound."""
    if fields["split_kv"]:
        least = fields["max_context_len"] ** 2 // _PLANNED_ITEMS
        fields["split_kv"] = max(fields["split_kv"], least)
