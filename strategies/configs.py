"""Engine configs by number: each number switches a random subset of features on, most off.

Swarm testing: with all features on in every case, some combinations never occur, because one
feature hides another. A config follows from its number, the capabilities and the profile alone.
Each feature can be dropped again by itself, or held to small numbers (`kept`), which is how
Hypothesis' shrinker reaches simple configs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from fuzzgraph.capabilities import (
    Capabilities,
    least_page_numbers,
    page_numbers,
    prompt_interval,
)
from fuzzgraph.case import BOUNDS_OF_KEYS, DIMENSIONS, SPEC_MODES, EngineConfig, group_configs
from fuzzgraph.case.config_rules import WHOLE_BATCHES
from fuzzgraph.splitmix import Chance
from fuzzgraph.strategies.config_features import FEATURES, Feature, Fields, base_fields
from fuzzgraph.strategies.profile import Profile
from fuzzgraph.strategies.wide_batches import is_wide, widen_batch

Supports = Callable[[EngineConfig], bool]
Pins = tuple[tuple[str, tuple[Any, ...]], ...]
"""Fields that a test holds to some values, the simplest first."""
KEPT = 255
"""A feature is kept as it was drawn; 0 drops it, and a small number bounds what it sets."""
ALL_KEPT = (KEPT,) * len(FEATURES)

_POOL_SLOTS = 512
"""Upper bound of page_size times requests, which keeps the pool's tensors small."""
_SIZES = frozenset({"capture_bs", "req_pool_size", "max_context_len"})
"""What a wide batch sets, unless a test holds one of them."""
_RARE = 25
"""Percent below which configs take turns to have a feature, so that no pool goes without it."""
_PLANNED_ITEMS = 1 << 20
"""Upper bound of the work items of a split plan, where an eager prefill has a context of tokens."""
_FULL_TOKENS = 64
"""Upper bound of a prefill graph's tokens where they are as many as all its requests may have."""
_DRAFTED_ELEMENTS = 1 << 17
"""Upper bound of the key elements that one replay of a draft gathers over all its steps, branches
and rows, which keeps the memory of its graphs at a few megabytes."""


def pages_per_request(config: EngineConfig) -> int:
    """Pages that one request can need at most, drafts on each branch and encoder included."""
    topk, steps = (config.spec_topk, config.spec_steps) if "draft" in config.modes else (0, 0)
    encoder = -(-config.max_encoder_len // config.page_size)
    pages = [group.page_size for group in group_configs(config)]
    groups = sum(-(-config.max_context_len // page) for page in pages)
    drafts = sum(topk * (-(-steps // page) + 1) for page in pages)
    return groups + drafts + encoder


def _coherent(fields: Fields, can: Capabilities, pins: Pins = ()) -> EngineConfig:
    """Mend what two features, or their absence, make contradict each other."""
    if fields["num_q_heads"] % fields["num_kv_heads"]:
        fields["num_kv_heads"] = 1
    if fields["attention"] == "mla":
        fields["num_kv_heads"] = 1
        drawn, heads = fields["num_q_heads"], can.latent_heads
        if drawn not in heads:
            # By a size that every case draws, so that each of them comes as often.
            fields["num_q_heads"] = heads[fields["max_context_len"] % len(heads)] or drawn
        widest = max(1, fields["head_dim"] - can.min_rope_dim)
        fields["v_head_dim"] = min(fields["v_head_dim"], widest)
    _built_head_dims(fields, can)
    if fields["kv_dtype"] != "auto":
        fields["dtype"] = can.fp8_kv_beside or fields["dtype"]
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
    if "draft" in fields["modes"]:
        if fields["swa_window"]:  # only drafts of one branch attend
            fields["spec_topk"] = 1
        _bound_draft(fields)
        fields["spec_steps"] = max(fields["spec_steps"], can.min_spec_steps)
    room = fields["draft_tokens"] + 1 if speculates else max(2, can.min_seq_len)
    fields["max_context_len"] = max(fields["max_context_len"], min(room, can.max_context_len))
    fields["draft_tokens"] = min(fields["draft_tokens"], fields["max_context_len"])
    if can.swa_only and not fields["swa_window"]:
        _second_window(fields)
    if can.encoder_only and not fields["max_encoder_len"]:
        # By a size that every case draws, so that each number comes as often.
        fields["max_encoder_len"] = (1, 5, 2, 16, 3, 9)[fields["max_context_len"] % 6]
    for window in ("sliding_window", "swa_window"):
        fields[window] = min(fields[window], fields["max_context_len"])
    _bound_split(fields)
    _whole_chunks(fields, can)
    _tracked_states(fields, can)
    if not fields["swa_window"]:
        fields["swa_page_size"] = DIMENSIONS["swa_page_size"].default
    _virtual_pages(fields)
    if not is_wide(fields["capture_bs"]):
        fields["req_pool_size"] = max(
            1, min(fields["req_pool_size"], _POOL_SLOTS // fields["page_size"])
        )
    _few_states(fields, can)
    _drafted_prompts(fields, can)
    _drafted_blocks(fields, can)
    _ngram_drafts(fields, can)
    _draft_window(fields, can)
    if fields["modes"] == ("draft",) and fields["draft_reach"] not in can.draft_reaches:
        fields["draft_reach"] = can.draft_reaches[0]
    _later_stage(fields, can)
    if "dp_size" not in dict(pins):
        _data_ranks(fields, can)
    if "attn_tp_size" not in dict(pins):
        _ranks_that_share_drafts(fields, can)
    if fields["draft_adapter"]:
        fields["max_loras"] = DIMENSIONS["max_loras"].default
    elif can.loras:  # by a size that every case draws, so that each number comes as often
        fields["max_loras"] = fields["max_loras"] or 1 + fields["max_context_len"] % 3
    if can.experts:
        _experts(fields, can, pins)
    _prefill_slots(fields, can)
    _images(fields, can, pins)
    _two_batches(fields, can)
    if "trtllm_kernel" not in dict(pins):
        _trtllm_kernel(fields, can)
    if "backend_beside" not in dict(pins):
        _backend_beside(fields, can)
    if not can.capture_beyond_pool:
        pool = fields["req_pool_size"]
        within = tuple(size for size in fields["capture_bs"] if size <= pool)
        fields["capture_bs"] = within or (pool,)
    config = EngineConfig(**{**fields, "kv_pool_pages": 1})
    fields["kv_pool_pages"] = fields["req_pool_size"] * pages_per_request(config) + 2
    return EngineConfig(**fields)


def _second_window(fields: Fields) -> None:
    """A window for the second layer, by a size that every case draws."""
    page, context = fields["page_size"], fields["max_context_len"]
    windows = (1, 2, 3, page, page + 1)
    fields["swa_window"] = max(1, min(windows[context % len(windows)], context - 2))


def _virtual_pages(fields: Fields) -> None:
    """Where pages of layers of two kinds have one virtual number; drafts of a step have none."""
    kinds = fields["swa_window"] or fields["recurrent_state"]
    apart = fields["swa_page_size"] not in (0, fields["page_size"]) or fields["max_encoder_len"]
    if not kinds or apart or "draft" in fields["modes"]:
        fields["virtual_pages"] = DIMENSIONS["virtual_pages"].default


def _whole_chunks(fields: Fields, can: Capabilities) -> None:
    """Chunks of one to four pages for a target whose layers attend in chunks; it has no windows."""
    if fields["sliding_window"] or fields["swa_window"]:
        fields["attention_chunk_size"] = DIMENSIONS["attention_chunk_size"].default
    drawn, page = fields["attention_chunk_size"], fields["page_size"]
    if can.attention_chunks and not can.sliding_window and not drawn:
        # By a size that every case draws, so that each of them comes as often.
        drawn = page * (1 + fields["max_context_len"] % 4)
    fields["attention_chunk_size"] = drawn + -drawn % page


def _tracked_states(fields: Fields, can: Capabilities) -> None:
    """Half the configs of a target that keeps states for a prefix cache do so, in decodes behind 4
    or 8 tokens or a page."""
    tracks = can.state_tracking and fields["recurrent_state"]
    if tracks and fields["modes"] == ("prefill",):
        _tracked_prompts(fields, can)
    elif not tracks or fields["modes"] != ("decode",):
        fields["state_track_interval"] = DIMENSIONS["state_track_interval"].default
    elif not fields["state_track_interval"]:
        # By a size that every case draws, so that each of them comes as often.
        drawn = (0, 4, 0, 8, 0, 4)[fields["max_context_len"] % 6]
        fields["state_track_interval"] = drawn + -drawn % fields["page_size"]


def _tracked_prompts(fields: Fields, can: Capabilities) -> None:
    """Prompts that keep states, in a fifth of the contexts since they are long: of one to three
    intervals, in graphs that hold at least one."""
    drawn, interval = fields["max_context_len"], prompt_interval(can, fields["page_size"])
    if not interval or drawn % 5 != 2:
        fields["state_track_interval"] = DIMENSIONS["state_track_interval"].default
        return
    fields["state_track_interval"] = interval
    # By sizes that every case draws, so that each of them comes as often.
    number = drawn // 5 + fields["num_q_heads"]
    lengths = (interval + 1, 2 * interval, 2 * interval + 9, 3 * interval - 1)
    longest = max(drawn, lengths[number % len(lengths)])
    fields["max_context_len"] = context = min(longest, can.max_context_len)
    held = (interval, interval + 8, 2 * interval - 1)[number % 3]
    smaller = {size for size in fields["capture_tokens"] if size < interval}
    largest = min(held, fields["req_pool_size"] * context)
    fields["capture_tokens"] = tuple(sorted({*smaller, largest}))


def _few_states(fields: Fields, can: Capabilities) -> None:
    """Fewer states than rows in a third of the contexts, for a target that has such pools: a
    request's row may then lie beyond the number of states."""
    rows, context = fields["req_pool_size"], fields["max_context_len"]
    has_states = fields["recurrent_state"] and fields["modes"] == ("decode",)
    if can.few_states and has_states and rows > 1 and context % 3 == 0:
        fields["state_pool_size"] = fields["state_pool_size"] or (rows // 2, rows - 1)[context % 2]


def _drafted_prompts(fields: Fields, can: Capabilities) -> None:
    """Drafts behind prompts in half of the contexts, for a target that drives them."""
    verifies = fields["recurrent_state"] and fields["modes"] == ("target_verify",)
    drafts = fields["draft_tokens"] > 1 and fields["spec_topk"] == 1
    may = can.drafted_prompts and verifies and drafts
    drawn = fields["drafted_prompts"] or fields["max_context_len"] % 2 == 0
    fields["drafted_prompts"] = may and drawn


def _drafted_blocks(fields: Fields, can: Capabilities) -> None:
    """One of the kinds that a target has, by a size that every case draws."""
    kinds = can.drafted_blocks
    bounded = [name for name in BOUNDS_OF_KEYS if fields[name]]
    others = bounded or fields["recurrent_state"] or fields["kv_compression"] != "none"
    if others or fields["modes"] != ("target_verify",) or fields["spec_topk"] > 1:
        fields["drafted_blocks"] = DIMENSIONS["drafted_blocks"].default
    elif fields["drafted_blocks"] == kinds[0]:
        fields["drafted_blocks"] = kinds[fields["max_context_len"] % len(kinds)]
    fields["draft_adapter"] = can.draft_adapters and fields["modes"] == ("target_verify",)
    if not can.drafted_windows or fields["drafted_blocks"] == "none":
        fields["drafted_window"] = DIMENSIONS["drafted_window"].default
    elif not fields["drafted_window"] and fields["max_context_len"] % 5 < 2:
        # No window is narrower than a block; contexts have room for some that are wider.
        fields["drafted_window"] = fields["draft_tokens"] + fields["max_context_len"] % 4


def _ngram_drafts(fields: Fields, can: Capabilities) -> None:
    """Drafts that no model makes in a third of the verifies, for a target that has them.

    None are drawn beside virtual pages, and branches of them on pages of one token alone, which is
    what most servers take; a pinned field stays for the target to judge.
    """
    others = fields["draft_adapter"] or fields["drafted_blocks"] != "none"
    refused = fields["virtual_pages"] or (fields["spec_topk"] > 1 and fields["page_size"] > 1)
    if not can.ngram_drafts or others or fields["modes"] != ("target_verify",):
        fields["ngram_drafts"] = DIMENSIONS["ngram_drafts"].default
    elif not fields["ngram_drafts"] and not refused:
        # By sizes that every case draws, so that both kinds come as often as said.
        context, largest = fields["max_context_len"], fields["capture_bs"][-1]
        fields["ngram_drafts"] = (context + largest) % 3 == 0


def _draft_window(fields: Fields, can: Capabilities) -> None:
    """A window in a third of the drafts, with a sink in half of them, for a target that has them;
    most contexts have room for longer rows."""
    bounded = [name for name in BOUNDS_OF_KEYS if fields[name]]
    if not can.draft_windows or bounded or fields["modes"] != ("draft",):
        for name in ("draft_window_size", "draft_sink_size"):
            fields[name] = DIMENSIONS[name].default
        return
    # By sizes that every case draws, so that each number comes as often. The simplest config has
    # no window: older releases run it as well.
    drawn, rest = divmod(fields["max_context_len"] + fields["req_pool_size"], 3)
    if not fields["draft_window_size"] and rest == 1:
        fields["draft_window_size"] = 1 + drawn % 6
        fields["draft_sink_size"] = (0, 1, 0, 2, 0, 3)[(drawn + fields["capture_bs"][-1]) % 6]


def _later_stage(fields: Fields, can: Capabilities) -> None:
    """A later stage of a pipeline in one of seven contexts, for a target that has them.

    None is drawn beside layers with memory of another kind.
    """
    kinds = ("swa_window", "virtual_pages", "max_encoder_len", "recurrent_state")
    apart = any(fields[name] for name in kinds) or set(fields["modes"]) & set(SPEC_MODES)
    if not can.later_stages or apart:
        fields["later_stage"] = DIMENSIONS["later_stage"].default
    else:  # by sizes that every case draws
        drawn = (fields["max_context_len"] + fields["req_pool_size"]) % 7 == 0
        fields["later_stage"] = fields["later_stage"] or drawn


def _data_ranks(fields: Fields, can: Capabilities) -> None:
    """Several data-parallel ranks in four of ten contexts, for a target that has them."""
    context, modes = fields["max_context_len"], fields["modes"]
    mixed = "prefill" in modes and (len(modes) > 1 or fields["row_mixing"] != "none")
    if mixed or can.max_dp_size == 1:
        fields.update(dp_size=1, dp_rank=0)
    elif fields["dp_size"] == 1:
        # By a size that every case draws, so that each of them comes as often.
        fields["dp_size"] = min((8, 1, 2, 1, 2, 1, 1, 1, 1, 4)[context % 10], can.max_dp_size)
        fields["dp_rank"] = context // 10 % fields["dp_size"]


def _ranks_that_share_drafts(fields: Fields, can: Capabilities) -> None:
    """Several attention ranks in half of the verifies beside other data-parallel ranks, where these
    can share the largest graph, and drafts of a row that they cannot share: what runs without a
    graph is padded to tokens that they can."""
    verifies = "target_verify" in fields["modes"] and fields["drafted_blocks"] == "none"
    if fields["dp_size"] == 1 or not verifies or fields["attn_tp_size"] > 1:
        return
    largest, pool = fields["capture_bs"][-1], fields["req_pool_size"]
    shared = [size for size in (4, 2) if not largest % size and largest <= -(-pool // size) * size]
    within = [size for size in shared if size <= can.max_tp_size]
    # By sizes that every case draws, so that each comes as often.
    context, drafts = fields["max_context_len"], fields["draft_tokens"]
    number = context + pool + drafts
    if within and number % 2:
        ranks = fields["attn_tp_size"] = within[number // 2 % len(within)]
        fields["attn_tp_rank"] = number % ranks
        if drafts % ranks == 0 and drafts < min(can.max_draft_tokens, context - 1):
            fields["draft_tokens"] += 1


def _two_batches(fields: Fields, can: Capabilities) -> None:
    """Batches cut in two in a third of the contexts with several data-parallel ranks, for a target
    that cuts them. A server captures even sizes then, which ranks share as without it."""
    apart = any(fields[name] != DIMENSIONS[name].default for name in WHOLE_BATCHES)
    cut = {"decode", "target_verify"} & set(fields["modes"])
    if not can.two_batch_overlap or fields["dp_size"] == 1 or apart or not cut:
        fields["two_batch_overlap"] = DIMENSIONS["two_batch_overlap"].default
        return
    # By sizes that every case draws, so that each comes as often.
    drawn = (fields["max_context_len"] // 2 + fields["req_pool_size"]) % 3 == 0
    fields["two_batch_overlap"] = fields["two_batch_overlap"] or drawn
    if fields["two_batch_overlap"]:
        share = 2 * fields["attn_tp_size"]
        most = -(-fields["req_pool_size"] // share) * share
        even = {-(-size // share) * share for size in fields["capture_bs"]}
        fields["capture_bs"] = tuple(sorted({min(size, most) for size in even}))


def _backend_beside(fields: Fields, can: Capabilities) -> None:
    """Another backend for the other modes in a quarter of the decodes and verifies of a target that
    has some; half of these verifies run on the backend of prefills."""
    others = [name for name in can.backends_beside if name != "none"]
    if not others or fields["modes"] not in (("decode",), ("target_verify",)):
        for name in ("backend_beside", "verifies_as_prefill"):
            fields[name] = DIMENSIONS[name].default
        return
    # By sizes that every case draws, so that each comes as often; the simplest config has none.
    drawn, rest = divmod(fields["max_context_len"] + fields["req_pool_size"], 4)
    largest, heads = fields["capture_bs"][-1], fields["num_q_heads"]
    if fields["backend_beside"] == "none" and (rest + largest) % 4 == 1:
        fields["backend_beside"] = others[(drawn + largest + heads) % len(others)]
        verifies = fields["modes"] == ("target_verify",)
        fields["verifies_as_prefill"] = verifies and (drawn // 2 + largest + heads) % 2 == 0


def _trtllm_kernel(fields: Fields, can: Capabilities) -> None:
    """Each kernel that a target has in as many of its contexts."""
    # By sizes that every case draws, so that each comes as often; the simplest has the first.
    number = fields["max_context_len"] + fields["num_q_heads"] + fields["capture_bs"][-1]
    if fields["trtllm_kernel"] == can.trtllm_kernels[0]:
        fields["trtllm_kernel"] = can.trtllm_kernels[(number + 1) % len(can.trtllm_kernels)]


def _prefill_slots(fields: Fields, can: Capabilities) -> None:
    """Room for one to all requests in full prefill graphs, none of which has more tokens than its
    requests may have."""
    if fields["prefill_runner"] != "full" or "prefill" not in fields["modes"]:
        fields["prefill_slots"] = DIMENSIONS["prefill_slots"].default
        return
    context, sizes = fields["max_context_len"], fields["capture_tokens"]
    if fields["prefill_slots"] == 1:
        # By a size that every case draws, so that each number comes as often.
        drawn = 1 + context % can.max_prefill_slots
        needed = -(-sizes[-1] // context)
        fields["prefill_slots"] = max(drawn, min(needed, can.max_prefill_slots))
    slots = fields["prefill_slots"] = min(fields["prefill_slots"], fields["req_pool_size"])
    most = slots * context
    within = {size for size in sizes if size <= most}
    shared = most <= _FULL_TOKENS and most % fields["attn_tp_size"] == 0
    if not within or (shared and context % 2):  # a graph that all requests fill together
        within.add(most)
    fields["capture_tokens"] = tuple(sorted(within))


def _images(fields: Fields, can: Capabilities, pins: Pins) -> None:
    """Images in a third of the contexts, of one token, of a few, or of all but one."""
    context = fields["max_context_len"]
    if not can.images or fields["modes"] != ("prefill",) or fields["swa_window"]:
        fields["image_len"] = DIMENSIONS["image_len"].default
    elif "image_len" not in dict(pins) and not fields["image_len"] and context % 3 == 2:
        # By a size that every case draws, so that each number comes as often.
        fields["image_len"] = max(1, (1, 3, 2, context - 1)[context // 3 % 4])


def _experts(fields: Fields, can: Capabilities, pins: Pins) -> None:
    """Experts for a target that always has them, on several ranks in half of the contexts."""
    # By sizes that every case draws, so that each number comes as often.
    context, largest, pinned = fields["max_context_len"], fields["capture_bs"][-1], dict(pins)
    if "num_experts" not in pinned:
        fields["num_experts"] = (8, 4, 8, 64, 4)[(context + largest) % 5]
    if "experts_per_token" not in pinned:
        drawn = min(1 + (context // 2 + largest) % 3, can.max_experts_per_token)
        fields["experts_per_token"] = min(drawn, fields["num_experts"])
    alone = fields["attn_tp_size"] == fields["dp_size"] == 1
    if "ep_size" not in pinned and alone and context % 2:
        ranks = min((2, 4)[context // 2 % 2], can.max_ep_size)
        if fields["num_experts"] % ranks == 0:
            fields.update(ep_size=ranks, ep_rank=(context // 4 + largest) % ranks)


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


def _bound_draft(fields: Fields) -> None:
    """Fewer branches, then fewer steps, until what a draft gathers is within its bound."""
    keys = fields["max_context_len"] * fields["num_q_heads"] * fields["head_dim"]
    keys *= max(fields["capture_bs"], default=1)
    topk, steps = fields["spec_topk"], fields["spec_steps"]
    while topk > 2 and topk * steps * keys > _DRAFTED_ELEMENTS:
        topk //= 2
    steps = max(1, min(steps, _DRAFTED_ELEMENTS // (topk * keys)))
    fields.update(spec_topk=topk, spec_steps=steps)


def _build(
    can: Capabilities, profile: Profile, number: int, kept: Sequence[int], pins: Pins
) -> EngineConfig:
    fields = base_fields(can, profile)
    fields |= {name: values[0] for name, values in pins}
    # Percent of the 16 features that follow the density: most configs have one to three, a fifth
    # about six, so that neither a bug that needs several nor one that another hides is missed.
    # 99 is no feature's number, so these draws are independent of all others.
    density = Chance(number, 99).pick((6, 12, 12, 20, 35))
    for feature, keep in zip(FEATURES, kept, strict=True):
        chance = Chance(number, feature.number)
        turn = _by_turns(number, feature) if 0 < feature.share < _RARE else None
        on = chance.percent(feature.share or density) if turn is None else turn
        if number and on and keep:
            before = dict(fields)
            feature.vary(fields, can, profile, chance)
            if keep != KEPT:
                _limit(fields, before, can, keep)
            for name, values in pins:
                if fields[name] not in values:
                    fields[name] = chance.pick(values)
    if number and not _SIZES.intersection(name for name, _ in pins):
        widen_batch(fields, can, number)
    return _coherent(fields, can, pins)


def _limit(fields: Fields, before: Fields, can: Capabilities, most: int) -> None:
    """Hold the numbers that a feature has set to `most` above their least values.

    Of the modes a single one is left, of captured sizes too where they are larger.
    """
    for name, row in DIMENSIONS.items():
        value = fields[name]
        if value == before[name]:
            continue
        if name == "modes":  # one of them; which one is for the shrinker to choose
            fields[name] = (value[(most - 1) % len(value)],)
        elif name in ("capture_bs", "capture_tokens"):
            fields[name] = value if value[-1] <= most else (most,)
        elif name == "page_size":  # a target need not have any other than those it lists
            fields[name] = max((s for s in can.page_sizes if s <= 1 + most), default=value)
        elif row.number:
            fields[name] = min(value, row.least + most)


def _by_turns(number: int, feature: Feature) -> bool:
    """Whether it is this number's turn: `share` of any 100 numbers in a row, evenly spread.

    Chance would leave a feature of 12 percent out of every fifth pool of twelve configs. The factor
    7 keeps features with equal shares from taking the same turns.
    """
    return (number + 7 * feature.number) * feature.share % 100 < feature.share


@lru_cache(maxsize=512)
def swarm_config(
    can: Capabilities,
    profile: Profile,
    number: int,
    kept: tuple[int, ...] = ALL_KEPT,
    supports: Supports | None = None,
    pins: Pins = (),
) -> EngineConfig:
    """The config with this number; 0 is the simplest one, the same in every epoch.

    Where the target does not support it, features are dropped from the last one on until it
    does; the simplest config is taken to be supported.
    """
    config = _build(can, profile, number, kept, pins)
    if supports is None or supports(config):
        return config
    for place in reversed(range(len(FEATURES))):
        without = (*kept[:place], 0, *kept[place + 1 :])
        simpler = _build(can, profile, number, without, pins)
        if simpler != config and supports(simpler):
            return simpler
    for place in reversed(range(len(FEATURES))):
        kept = (*kept[:place], *(0 for _ in FEATURES[place:]))
        config = _build(can, profile, number, kept, pins)
        if supports(config):
            break
    return config


def base_config(can: Capabilities, profile: Profile) -> EngineConfig:
    """The simplest config that the target can express."""
    return swarm_config(can, profile, 0)
