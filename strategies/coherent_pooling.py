"""Blocks that are selected by pooled keys, made to agree with a config's other sizes."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS
from fuzzgraph.case.config_rules import FORCED_BLOCKS, POOLED_BLOCKS
from fuzzgraph.strategies.config_features import Fields, Pins
from fuzzgraph.strategies.draws import Draws

_BEYOND = (0, 8, 1, 17, 3, 24)
"""Keys of a context beyond whole blocks. Where it ends less than five keys before a place where a
pooled key may end, replays fail (see reports/findings/sglang-minicpm-context.md): `_FAILING`."""
_FAILING = 13
_RARE = 8
"""Percent of the configs whose contexts fail."""
_SHORT = (0, 1, -1)
"""Keys by which the first rows that select are longer than whole blocks."""


def pooled_blocks(fields: Fields, can: Capabilities, pins: Pins, draws: Draws) -> None:
    """A context with more blocks than are selected, and a length from which on rows select."""
    sizes = [size for size in can.pooled_blocks if size]
    if not sizes or 0 in can.pooled_blocks:
        for name in ("pooled_block", "dense_len"):
            fields[name] = DIMENSIONS[name].default
        return
    fixed, drawn = dict(pins), fields["max_context_len"]
    size = fields["pooled_block"] = fields["pooled_block"] or sizes[0]
    count = fields["index_topk"] = max(FORCED_BLOCKS, fields["index_topk"])
    most = min(POOLED_BLOCKS * size, can.max_context_len)
    # What agrees already stays: a config is mended more than once.
    if "max_context_len" not in fixed and not size * count <= drawn <= most:
        blocks = count + draws.below("pooled_block", max(1, POOLED_BLOCKS - count))
        failing = draws.percent("pooled_block", _RARE)
        beyond = _FAILING if failing else draws.pick("pooled_block", _BEYOND)
        fields["max_context_len"] = min(size * blocks + beyond, most)
    context = fields["max_context_len"]
    if "dense_len" not in fixed and not 2 * size <= fields["dense_len"] <= context:
        least = size * (count - 1 + draws.below("dense_len", 3)) + draws.pick("dense_len", _SHORT)
        fields["dense_len"] = max(2 * size, min(least, context))
