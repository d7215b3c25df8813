"""Which configs are valid: bounds, captured sizes, and fields that contradict each other."""

from __future__ import annotations

from typing import NoReturn

from fuzzgraph.case.model import BOUNDS_OF_KEYS, DIMENSIONS, SPEC_MODES, EngineConfig
from fuzzgraph.case.verified_states import verifies_states
from fuzzgraph.errors import InvalidCase

_LARGEST_CAPTURE = 8192
_FP4_BLOCK = 16
"""Of `fuzzgraph.nvfp4`, which is made of tensors."""
_LARGEST_POOL = 1 << 30
"""Elements of K and V together, and entries of a table of slots."""


def refuse(where: str, value: object, rule: str, way_out: str) -> NoReturn:
    """Raise the one line that every refused case gets."""
    raise InvalidCase(f"{where}={value!r} {rule}. {way_out}")


def validate_config(config: EngineConfig) -> None:
    """Return if the config is coherent.

    Raises:
        InvalidCase: names the first field that is out of bounds or contradicts another.
    """
    _check_bounds(config)
    _check_second_group(config)
    _check_virtual_pages(config)
    _check_chunks(config)
    _check_tracking(config)
    _check_pools(config)
    _check_ladder("capture_bs", config.capture_bs)
    _check_ladder("capture_tokens", config.capture_tokens)
    _check_modes(config)
    _check_heads(config)
    _check_fp4(config)
    _check_ranks(config)
    _check_decode_only(config)
    _check_states(config)
    _check_rings(config)
    _check_drafted_prompts(config)
    _check_later_stage(config)
    _check_index_layer(config)
    _check_two_batches(config)
    _check_backends(config)
    _check_drafted_blocks(config)
    _check_sampling(config)
    _check_branches(config)
    _check_draft_window(config)
    _check_experts(config)
    _check_prefill(config)


def _check_bounds(config: EngineConfig) -> None:
    for name, row in DIMENSIONS.items():
        if row.spec.bounds is None:
            continue
        value, (low, high) = getattr(config, name), row.spec.bounds
        if not low <= value <= high:
            way_out = "Use 0 to switch it off." if low == 0 else "Change the config."
            refuse(f"config.{name}", value, f"must lie in {low}..{high}", way_out)


def _check_second_group(config: EngineConfig) -> None:
    if config.swa_page_size and not config.swa_window:
        refuse(
            "config.swa_page_size",
            config.swa_page_size,
            "is that of a second KV cache group; got swa_window=0",
            "Set swa_window, or drop it.",
        )


def _check_virtual_pages(config: EngineConfig) -> None:
    """Each page that a map names has one virtual number, in all groups."""
    several = config.swa_page_size not in (0, config.page_size)
    others = {
        "modes": ("draft" in config.modes, list(config.modes)),
        "max_encoder_len": (config.max_encoder_len > 0, config.max_encoder_len),
        "swa_page_size": (several, config.swa_page_size),
    }
    for name, (beside, value) in others.items():
        if config.virtual_pages and beside:
            refuse(
                "config.virtual_pages",
                True,
                f"has no numbers for the pages of {name}={value}",
                "Drop one of them.",
            )


def _check_chunks(config: EngineConfig) -> None:
    chunk = config.attention_chunk_size
    if chunk % config.page_size:
        refuse(
            "config.attention_chunk_size",
            chunk,
            f"must be whole pages of {config.page_size} tokens",
            "Change one of them, or use 0 to switch it off.",
        )
    beside = [name for name in ("sliding_window", "swa_window") if getattr(config, name)]
    if chunk and beside:
        refuse(
            "config.attention_chunk_size",
            chunk,
            f"is another bound than that of {beside[0]}",
            "Drop one of them.",
        )


def _check_tracking(config: EngineConfig) -> None:
    interval, modes = config.state_track_interval, config.modes
    tracks = config.recurrent_state and modes in (("decode",), ("prefill",), ("target_verify",))
    # A draft model has no states where the model that it drafts for has some.
    if interval and not tracks and modes != ("draft_extend",):
        refuse(
            "config.state_track_interval",
            interval,
            "needs recurrent_state and modes=['decode'], ['prefill'] or ['target_verify'], or "
            f"modes=['draft_extend']; got {config.recurrent_state} and {list(modes)}",
            "Change them, or use 0 to keep no states.",
        )
    if interval and "target_verify" in modes and config.spec_topk > 1:
        refuse(
            "config.state_track_interval",
            interval,
            f"is not said of trees of drafts; got spec_topk={config.spec_topk}",
            "Use spec_topk=1, or 0 to keep no states.",
        )
    if config.prefix_branches and not (interval and modes == ("prefill",)):
        refuse(
            "config.prefix_branches",
            True,
            f"needs state_track_interval and modes=['prefill']; got {interval} and {list(modes)}",
            "Change them, or leave it out.",
        )
    if interval % config.page_size:
        refuse(
            "config.state_track_interval",
            interval,
            f"must be whole pages of {config.page_size} tokens",
            "Change one of them, or use 0 to keep no states.",
        )


def _check_states(config: EngineConfig) -> None:
    if config.state_pool_size and (not config.recurrent_state or config.modes != ("decode",)):
        refuse(
            "config.state_pool_size",
            config.state_pool_size,
            f"needs recurrent_state and modes=['decode']; got recurrent_state="
            f"{config.recurrent_state} and {list(config.modes)}",
            "Use 0 for as many states as rows.",
        )


def _check_rings(config: EngineConfig) -> None:
    """Source: sglang attention_hook.py, guards of `enable_linear_replayssm` and, where drafts are
    verified, of `enable_linear_replayssm_spec`; memory_pool.py, how long rings of verifies are."""
    ring, modes = config.state_ring_len, config.modes
    decodes = modes == ("decode",) and not config.state_track_interval
    verifies = modes == ("target_verify",) and config.spec_topk == 1
    if ring and not (config.recurrent_state and (decodes or verifies)):
        refuse(
            "config.state_ring_len",
            ring,
            "needs recurrent_state, and modes=['decode'] with state_track_interval=0 or "
            f"modes=['target_verify'] with spec_topk=1; got {config.recurrent_state}, "
            f"{list(modes)}, {config.state_track_interval} and {config.spec_topk}",
            "Change them, or use 0 to write every state.",
        )
    if ring and verifies and (ring & (ring - 1) or ring < 2 * config.draft_tokens):
        refuse(
            "config.state_ring_len",
            ring,
            f"must be a power of 2, and room for two verifies of {config.draft_tokens} tokens",
            "Change it, or use 0 to write every state.",
        )
    if config.state_flush_interval and not (ring and decodes):
        refuse(
            "config.state_flush_interval",
            config.state_flush_interval,
            "needs state_ring_len and modes=['decode']",
            "Change them, or use 0.",
        )


def _check_drafted_prompts(config: EngineConfig) -> None:
    checks = verifies_states(config) and config.modes == ("target_verify",)
    if config.drafted_prompts and not (checks and config.spec_topk == 1):
        refuse(
            "config.drafted_prompts",
            True,
            f"needs recurrent_state, modes=['target_verify'] and spec_topk=1; got recurrent_state="
            f"{config.recurrent_state}, {list(config.modes)} and {config.spec_topk}",
            "Change them, or drop it.",
        )


WHOLE_BATCHES = (
    "virtual_pages", "max_encoder_len", "recurrent_state", "later_stage", "max_loras",
    "ngram_drafts", "draft_adapter", "attention_chunk_size", "num_experts", "row_mixing",
    "drafted_blocks",
)  # fmt: skip
"""Dimensions that no engine has, or no target drives, where batches are cut in two."""


def _check_two_batches(config: EngineConfig) -> None:
    """Batches are cut in two where experts are spread over ranks that compute other tokens.

    Source: sglang server_args.py asks for an exchange between experts; kv_cache_hook.py (unified
    memory), tbo_backend.py (encoders) and lora_hook.py refuse batches that are cut.
    """
    if not config.two_batch_overlap:
        return
    others = [name for name in WHOLE_BATCHES if getattr(config, name) != DIMENSIONS[name].default]
    if config.dp_size == 1 or others:
        refuse(
            "config.two_batch_overlap",
            True,
            "needs several data-parallel ranks and layers that attend alone; got "
            + ", ".join(f"{name}={getattr(config, name)}" for name in ("dp_size", *others)),
            "Change them, or drop it.",
        )


def _check_backends(config: EngineConfig) -> None:
    """Decodes and verifies run on one of two backends; which one verifies, a server chooses."""
    one_mode = config.modes in (("decode",), ("target_verify",))
    if config.backend_beside != "none" and not one_mode:
        refuse(
            "config.backend_beside",
            config.backend_beside,
            f"needs modes=['decode'] or ['target_verify']; got {list(config.modes)}",
            "Change them, or use 'none'.",
        )
    apart = config.backend_beside != "none" and config.modes == ("target_verify",)
    if config.verifies_as_prefill and not apart:
        refuse(
            "config.verifies_as_prefill",
            True,
            "needs modes=['target_verify'] and a backend for decodes; got "
            f"{list(config.modes)} and backend_beside={config.backend_beside!r}",
            "Change them, or drop it.",
        )


def _check_later_stage(config: EngineConfig) -> None:
    """Servers with a pipeline take no drafts; layers of one kind alone are numbered on."""
    if not config.later_stage:
        return
    beside = ("swa_window", "max_encoder_len", "recurrent_state", "virtual_pages")
    others = [name for name in beside if getattr(config, name)]
    if others or set(config.modes) & set(SPEC_MODES):
        refuse(
            "config.later_stage",
            True,
            f"needs modes without drafts and layers of one kind; got {list(config.modes)}"
            + "".join(f", {name}={getattr(config, name)}" for name in others),
            "Change them, or drop it.",
        )


def _check_index_layer(config: EngineConfig) -> None:
    """Keys of one token or two alone are shared, and candidates are blocks."""
    said = {"candidate_blocks": config.candidate_blocks, "index_layer": config.index_layer}
    beside = [name for name, value in said.items() if value != DIMENSIONS[name].default]
    if beside and config.kv_compression not in ("c1", "c2"):
        refuse(
            f"config.{beside[0]}",
            said[beside[0]],
            f"is of layers with kv_compression 'c1' or 'c2'; got {config.kv_compression!r}",
            "Set that, or drop it.",
        )
    if config.index_layer in ("source", "candidates") and not config.candidate_blocks:
        refuse(
            "config.index_layer",
            config.index_layer,
            "is of models with candidates; got candidate_blocks=0",
            "Set candidate_blocks, or drop it.",
        )


def _check_sampling(config: EngineConfig) -> None:
    """Drawn are drafts in one chain, and what stays of them, which no state may depend on."""
    others = [
        name
        for name in ("recurrent_state", "ngram_drafts", "draft_adapter", "kv_compression")
        if getattr(config, name) != DIMENSIONS[name].default
    ]
    chains = config.modes == ("target_verify",) and config.spec_topk == 1
    if config.sampling != "greedy" and (others or not chains):
        refuse(
            "config.sampling",
            config.sampling,
            "needs modes=['target_verify'], spec_topk=1 and layers that attend alone; got "
            f"{list(config.modes)}, spec_topk={config.spec_topk}"
            + "".join(f", {name}={getattr(config, name)}" for name in others),
            "Change them, or use 'greedy'.",
        )


def _check_branches(config: EngineConfig) -> None:
    """Tokens are chosen among branches whose keys lie one behind the other."""
    alone = config.modes == ("draft",) and config.spec_topk > 1 and config.page_size == 1
    if config.draft_branches == "chosen" and not alone:
        refuse(
            "config.draft_branches",
            "chosen",
            f"needs modes=['draft'], spec_topk > 1 and page_size=1; got {list(config.modes)}, "
            f"spec_topk={config.spec_topk} and page_size={config.page_size}",
            "Change them, or use 'apart'.",
        )


def _check_drafted_blocks(config: EngineConfig) -> None:
    """A block is one row of a layer that sees all keys."""
    if config.draft_adapter and (config.max_loras or config.modes != ("target_verify",)):
        refuse(
            "config.draft_adapter",
            True,
            f"needs modes=['target_verify'] and is the only adapter; got {list(config.modes)} and "
            f"max_loras={config.max_loras}",
            "Change them, or drop it.",
        )
    beside = config.draft_adapter or config.drafted_blocks != "none"
    if config.ngram_drafts and (beside or config.modes != ("target_verify",)):
        refuse(
            "config.ngram_drafts",
            True,
            f"needs modes=['target_verify'] and no model that drafts; got {list(config.modes)}, "
            f"draft_adapter={config.draft_adapter} and drafted_blocks={config.drafted_blocks!r}",
            "Change them, or drop it.",
        )
    if config.drafted_blocks == "none":
        if config.drafted_window:
            refuse(
                "config.drafted_window",
                config.drafted_window,
                "is that of drafted blocks; got drafted_blocks='none'",
                "Set drafted_blocks, or drop it.",
            )
        return
    others = {
        "modes": (config.modes != ("target_verify",), list(config.modes)),
        "spec_topk": (config.spec_topk > 1, config.spec_topk),
        "recurrent_state": (config.recurrent_state, True),
        "kv_compression": (config.kv_compression != "none", config.kv_compression),
        **{name: (getattr(config, name) > 0, getattr(config, name)) for name in BOUNDS_OF_KEYS},
    }
    for name, (beside, value) in others.items():
        if beside:
            refuse(
                "config.drafted_blocks",
                config.drafted_blocks,
                f"needs modes=['target_verify'] and rows that see all keys; got {name}={value}",
                "Change it, or drop the blocks.",
            )


def _check_fp4(config: EngineConfig) -> None:
    """Scales are of whole blocks of a head's key or value."""
    if config.kv_dtype != "nvfp4":
        return
    widths = config.head_dim, config.v_head_dim
    if config.attention != "mha" or any(width % _FP4_BLOCK for width in widths):
        refuse(
            "config.kv_dtype",
            config.kv_dtype,
            f"needs attention='mha', and head_dim and v_head_dim in multiples of {_FP4_BLOCK}; got "
            f"{config.attention!r}, {widths[0]} and {widths[1]}",
            "Change them, or drop it.",
        )


def _check_draft_window(config: EngineConfig) -> None:
    """A window of drafts is the only bound of what they see, and a sink lies before one."""
    if config.draft_sink_size and not config.draft_window_size:
        refuse(
            "config.draft_sink_size",
            config.draft_sink_size,
            "lies before a window; got draft_window_size=0",
            "Set draft_window_size, or drop it.",
        )
    bounds = [name for name in BOUNDS_OF_KEYS if getattr(config, name)]
    if config.draft_window_size and (bounds or config.modes != ("draft",)):
        found = "".join(f" and {name}={getattr(config, name)}" for name in bounds)
        refuse(
            "config.draft_window_size",
            config.draft_window_size,
            f"needs modes=['draft'] and rows that see all keys; got {list(config.modes)}{found}",
            "Change them, or drop it.",
        )


def _check_pools(config: EngineConfig) -> None:
    """Each size may be large, not all of them at once."""
    tokens = config.kv_pool_pages * max(config.page_size, config.swa_page_size)
    elements = tokens * config.num_kv_heads * (config.head_dim + config.v_head_dim)
    if elements > _LARGEST_POOL:
        refuse(
            "config.kv_pool_pages",
            config.kv_pool_pages,
            f"makes a KV pool of {elements} elements, more than {_LARGEST_POOL}",
            "Lower it, the page size or the heads.",
        )
    entries = config.req_pool_size * max(config.max_context_len, config.max_encoder_len)
    if entries > _LARGEST_POOL:
        refuse(
            "config.req_pool_size",
            config.req_pool_size,
            f"makes a table of {entries} slots, more than {_LARGEST_POOL}",
            "Lower it or the context.",
        )


def _check_ladder(name: str, sizes: tuple[int, ...]) -> None:
    if any(size < 1 for size in sizes) or list(sizes) != sorted(set(sizes)):
        refuse(
            f"config.{name}",
            sizes,
            "must be ascending sizes >= 1 without repeats",
            "Sort it and drop repeats.",
        )
    if sizes and sizes[-1] > _LARGEST_CAPTURE:
        refuse(f"config.{name}", sizes[-1], f"exceeds {_LARGEST_CAPTURE}", "Use a smaller size.")


def _check_modes(config: EngineConfig) -> None:
    modes = config.modes
    if not modes or "idle" in modes or len(set(modes)) != len(modes):
        refuse(
            "config.modes",
            modes,
            "must name each captured mode once, idle excepted",
            "List for example ['decode'].",
        )
    if set(modes) != {"prefill"} and not config.capture_bs:
        refuse("config.capture_bs", (), "is empty", "Name at least one batch size, e.g. [1].")
    if "prefill" in modes and not config.capture_tokens:
        refuse(
            "config.capture_tokens",
            (),
            "is empty although prefill is captured",
            "Name at least one token count, e.g. [8].",
        )


def _check_heads(config: EngineConfig) -> None:
    if config.num_q_heads % config.num_kv_heads:
        refuse(
            "config.num_q_heads",
            config.num_q_heads,
            f"is not a multiple of num_kv_heads={config.num_kv_heads}",
            "Raise num_q_heads, or lower num_kv_heads to a divisor of it.",
        )
    if config.attention != "mla":
        return
    if config.num_kv_heads != 1 or config.v_head_dim > config.head_dim:
        refuse(
            "config.attention",
            "mla",
            f"needs num_kv_heads=1 and v_head_dim <= head_dim; got {config.num_kv_heads} and "
            f"{config.v_head_dim} > {config.head_dim}",
            "Change these or use 'mha'.",
        )


def _check_ranks(config: EngineConfig) -> None:
    for kind in ("attn_tp", "dp", "ep"):
        rank, size = getattr(config, f"{kind}_rank"), getattr(config, f"{kind}_size")
        if rank >= size:
            refuse(
                f"config.{kind}_rank", rank, f"must be below {kind}_size={size}", "Lower the rank."
            )
    if config.row_mixing == "router" and config.attn_tp_size == 1:
        refuse(
            "config.row_mixing",
            "router",
            "counts the tokens of one of several ranks; got attn_tp_size=1",
            "Raise attn_tp_size, or choose another row_mixing.",
        )
    mixed = config.row_mixing != "none" or config.modes != ("prefill",)
    if config.dp_size > 1 and "prefill" in config.modes and mixed:
        refuse(
            "config.dp_size",
            config.dp_size,
            "counts tokens of prefills where nothing else is captured, and rows stay apart; got "
            f"modes {list(config.modes)} and row_mixing={config.row_mixing!r}",
            "Use modes=['prefill'] and row_mixing='none', or dp_size=1.",
        )


def _check_prefill(config: EngineConfig) -> None:
    """Full graphs alone have an axis of requests; images are in prompts."""
    if config.image_len and (config.modes != ("prefill",) or config.swa_window):
        refuse(
            "config.image_len",
            config.image_len,
            "is of prompts, for a model with layers of one kind; got modes "
            f"{list(config.modes)} and swa_window={config.swa_window}",
            "Use modes=['prefill'] without a window.",
        )
    slots, full = config.prefill_slots, config.prefill_runner == "full"
    if slots > 1 and not full:
        refuse(
            "config.prefill_slots",
            slots,
            f"are those of full graphs; got prefill_runner={config.prefill_runner!r}",
            "Use prefill_runner='full', or 1 slot.",
        )
    if slots > config.req_pool_size:
        refuse(
            "config.prefill_slots",
            slots,
            f"must be at most req_pool_size={config.req_pool_size}",
            "Lower it, or raise req_pool_size.",
        )


def _check_experts(config: EngineConfig) -> None:
    """Experts are shared out evenly, over ranks that all compute the same tokens: those of one
    rank, or those that data-parallel ranks have gathered."""
    experts, ranks, each = config.num_experts, config.ep_size, config.experts_per_token
    if each > max(experts, 1):
        refuse(
            "config.experts_per_token",
            each,
            f"must be at most num_experts={experts}",
            "Lower it, or raise num_experts.",
        )
    if ranks > 1 and (not experts or experts % ranks):
        refuse(
            "config.ep_size",
            ranks,
            f"must share out num_experts={experts} evenly",
            "Change one of them.",
        )
    if ranks > 1 and config.attn_tp_size > 1:
        refuse(
            "config.ep_size",
            ranks,
            "counts ranks that compute the same tokens; those of attn_tp_size have their own",
            "Use 1 for one of them.",
        )
    data_ranks = config.dp_size, config.dp_rank
    if config.dp_size > 1 and experts and (ranks, config.ep_rank) != data_ranks:
        refuse(
            "config.ep_size",
            ranks,
            "must be dp_size, and ep_rank dp_rank, for data-parallel ranks share out the experts; "
            f"got ep_rank={config.ep_rank}, dp_size={config.dp_size}, dp_rank={config.dp_rank}",
            "Use the same for both, or dp_size=1.",
        )
    if config.expert_exchange != "scatterv" and not (config.dp_size > 1 and experts):
        refuse(
            "config.expert_exchange",
            config.expert_exchange,
            "is of data-parallel ranks with experts; got "
            f"dp_size={config.dp_size} and num_experts={experts}",
            "Use 'scatterv', or several ranks with experts.",
        )


def _check_decode_only(config: EngineConfig) -> None:
    """Features that exist in decode alone, or in prefills or verifies of a chain too."""
    if config.modes == ("decode",):
        return
    alone = config.modes in (("prefill",), ("target_verify",)) and config.spec_topk == 1
    if config.recurrent_state and not alone:
        refuse(
            "config.recurrent_state",
            True,
            "needs modes=['decode'], ['prefill'], or ['target_verify'] with spec_topk=1; got "
            f"{list(config.modes)} and spec_topk={config.spec_topk}",
            "Drop one of them.",
        )
    if config.runner == "cpu_graph":
        refuse(
            "config.runner",
            "cpu_graph",
            f"captures decode only; got modes {list(config.modes)}",
            "Use runner='graph'.",
        )
