"""Constructors of the fields that every engine's graph runner has, under the names it gives them.

`source` says where the engine promises the padding; what live entries hold follows from the kind of
field. See `fuzzgraph.fields.Field`.
"""

from __future__ import annotations

from fuzzgraph.case import Mode
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.world import RESERVED_PAGE, RESERVED_ROW, RESERVED_SLOT

__all__ = [
    "FREE",
    "lengths",
    "offsets",
    "page_table",
    "per_token",
    "request_rows",
    "slot_indices",
    "value",
    "write_slots",
]

FREE = PaddingRule("free")
_SPAN = PaddingRule("reserved")
"""A padded row spans what it may read: that is judged by the field which the offsets cut."""


def per_token(name: str, *, source: str = "") -> Field:
    """[tokens] that select no memory: token ids, positions. Padded tokens may hold anything."""
    return Field(name, "tokens", "nothing", FREE, source=source)


def request_rows(name: str = "req_pool_indices", *, source: str = "") -> Field:
    """[rows] of the request pool; padded rows name the reserved one."""
    padding = PaddingRule("reserved", RESERVED_ROW)
    return Field(name, "requests", "row", padding, source=source, repeats="req_pool_indices")


def lengths(
    name: str = "seq_lens", *, fill: int, repeats: str = "seq_lens", source: str = ""
) -> Field:
    """[rows] counts of tokens; padded rows hold `fill`, which the backend chooses."""
    padding = PaddingRule("fill", fill)
    return Field(name, "requests", "length", padding, source=source, repeats=repeats)


def write_slots(name: str, *, skip: int | None = None, source: str = "") -> Field:
    """[tokens] slots that receive new KV; a padded one is the reserved slot, or `skip`."""
    padding = PaddingRule("reserved", RESERVED_SLOT)
    if skip is not None:
        padding = PaddingRule("skip", skip)
    return Field(name, "tokens", "slot", padding, source=source, repeats="slot_mapping")


def offsets(
    name: str,
    *,
    repeats: str = "",
    unjudged: str = "",
    padding: PaddingRule = _SPAN,
    dummy: PaddingRule | None = None,
    in_modes: tuple[tuple[Mode, PaddingRule], ...] = (),
    source: str = "",
) -> Field:
    """[rows + 1] prefix sums, int32, whose steps are `repeats`."""
    return Field(
        name, "indptr", "offset", padding, source=source, repeats=repeats, unjudged=unjudged,
        dummy=dummy, in_modes=in_modes,
    )  # fmt: skip


def slot_indices(name: str = "kv_indices", *, rewritten: bool = False, source: str = "") -> Field:
    """Slots of each row's KV, one row after the other, cut by the offsets of the same name."""
    padding = PaddingRule("reserved", RESERVED_SLOT)
    return Field(name, "indices", "slot", padding, rewritten, source=source)


def page_table(
    name: str = "page_table",
    *,
    rewritten: bool = False,
    whole_rows: bool = False,
    source: str = "",
) -> Field:
    """[rows, pages] pages of each row; a padded row names the reserved one."""
    padding = PaddingRule("reserved", RESERVED_PAGE)
    return Field(
        name, "page_table", "page", padding, rewritten, source=source, whole_rows=whole_rows
    )


def value(name: str, *, repeats: str = "", unjudged: str = "", source: str = "") -> Field:
    """Numbers that select no memory; what is beyond the live ones may hold anything."""
    return Field(name, "scalar", "nothing", FREE, source=source, repeats=repeats, unjudged=unjudged)
