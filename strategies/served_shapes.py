"""Shapes that servers have: wide heads, ladders to hundreds of rows, contexts of tens of thousands.

For a GPU, whose kernels are compiled for them. Bounded so that a step's KV, which the harness lays
out on the host, stays within some hundred megabytes.
"""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.splitmix import Chance
from fuzzgraph.strategies.config_features import Fields, Pins

_HEADS = ((8, 1), (4, 4), (8, 2), (16, 2), (32, 8), (28, 4))
"""Query and KV heads of one rank; the last is one that is no power of two, as Qwen2.5-7B has it."""
_NARROWEST = 64
"""Columns of a head."""
_LADDERS: tuple[tuple[int, ...], ...] = (
    (1, 2, 4, 8), (8, 16, 24, 32), (16, 32, 48, 64), (32, 64, 96, 128), (1, 128), (160, 256),
)  # fmt: skip
_CONTEXTS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_SLOTS = 1 << 16
"""Upper bound of the slots that all rows of a batch own, each with a whole context."""
_NUMBERS = _SLOTS * 8 * 128
"""The same of the numbers of their keys: wider rows of KV have fewer slots."""
_SET = frozenset((
    "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "capture_bs", "req_pool_size",
    "max_context_len",
))  # fmt: skip
_FEATURE = 97
"""No feature of `config_features` has this number, so that these draws depend on none of theirs."""


def serve(fields: Fields, can: Capabilities, number: int, pins: Pins) -> None:
    """Give a config a server's shapes, as far as the target has them and no test holds others."""
    if not _SET.isdisjoint(name for name, _ in pins):
        return
    chance = Chance(number, _FEATURE)
    if heads := [pair for pair in _HEADS if pair[0] <= can.max_q_heads]:
        fields["num_q_heads"], fields["num_kv_heads"] = chance.pick(heads)
    dims = can.built_heads or ((can.max_head_dim, can.max_head_dim),)
    wide = [pair for pair in dims if min(pair) >= _NARROWEST] or dims[-1:]
    fields["head_dim"], fields["v_head_dim"] = chance.pick(wide)
    fields["max_context_len"] = _context(fields["page_size"], can, chance)
    pages = -(-fields["max_context_len"] // fields["page_size"])
    slots = min(_SLOTS, _NUMBERS // (fields["num_kv_heads"] * fields["head_dim"]))
    rows = min(max(1, slots // (pages * fields["page_size"])), can.max_batch)
    ladders = [each for each in _LADDERS if each[-1] <= rows]
    fields["capture_bs"] = chance.pick(ladders) if ladders else (rows,)
    fields["req_pool_size"] = fields["capture_bs"][-1]


def _context(page: int, can: Capabilities, chance: Chance) -> int:
    """Around whole pages; one that is no longer than a page has none to err in."""
    limit: int = min(can.max_context_len, _CONTEXTS[-1])
    lengths = [each for each in _CONTEXTS if 2 * page < each <= limit] or [limit]
    length = chance.pick(lengths)
    return min(length + chance.pick((-1, 0, 0, 1, page // 2)), limit)
