"""What is kept of keys and values, and which of them a query sees."""

from __future__ import annotations

from fuzzgraph.case.config_rules.beside import set_among
from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import EngineConfig

_MOST_LAYERS = 8
"""Layers of a model that a case may name: each has a pool of its own."""
_FP4_BLOCK = 16
"""Of `fuzzgraph.nvfp4`, which is made of tensors."""


def check_heads(config: EngineConfig) -> None:
    """Query heads share KV heads evenly; a latent row is key and value in one."""
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


def check_fp4(config: EngineConfig) -> None:
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


def check_unit_scale(config: EngineConfig) -> None:
    """A scale of one is that of keys and values in FP8."""
    if config.unit_kv_scale and config.kv_dtype != "float8_e4m3fn":
        refuse(
            "config.unit_kv_scale",
            config.unit_kv_scale,
            f"is about KV in FP8; got kv_dtype={config.kv_dtype!r}",
            "Set kv_dtype to 'float8_e4m3fn', or drop it.",
        )


def check_second_group(config: EngineConfig) -> None:
    """A page size of its own needs a second KV cache group."""
    if config.swa_page_size and not config.swa_window:
        refuse(
            "config.swa_page_size",
            config.swa_page_size,
            "is that of a second KV cache group; got swa_window=0",
            "Set swa_window, or drop it.",
        )


def check_virtual_pages(config: EngineConfig) -> None:
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


def check_chunks(config: EngineConfig) -> None:
    """Chunks are whole pages, and the only bound of what a query sees."""
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


def check_index_layer(config: EngineConfig) -> None:
    """Keys of one token or two alone are shared, and candidates are blocks."""
    beside = set_among(config, ("candidate_blocks", "index_layer"))
    if beside and config.kv_compression not in ("c1", "c2"):
        refuse(
            f"config.{beside[0]}",
            getattr(config, beside[0]),
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


SCORED = ("c4", "c1", "c2")
"""Compressed keys that an indexer scores."""


def check_index_logits(config: EngineConfig) -> None:
    """Memory is short for scores where keys have some (sglang 0.5.21, dsv4/metadata.py)."""
    if config.index_logits_bytes and config.kv_compression not in SCORED:
        refuse(
            "config.index_logits_bytes",
            config.index_logits_bytes,
            f"needs kv_compression among {', '.join(SCORED)}; got {config.kv_compression!r}",
            "Set that, or drop it.",
        )


def check_index_gathering(config: EngineConfig) -> None:
    """Prompts of DeepSeek V4 alone may gather keys (sglang 0.5.16, dsv4/indexer.py)."""
    if set_among(config, ("index_gather_threshold",)) and config.kv_compression != "c4":
        refuse(
            "config.index_gather_threshold",
            config.index_gather_threshold,
            f"needs kv_compression='c4'; got {config.kv_compression!r}",
            "Set that, or drop it.",
        )


WITHOUT_CAP = ("attention", "max_encoder_len", "index_topk", "kv_compression", "recurrent_state")
"""Dimensions whose layers have no cap of logits."""


def check_logit_cap(config: EngineConfig) -> None:
    """Caps are those of layers with heads of their own, which see keys of one kind."""
    others = set_among(config, WITHOUT_CAP)
    if config.logit_cap and others:
        refuse(
            "config.logit_cap",
            config.logit_cap,
            "is of models with one kind of attention and of keys; got "
            + ", ".join(f"{name}={getattr(config, name)!r}" for name in others),
            "Change it, or use 0.",
        )


WITHOUT_BLOCKS = (
    "index_group", "kv_compression", "swa_window", "recurrent_state", "max_encoder_len",
)  # fmt: skip
"""Dimensions whose layers are not beside one that selects blocks of keys."""


def check_index_block(config: EngineConfig) -> None:
    """Blocks are selected of all keys, in a model with a layer before that has one group."""
    size = config.index_block
    if not size:
        return
    if size & (size - 1):
        refuse("config.index_block", size, "must be a power of two", "Take 16, or 128.")
    others = set_among(config, WITHOUT_BLOCKS)
    if others or not config.index_topk:
        refuse(
            "config.index_block",
            size,
            f"needs index_topk > 0 and no layers of other kinds; got {config.index_topk}"
            + "".join(f", {name}={getattr(config, name)}" for name in others),
            "Change them, or drop it.",
        )


WITHOUT_LAYER_TYPES = (
    "index_topk", "index_block", "kv_compression", "max_encoder_len", "image_len",
    "later_stage", "drafted_blocks",
)  # fmt: skip
"""Dimensions of models whose layers are not named one by one."""


def check_layer_types(config: EngineConfig) -> None:
    """Layers are of the two kinds that the config has, at least one of each."""
    if not config.layer_types:
        return
    kinds = {"full_attention"}
    kinds |= {"sliding_attention"} if config.swa_window else set()
    kinds |= {"linear_attention"} if config.recurrent_state else set()
    many = len(config.layer_types) > _MOST_LAYERS
    if len(kinds) != 2 or set(config.layer_types) != kinds or many:
        refuse(
            "config.layer_types",
            list(config.layer_types),
            f"needs layers that see all keys beside those of one other kind, and at most"
            f" {_MOST_LAYERS}; got swa_window={config.swa_window} and"
            f" recurrent_state={config.recurrent_state}",
            "Name each of the two kinds, or drop it.",
        )
    beside = set_among(config, WITHOUT_LAYER_TYPES)
    beside += [mode for mode in config.modes if mode in ("draft", "draft_extend")]
    if beside:
        refuse(
            "config.layer_types",
            list(config.layer_types),
            f"is that of a model whose layers have keys of their own; got {', '.join(beside)}",
            "Change it, or drop layer_types.",
        )


def check_sparse_kernel(config: EngineConfig) -> None:
    """Source: sgl-kernel flash_attn.py `is_fa3_supported`; sglang's overrides.py leaves
    FlashAttention 3 to devices below compute capability 10 (`_dsa_split_backend_resolution`)."""
    if config.compute_capability == 10 and config.sparse_kernel == "fa3":
        refuse(
            "config.compute_capability",
            config.compute_capability,
            "has no FlashAttention 3; got sparse_kernel='fa3'",
            "Use 9, or sparse_kernel='flashmla_sparse'.",
        )


LEAST_POOLED_BLOCK = 8
"""Keys of the shortest block: a pooled key then is the mean of four."""
FORCED_BLOCKS = 3
"""The first block and the two newest, which a row selects whatever it thinks of them."""
POOLED_BLOCKS = 8
"""Blocks of a row that pooled keys tell apart."""
POOLED_WIDTH = 32
"""Columns of a key that do so (`fuzzgraph.pooled_blocks`), which are all that it has."""
WITHOUT_POOLED = (
    "attention", "kv_dtype", "sliding_window", "attention_chunk_size", "index_group", "index_block",
    "kv_compression", "swa_window", "recurrent_state", "max_encoder_len", "logit_cap",
)  # fmt: skip
"""Dimensions whose layers do not select blocks by pooled keys."""


def check_pooled_blocks(config: EngineConfig) -> None:
    """Pooled keys have columns for what a query prefers, and a context has room for a selection.

    Source of the bounds: sglang 0.5.19 to 0.5.23, minicpm/backend.py, constructor of
    MiniCPMSparseBackend (`required_context_len`). A row that selects has a key of either level.
    """
    size, count, context = config.pooled_block, config.index_topk, config.max_context_len
    if not size:
        if config.dense_len:
            refuse("config.dense_len", config.dense_len, "needs pooled_block > 0", "Drop it.")
        return
    if size & (size - 1) or size < LEAST_POOLED_BLOCK:
        rule = f"must be a power of two, {LEAST_POOLED_BLOCK} at least"
        refuse("config.pooled_block", size, rule, "Take 32.")
    others = set_among(config, WITHOUT_POOLED)
    if others:
        said = ", ".join(f"{name}={getattr(config, name)!r}" for name in others)
        refuse("config.pooled_block", size, f"is not beside {said}", "Change them, or drop it.")
    if count < FORCED_BLOCKS:
        rule = f"must hold the {FORCED_BLOCKS} blocks that a row always selects"
        refuse("config.index_topk", count, rule, "Raise it, or drop pooled_block.")
    if not 2 * size <= config.dense_len <= context:
        rule = f"must be two blocks of {size} keys at least, and {context} at most"
        refuse("config.dense_len", config.dense_len, rule, "Change it, or drop pooled_block.")
    if not count * size <= context <= POOLED_BLOCKS * size:
        rule = f"must hold {count} blocks of {size} keys, and {POOLED_BLOCKS} at most"
        refuse("config.max_context_len", context, rule, "Change it, or drop pooled_block.")
    if config.head_dim != POOLED_WIDTH:
        rule = f"must be {POOLED_WIDTH}: of wider keys two blocks may seem equally good"
        refuse("config.head_dim", config.head_dim, rule, "Change it, or drop pooled_block.")
