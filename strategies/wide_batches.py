"""Batches past the blocks of rows that kernels plan or fill at once: rare, of short, narrow rows.

A server captures up to hundreds of rows. What goes wrong behind row 64, 128 or 256 of a batch shows
in no smaller one.
"""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.splitmix import Chance
from fuzzgraph.strategies.config_features import Fields, narrow_rows

_BLOCKS = (64, 128, 256)
"""Rows of a batch that a program of sglang's and FlashInfer's planners takes at once."""
_BEYOND = (1, 2, 9)
_SLOTS = 1 << 14
"""Upper bound of the slots that all rows of a wide batch own, each with a whole context."""
_SHORT = 12
"""Tokens of a context, where a page needs no more."""
_SHARE = 2
"""Percent of configs."""
_ABOVE = 25
"""Percent of them whose graphs end far below, so that wide batches run without one in between."""
_FEATURE = 98
"""No feature of `config_features` has this number, so that these draws depend on none of theirs."""


def is_wide(req_pool_size: int) -> bool:
    """Whether batches of so many requests go past the first block of rows."""
    return req_pool_size > _BLOCKS[0]


def widen_batch(fields: Fields, can: Capabilities, number: int) -> None:
    """Two of a hundred configs, by their number, have a wide batch, for a target that runs them."""
    chance = Chance(number, _FEATURE)
    page = fields["page_size"]
    short = min(max(min(fields["max_context_len"], _SHORT), page), can.max_context_len)
    wide = [
        block + beyond
        for block in _BLOCKS
        for beyond in _BEYOND
        if block + beyond <= can.max_wide_batch
        and (block + beyond) * -(-short // page) * page <= _SLOTS
    ]
    if not wide or "prefill" in fields["modes"] or not chance.percent(_SHARE):
        return
    rows = chance.pick(wide)
    smallest = fields["capture_bs"][:1]
    sizes = (*smallest, rows) if chance.percent(50) else (rows,)
    if can.eager_steps and chance.percent(_ABOVE):
        sizes = smallest
        fields["eager_above_ladder"] = True
    fields.update(max_context_len=short, capture_bs=sizes, req_pool_size=rows)
    narrow_rows(fields, can)
