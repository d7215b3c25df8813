"""What a config says of recurrent states, brought into agreement with the rest of it."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzgraph.capabilities import Capabilities, prompt_interval
from fuzzgraph.case import DIMENSIONS
from fuzzgraph.strategies.config_features import Fields
from fuzzgraph.strategies.draws import Draws

_DRAWN: Mapping[tuple[str, ...], tuple[int, ...]] = {
    ("decode",): (0, 4, 0, 8, 0, 4),
    ("target_verify",): (0, 4, 0, 8, 0),
    ("draft_extend",): (0, 4, 0, 0, 8, 0),
}
"""Modes of a config -> intervals in tokens, 0 for none."""


def tracked_states(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Half the configs of a target that keeps states for a prefix cache do so, of verifies two
    fifths, for the others commit states by calls of their own, and a third of those whose draft
    model is told of them: behind 4 or 8 tokens, no fewer than drafts, or a page."""
    modes = fields["modes"]
    tracks = can.state_tracking and (fields["recurrent_state"] or modes == ("draft_extend",))
    if tracks and modes == ("prefill",):
        _tracked_prompts(fields, can, draws)
    elif not tracks or modes not in _DRAWN or _draws_trees(fields):
        fields["state_track_interval"] = DIMENSIONS["state_track_interval"].default
    elif not fields["state_track_interval"]:
        drawn = draws.pick("state_track_interval", _DRAWN[modes])
        drawn = max(drawn, fields["draft_tokens"]) if drawn else 0
        fields["state_track_interval"] = drawn + -drawn % fields["page_size"]
    may = can.prefix_branches and fields["state_track_interval"] and modes == ("prefill",)
    drawn = fields["prefix_branches"] or draws.percent("prefix_branches", 50)
    fields["prefix_branches"] = bool(may and drawn)


def _draws_trees(fields: Fields) -> bool:
    return bool(fields["modes"] == ("target_verify",) and fields["spec_topk"] > 1)


def _tracked_prompts(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Prompts that keep states, in a quarter of the configs since they are long: of one to three
    intervals, in graphs that hold at least one."""
    drawn, interval = fields["max_context_len"], prompt_interval(can, fields["page_size"])
    if not interval or not draws.percent("state_track_interval", 25):
        fields["state_track_interval"] = DIMENSIONS["state_track_interval"].default
        return
    fields["state_track_interval"] = interval
    lengths = (interval + 1, 2 * interval, 2 * interval + 9, 3 * interval - 1)
    longest = max(drawn, draws.pick("state_track_interval", lengths))
    fields["max_context_len"] = context = min(longest, can.max_context_len)
    held = draws.pick("state_track_interval", (interval, interval + 8, 2 * interval - 1))
    smaller = {size for size in fields["capture_tokens"] if size < interval}
    largest = min(held, fields["req_pool_size"] * context)
    fields["capture_tokens"] = tuple(sorted({*smaller, largest}))


def few_states(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Fewer states than rows in a third of the configs, for a target that has such pools: a
    request's row may then lie beyond the number of states."""
    rows = fields["req_pool_size"]
    has_states = fields["recurrent_state"] and fields["modes"] == ("decode",)
    if not (can.few_states and has_states and rows > 1) or fields["state_pool_size"]:
        return
    if draws.percent("state_pool_size", 33):
        fields["state_pool_size"] = draws.pick("state_pool_size", (rows // 2, rows - 1))


_RINGS = (0, 2, 3, 1, 2, 0, 4, 3, 16)
"""Lengths of rings, 0 for none."""
_FLUSHES = (0, 4, 0, 3, 5)
_LONGEST, _LONGER = 64, {1: 0, 16: 2}
"""Of rings of verifies; and how often they are twice as long as need be, by what is drawn: else
once. The shortest ones are emptied behind each verify."""


def state_rings(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Two thirds of the configs that keep no states besides have a ring, where the target has them,
    mostly so short that it fills in a case. Half of those write states at some lengths, too. Of
    verifies two thirds have one, with room for two to eight of them."""
    may = can.state_rings and fields["recurrent_state"]
    decodes = may and fields["modes"] == ("decode",) and not fields["state_track_interval"]
    verifies = may and fields["modes"] == ("target_verify",) and fields["spec_topk"] == 1
    if not (decodes or verifies):
        fields["state_ring_len"] = DIMENSIONS["state_ring_len"].default
    elif not fields["state_ring_len"] or verifies:
        drawn = fields["state_ring_len"] or draws.pick("state_ring_len", _RINGS)
        fields["state_ring_len"] = _of_verifies(drawn, fields["draft_tokens"], verifies=verifies)
    if not (can.state_flushes and decodes and fields["state_ring_len"]):
        fields["state_flush_interval"] = DIMENSIONS["state_flush_interval"].default
    elif not fields["state_flush_interval"]:
        fields["state_flush_interval"] = draws.pick("state_flush_interval", _FLUSHES)


def safe_gates(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Half the configs of a target whose layers may bound their decays do so, but for decodes with
    rings."""
    decodes_by_ring = fields["state_ring_len"] and fields["modes"] == ("decode",)
    if not (can.safe_gates and fields["recurrent_state"]) or decodes_by_ring:
        fields["safe_gate"] = DIMENSIONS["safe_gate"].default
    elif draws.percent("safe_gate", 50):
        fields["safe_gate"] = True


_WIDE_PROMPTS, _WIDE_HEADS = 20, 12
"""Percent of the configs of prompts, and of the others, whose recurrent layers have heads as models
have them: prompts take little longer with them, verifies twice as long."""


def linear_heads(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Wide heads in a few configs with recurrent layers, where a target has them."""
    wide = [dim for dim in can.linear_head_dims if dim]
    if not (wide and fields["recurrent_state"]):
        fields["linear_head_dim"] = DIMENSIONS["linear_head_dim"].default
        return
    share = _WIDE_PROMPTS if fields["modes"] == ("prefill",) else _WIDE_HEADS
    if draws.percent("linear_head_dim", share):
        fields["linear_head_dim"] = draws.pick("linear_head_dim", wide)


def _of_verifies(ring: int, drafts: int, *, verifies: bool) -> int:
    """The length of a ring of verifies: a power of 2 with room for two of them, at least."""
    if not (verifies and ring):
        return ring
    least = 1 << (2 * drafts - 1).bit_length()
    if ring >= least and not ring & (ring - 1):
        return ring
    return min(least << _LONGER.get(ring, 1), _LONGEST)
