"""Prompts in graphs, made to agree with what else a config has."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS
from fuzzgraph.case.config_rules.beside import set_among
from fuzzgraph.case.config_rules.prompts import NOT_OF_ENCODERS
from fuzzgraph.case.prefix_parts import expands_past
from fuzzgraph.strategies.config_features import Fields, Pins
from fuzzgraph.strategies.draws import Draws

_MOST_CHUNKS = 8
"""Of a context, where the batch has all requests."""
_FULL_TOKENS = 64
"""Upper bound of a prefill graph's tokens where they are as many as all its requests may have."""


def prefill_slots(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Room for one to all requests in full prefill graphs, none of which has more tokens than its
    requests may have."""
    if fields["prefill_runner"] != "full" or "prefill" not in fields["modes"]:
        fields["prefill_slots"] = DIMENSIONS["prefill_slots"].default
        return
    context, sizes = fields["max_context_len"], fields["capture_tokens"]
    if fields["prefill_slots"] == 1:
        drawn = 1 + draws.below("prefill_slots", can.max_prefill_slots)
        needed = -(-sizes[-1] // context)
        fields["prefill_slots"] = max(drawn, min(needed, can.max_prefill_slots))
    slots = fields["prefill_slots"] = min(fields["prefill_slots"], fields["req_pool_size"])
    most = slots * context
    within = {size for size in sizes if size <= most}
    shared = most <= _FULL_TOKENS and most % fields["attn_tp_size"] == 0
    whole = shared and draws.percent("capture_tokens", 50)
    if not within or whole:  # a graph that all requests fill together
        within.add(most)
    fields["capture_tokens"] = tuple(sorted(within))


def prefix_chunks(fields: Fields, can: Capabilities, pins: Pins, draws: Draws) -> None:
    """When and how much of a past is expanded at once, each of a target's values as often; contexts
    of all requests have eight chunks at most, as those of servers have few."""
    has = {
        "chunked_prefix_cache_threshold": can.prefix_thresholds,
        "max_kv_chunk_capacity": can.kv_chunk_capacities,
    }
    if not expands_past(fields):
        fields.update({name: DIMENSIONS[name].default for name in has})
        return
    for name in has.keys() - dict(pins).keys():
        if fields[name] == has[name][0]:
            fields[name] = draws.pick(name, has[name])
    least = fields["req_pool_size"] * -(-fields["max_context_len"] // _MOST_CHUNKS)
    fields["max_kv_chunk_capacity"] = max(fields["max_kv_chunk_capacity"], least)


def image_encoder(fields: Fields, can: Capabilities) -> None:
    """An encoder wherever nothing else is drawn that none has; called last."""
    alone = fields["modes"] == ("prefill",) and fields["attention"] == "mha"
    others = set_among(fields, NOT_OF_ENCODERS)
    fields["image_encoder"] = can.image_encoders and alone and not others


def images(fields: Fields, can: Capabilities, pins: Pins, draws: Draws) -> None:
    """Images in a third of the configs, of one token, of a few, or of all but one."""
    context = fields["max_context_len"]
    if not can.images or fields["modes"] != ("prefill",) or fields["swa_window"]:
        fields["image_len"] = DIMENSIONS["image_len"].default
    elif "image_len" in dict(pins) or fields["image_len"]:
        return
    elif draws.percent("image_len", 33):
        fields["image_len"] = max(1, draws.pick("image_len", (1, 3, 2, context - 1)))
