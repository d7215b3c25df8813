"""What a config says of recurrent states, brought into agreement with the rest of it."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzgraph.capabilities import Capabilities, prompt_interval
from fuzzgraph.case import DIMENSIONS
from fuzzgraph.strategies.config_features import Fields

_DRAWN: Mapping[tuple[str, ...], tuple[int, ...]] = {
    ("decode",): (0, 4, 0, 8, 0, 4),
    ("target_verify",): (0, 4, 8, 4, 0, 8),
    ("draft_extend",): (0, 4, 0, 0, 8, 0),
}
"""Modes of a config -> intervals in tokens, 0 for none."""


def tracked_states(fields: Fields, can: Capabilities) -> None:
    """Half the configs of a target that keeps states for a prefix cache do so, and a third of those
    whose draft model is told of them: behind 4 or 8 tokens, no fewer than drafts, or a page."""
    modes = fields["modes"]
    tracks = can.state_tracking and (fields["recurrent_state"] or modes == ("draft_extend",))
    if tracks and modes == ("prefill",):
        _tracked_prompts(fields, can)
    elif not tracks or modes not in _DRAWN or _draws_trees(fields):
        fields["state_track_interval"] = DIMENSIONS["state_track_interval"].default
    elif not fields["state_track_interval"]:
        # By a size that every case draws, so that each of them comes as often.
        drawn = _DRAWN[modes][fields["max_context_len"] % 6]
        drawn = max(drawn, fields["draft_tokens"]) if drawn else 0
        fields["state_track_interval"] = drawn + -drawn % fields["page_size"]
    may = can.prefix_branches and fields["state_track_interval"] and modes == ("prefill",)
    drawn = fields["prefix_branches"] or fields["req_pool_size"] % 2 == 0
    fields["prefix_branches"] = bool(may and drawn)


def _draws_trees(fields: Fields) -> bool:
    return bool(fields["modes"] == ("target_verify",) and fields["spec_topk"] > 1)


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


def few_states(fields: Fields, can: Capabilities) -> None:
    """Fewer states than rows in a third of the contexts, for a target that has such pools: a
    request's row may then lie beyond the number of states."""
    rows, context = fields["req_pool_size"], fields["max_context_len"]
    has_states = fields["recurrent_state"] and fields["modes"] == ("decode",)
    if can.few_states and has_states and rows > 1 and context % 3 == 0:
        fields["state_pool_size"] = fields["state_pool_size"] or (rows // 2, rows - 1)[context % 2]


_RINGS = (2, 3, 0, 1, 2, 0, 4, 3, 16)
"""Lengths of rings, 0 for none."""
_FLUSHES = (0, 4, 0, 3, 5)
_LONGEST, _LONGER = 64, {1: 0, 16: 2}
"""Of rings of verifies; and how often they are twice as long as need be, by what is drawn: else
once. The shortest ones are emptied behind each verify."""


def state_rings(fields: Fields, can: Capabilities) -> None:
    """Two thirds of the configs that keep no states besides have a ring, where the target has them,
    mostly so short that it fills in a case. Half of those write states at some lengths, too. Of
    verifies two thirds have one, with room for two to eight of them."""
    may = can.state_rings and fields["recurrent_state"]
    decodes = may and fields["modes"] == ("decode",) and not fields["state_track_interval"]
    verifies = may and fields["modes"] == ("target_verify",) and fields["spec_topk"] == 1
    if not (decodes or verifies):
        fields["state_ring_len"] = DIMENSIONS["state_ring_len"].default
    elif not fields["state_ring_len"] or verifies:
        # By sizes that every case draws, so that each of them comes as often.
        drawn = fields["state_ring_len"] or _RINGS[_sizes(fields) % len(_RINGS)]
        fields["state_ring_len"] = _of_verifies(drawn, fields["draft_tokens"], verifies=verifies)
    if not (can.state_flushes and decodes and fields["state_ring_len"]):
        fields["state_flush_interval"] = DIMENSIONS["state_flush_interval"].default
    elif not fields["state_flush_interval"]:
        fields["state_flush_interval"] = _FLUSHES[_sizes(fields) % len(_FLUSHES)]


def safe_gates(fields: Fields, can: Capabilities) -> None:
    """Half the configs of a target whose layers may bound their decays do so, but for decodes with
    rings."""
    decodes_by_ring = fields["state_ring_len"] and fields["modes"] == ("decode",)
    if not (can.safe_gates and fields["recurrent_state"]) or decodes_by_ring:
        fields["safe_gate"] = DIMENSIONS["safe_gate"].default
    elif (fields["max_context_len"] + fields["req_pool_size"]) % 2:
        # By sizes that every case draws, so that each comes as often.
        fields["safe_gate"] = True


def _of_verifies(ring: int, drafts: int, *, verifies: bool) -> int:
    """The length of a ring of verifies: a power of 2 with room for two of them, at least."""
    if not (verifies and ring):
        return ring
    least = 1 << (2 * drafts - 1).bit_length()
    if ring >= least and not ring & (ring - 1):
        return ring
    return min(least << _LONGER.get(ring, 1), _LONGEST)


def _sizes(fields: Fields) -> int:
    """A number that few configs share."""
    drawn: int = fields["max_context_len"] + fields["capture_bs"][-1] + 3 * fields["num_q_heads"]
    return drawn + len(fields["capture_bs"])
