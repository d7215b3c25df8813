"""What a config says of drafts, brought into agreement with the rest of it."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BOUNDS_OF_KEYS, DIMENSIONS
from fuzzgraph.case.config_rules import WITHOUT_BUDGET, set_among
from fuzzgraph.strategies.config_features import Fields, Pins
from fuzzgraph.strategies.draws import Draws

_DRAFTED_ELEMENTS = 1 << 17
"""Upper bound of the key elements that one replay of a draft gathers over all its steps, branches
and rows, which keeps the memory of its graphs at a few megabytes."""

_BLOCK = 16
"""Tokens of a block, unless its model says otherwise (sglang 0.5.23 speculative_hook.py,
`_handle_dflash`)."""


def drafted_prompts(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Drafts behind prompts in half of the verifies, for a target that drives them."""
    verifies = fields["recurrent_state"] and fields["modes"] == ("target_verify",)
    drafts = fields["draft_tokens"] > 1 and fields["spec_topk"] == 1
    may = can.drafted_prompts and verifies and drafts
    drawn = fields["drafted_prompts"] or draws.percent("drafted_prompts", 50)
    fields["drafted_prompts"] = may and drawn


def drafted_blocks(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """One of the kinds that a target has, in two of five with a window."""
    kinds = can.drafted_blocks
    bounded = [name for name in BOUNDS_OF_KEYS if fields[name]]
    others = bounded or fields["recurrent_state"] or fields["kv_compression"] != "none"
    if others or fields["modes"] != ("target_verify",) or fields["spec_topk"] > 1:
        fields["drafted_blocks"] = DIMENSIONS["drafted_blocks"].default
    elif fields["drafted_blocks"] == kinds[0]:
        fields["drafted_blocks"] = draws.pick("drafted_blocks", kinds)
    fields["draft_adapter"] = can.draft_adapters and fields["modes"] == ("target_verify",)
    drafts = fields["drafted_blocks"] != "none"
    verifies = kinds == ("none",) and fields["modes"] == ("target_verify",) and not others
    verifies = verifies and fields["spec_topk"] == 1
    if not can.drafted_windows or not (drafts or verifies):
        fields["drafted_window"] = DIMENSIONS["drafted_window"].default
    elif not fields["drafted_window"] and draws.percent("drafted_window", 40):
        # No window is narrower than a block; contexts have room for some that are wider.
        fields["drafted_window"] = fields["draft_tokens"] + draws.below("drafted_window", 4)


def plan_streams(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """A third of the verifies of a target that may reserve on a stream of its own do so."""
    if not can.plan_streams or fields["modes"] != ("target_verify",):
        fields["plan_stream"] = DIMENSIONS["plan_stream"].default
    elif draws.percent("plan_stream", 33):
        fields["plan_stream"] = True


def whole_blocks(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Blocks as long as DFLASH has them in a third of the configs, for a target that verifies so
    many tokens; contexts have room for some blocks."""
    if can.max_draft_tokens >= _BLOCK and draws.percent("whole_blocks", 33):
        fields["draft_tokens"] = _BLOCK
        fields["max_context_len"] = max(fields["max_context_len"], 3 * _BLOCK + 1)


def draft_models(fields: Fields, can: Capabilities, pins: Pins, draws: Draws) -> None:
    """What differs between draft models: in half of the configs layers chain, or another model's
    backend asks for lengths on the host, or drafts share what was selected before; in a third a
    block's first token is given, or hidden states are joined outside of the layers."""
    verifies = fields["modes"] == ("target_verify",)
    drafts = fields["modes"] == ("draft",)
    blocks = fields["drafted_blocks"] != "none" and fields["draft_tokens"] > 1
    has = {
        "chain_hidden_states": (can.chained_layers and fields["modes"] == ("draft_extend",), 50),
        "outer_join": (can.outer_joins and fields["modes"] == ("prefill",), 33),
        "sample_from_anchor": (can.given_anchors and verifies and blocks, 33),
        "cpu_seq_lens": (can.cpu_seq_lens and verifies, 50),
        "shared_selection": (can.shared_selections and drafts and fields["index_group"] > 1, 50),
    }
    for name, (may, share) in has.items():
        default = DIMENSIONS[name].default
        if not may:
            fields[name] = default
        elif name not in dict(pins) and draws.percent(name, share):
            fields[name] = not default


def sampling(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """One of the ways to sample that a target's verifies have."""
    others = fields["recurrent_state"] or fields["kv_compression"] != "none"
    others = others or fields["ngram_drafts"] or fields["draft_adapter"]
    if others or fields["modes"] != ("target_verify",) or fields["spec_topk"] > 1:
        fields["sampling"] = DIMENSIONS["sampling"].default
    elif fields["sampling"] == can.samplings[0]:
        fields["sampling"] = draws.pick("sampling", can.samplings)


def verify_budget(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """One of a target's budgets in three of five of the configs that may have one."""
    budgets = can.verify_budgets[1:]
    chains = fields["modes"] == ("target_verify",) and fields["spec_topk"] == 1
    if not chains or set_among(fields, WITHOUT_BUDGET):
        fields["verify_budget"] = DIMENSIONS["verify_budget"].default
    elif budgets and fields["verify_budget"] == "none" and draws.percent("verify_budget", 60):
        fields["verify_budget"] = draws.pick("verify_budget", budgets)


def ngram_drafts(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Drafts that no model makes in a third of the verifies, for a target that has them.

    None are drawn beside virtual pages, and branches of them on pages of one token alone, which is
    what most servers take; a pinned field stays for the target to judge.
    """
    others = fields["draft_adapter"] or fields["drafted_blocks"] != "none"
    refused = fields["virtual_pages"] or (fields["spec_topk"] > 1 and fields["page_size"] > 1)
    if not can.ngram_drafts or others or fields["modes"] != ("target_verify",):
        fields["ngram_drafts"] = DIMENSIONS["ngram_drafts"].default
    elif not fields["ngram_drafts"] and not refused:
        fields["ngram_drafts"] = draws.percent("ngram_drafts", 33)


def draft_branches(fields: Fields, can: Capabilities) -> None:
    """Branches whose tokens are chosen, wherever a target has some and keys lie by token."""
    chosen = "chosen" in can.draft_branches and fields["modes"] == ("draft",)
    several = fields["spec_topk"] > 1 and fields["page_size"] == 1
    fields["draft_branches"] = "chosen" if chosen and several else "apart"


def draft_reach(fields: Fields, can: Capabilities) -> None:
    """What steps of a draft see, as a target has it: by a page table, where it has both, the past
    alone."""
    if fields["modes"] != ("draft",):
        return
    if len(can.draft_reaches) > 1:
        fields["draft_reach"] = "past" if fields["page_map"] == "page_table" else "drafts"
    elif fields["draft_reach"] not in can.draft_reaches:
        fields["draft_reach"] = can.draft_reaches[0]


def draft_window(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """A window in a third of the drafts, with a sink in half of them, for a target that has them;
    most contexts have room for longer rows."""
    bounded = [name for name in BOUNDS_OF_KEYS if fields[name]]
    if not can.draft_windows or bounded or fields["modes"] != ("draft",):
        for name in ("draft_window_size", "draft_sink_size"):
            fields[name] = DIMENSIONS[name].default
        return
    # The simplest config has no window: older releases run it as well.
    if not fields["draft_window_size"] and draws.percent("draft_window_size", 33):
        fields["draft_window_size"] = 1 + draws.below("draft_window_size", 6)
        fields["draft_sink_size"] = draws.pick("draft_sink_size", (0, 1, 0, 2, 0, 3))


def usual_steps(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """One step in a third of the drafts that would have one, for a target whose steps share what
    they read."""
    if not draws.percent("spec_steps", 33):
        fields["spec_steps"] = max(fields["spec_steps"], can.usual_spec_steps)


def bound_draft(fields: Fields) -> None:
    """Fewer branches, then fewer steps, until what a draft gathers is within its bound."""
    keys = fields["max_context_len"] * fields["num_q_heads"] * fields["head_dim"]
    keys *= max(fields["capture_bs"], default=1)
    topk, steps = fields["spec_topk"], fields["spec_steps"]
    while topk > 2 and topk * steps * keys > _DRAFTED_ELEMENTS:
        topk //= 2
    steps = max(1, min(steps, _DRAFTED_ELEMENTS // (topk * keys)))
    fields.update(spec_topk=topk, spec_steps=steps)
