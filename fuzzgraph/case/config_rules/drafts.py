"""Who drafts, what drafts see, and which of them stay."""

from __future__ import annotations

from fuzzgraph.case.config_rules.beside import also, set_among
from fuzzgraph.case.config_rules.refusal import refuse
from fuzzgraph.case.engine_config import BOUNDS_OF_KEYS, EngineConfig


def check_plan_stream(config: EngineConfig) -> None:
    """Places are reserved for verifies (sglang dflash_info_v2.py, `prepare_for_decode`)."""
    if config.plan_stream and config.modes != ("target_verify",):
        refuse(
            "config.plan_stream",
            True,
            f"needs modes=['target_verify']; got {list(config.modes)}",
            "Change that, or drop it.",
        )


def check_drafted_blocks(config: EngineConfig) -> None:
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
    field = "drafted_blocks" if config.drafted_blocks != "none" else "drafted_window"
    if not set_among(config, [field]):
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
                f"config.{field}",
                getattr(config, field),
                f"needs modes=['target_verify'] and rows that see all keys; got {name}={value}",
                f"Change it, or drop {field}.",
            )


def check_sampling(config: EngineConfig) -> None:
    """Drawn are drafts in one chain, and what stays of them, which no state may depend on."""
    apart = ("recurrent_state", "ngram_drafts", "draft_adapter", "kv_compression")
    others = set_among(config, apart)
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


WITHOUT_BUDGET = (
    "recurrent_state", "ngram_drafts", "draft_adapter", "kv_compression", "drafted_blocks",
    "sampling", "two_batch_overlap", "max_loras",
)  # fmt: skip
"""What no verify by a budget has beside it: two of them the engine refuses (sglang 0.5.23
decode_cuda_graph_runner.py, __init__), the others no target drives."""


def check_verify_budget(config: EngineConfig) -> None:
    """A budget is shared out among chains of greedy drafts, in layers that attend alone."""
    others = set_among(config, WITHOUT_BUDGET)
    chains = config.modes == ("target_verify",) and config.spec_topk == 1
    if config.verify_budget != "none" and (others or not chains):
        refuse(
            "config.verify_budget",
            config.verify_budget,
            "needs modes=['target_verify'], spec_topk=1 and drafts of another model; got "
            f"{list(config.modes)}, spec_topk={config.spec_topk}" + also(config, others),
            "Change them, or use 'none'.",
        )


def check_draft_model(config: EngineConfig) -> None:
    """What one kind of draft model alone has, whose blocks are longer than an anchor."""
    blocks = config.drafted_blocks != "none" and config.draft_tokens > 1
    needs = {
        "chain_hidden_states": (config.modes == ("draft_extend",), "modes=['draft_extend']"),
        "outer_join": (config.modes == ("prefill",), "modes=['prefill']"),
        "sample_from_anchor": (blocks, "drafted_blocks of several tokens"),
        "cpu_seq_lens": (config.modes == ("target_verify",), "modes=['target_verify']"),
    }
    for name in set_among(config, needs):
        met, needed = needs[name]
        if not met:
            refuse(
                f"config.{name}",
                getattr(config, name),
                f"needs {needed}; got modes {list(config.modes)}, drafted_blocks="
                f"{config.drafted_blocks!r} and draft_tokens={config.draft_tokens}",
                "Change them, or drop it.",
            )


def check_branches(config: EngineConfig) -> None:
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


def check_draft_window(config: EngineConfig) -> None:
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


def check_shared_selection(config: EngineConfig) -> None:
    """What is selected before a draft are groups of keys."""
    if config.shared_selection and (config.modes != ("draft",) or config.index_group == 1):
        refuse(
            "config.shared_selection",
            True,
            "needs modes=['draft'] and index_group > 1; got "
            f"{list(config.modes)} and {config.index_group}",
            "Change them, or drop it.",
        )
