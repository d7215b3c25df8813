"""What replay metadata must hold for a batch: counts, live entries, padding, offsets, page maps.

Each rule takes a field's name, what the engine holds (`Entries`: a torch tensor or NumPy array) and
plain facts of the batch, and yields a sentence for each breach. What the facts are for which field
is `oracles.contract`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzzgraph.text.numbers import counted

__all__ = [
    "Entries",
    "counts_live_tokens",
    "counts_no_more_than_there_are",
    "has_dtype",
    "has_entries",
    "holds_live",
    "holds_padding",
    "holds_sum",
    "is_not_negative",
    "is_one_of",
    "names_own_pages",
    "names_own_slots",
    "offsets_ascend",
    "spans_padding",
    "steps_match",
]

Entries = Any


def has_dtype(name: str, got: Entries, *, dtype: str, selects: str) -> Iterator[str]:
    """A kernel reads the bytes as its signature says, whatever the tensor's dtype is."""
    actual = str(got.dtype).removeprefix("torch.")
    if dtype and actual != dtype:
        yield f"{name} must be {dtype}; got {actual}"
    elif "float" in actual and selects != "nothing":
        yield f"{name} selects a {selects} and cannot be {actual}"


def has_entries(name: str, got: Entries, *, padded: int, branches: int = -1) -> Iterator[str]:
    """One entry for each padded row; or one for each branch of a draft, where there are some."""
    if len(got) not in (padded, branches):
        yield f"{name} has {len(got)} entries, the graph has {padded}"


def holds_live(name: str, got: Entries, *, live: list[int]) -> Iterator[str]:
    """The first entries are those of the batch's own rows."""
    flat = got.reshape(-1)
    if len(live) > len(flat):
        yield f"{name} has {len(flat)} entries for {len(live)} live ones"
    elif (values := flat[: len(live)].tolist()) != live:
        at = _first_unequal(values, live)
        yield f"{name}[{at}] is {values[at]}, the batch says {live[at]}"


def holds_padding(
    name: str, got: Entries, *, live: int, stop: int, kind: str, value: int, source: str = ""
) -> Iterator[str]:
    """Behind the live entries, up to `stop`, stands the value that the engine promises there."""
    if live >= min(stop, len(got)):
        return
    tail = got[live:stop].reshape(-1).tolist()
    must = [value] * len(tail)
    if tail != must:
        at = _first_unequal(tail, must)
        promised = f" ({source})" if source else ""
        yield (
            f"{name}[{live + at}] of a padded row is {tail[at]}, must be the {kind} value"
            f" {value}{promised}"
        )


def is_one_of(name: str, got: Entries, *, allowed: list[list[int]]) -> Iterator[str]:
    """All entries are those of one of the lists, in this order."""
    values = got.reshape(-1).tolist()
    if values not in allowed:
        right = " or ".join(map(str, allowed))
        yield f"{name} is {values}, must be {right}"


def is_not_negative(name: str, got: Entries) -> Iterator[str]:
    """A length is at least 0."""
    flat = got.reshape(-1)
    if len(flat) and (least := int(flat.min())) < 0:
        yield f"{name} holds the negative length {least}"


def counts_live_tokens(
    name: str,
    got: Entries,
    *,
    live: int,
    tokens: int,
    padded_tokens: int,
    rank: int,
    ranks: int,
) -> Iterator[str]:
    """The live tokens of this rank: more would let padded rows through, fewer drop live ones."""
    flat = got.reshape(-1)
    if not len(flat) or int(flat[0]) == live:
        return
    whose = f"rank {rank} of {ranks} has {live} live tokens of {tokens}"
    if padded_tokens % ranks:
        whose = f"{ranks} ranks cannot share {padded_tokens} tokens evenly, rank {rank}"
        whose += f" has {live} live ones of {tokens}"
    yield f"{name} is {int(flat[0])}, {whose}"


def holds_sum(name: str, got: Entries, lengths: Entries, *, padded_bs: int) -> Iterator[str]:
    """Builders size what they write by it: padded rows have lengths too."""
    total = int(lengths[:padded_bs].sum())
    if (said := int(got.reshape(-1)[0])) != total:
        rows = counted(padded_bs, "padded row")
        yield f"{name} is {said}, the sum of the lengths of {rows} is {total}"


def counts_no_more_than_there_are(
    name: str, got: Entries, *, padded_bs: int, tokens: int
) -> Iterator[str]:
    """Each row's tokens lie among those that are handed over, one row behind the other."""
    if (said := int(got[:padded_bs].sum())) > tokens:
        yield f"{name} gives {counted(padded_bs, 'row')} {said} tokens, {tokens} are handed over"


def offsets_ascend(name: str, got: Entries, *, padded_bs: int) -> Iterator[str]:
    """Offsets start at 0, never decrease, and there is one more than rows (or branches of rows)."""
    offsets = got.tolist()
    rows, remainder = divmod(len(offsets) - 1, max(padded_bs, 1))
    if remainder or (not rows and padded_bs):  # several for each row, where rows have branches
        yield f"{name} must hold padded_bs + 1 = {padded_bs + 1} offsets; got {len(offsets)}"
    if offsets and offsets[0] != 0:
        yield f"{name} must start at 0; got {offsets[0]}"
    for row, (low, high) in enumerate(zip(offsets, offsets[1:], strict=False)):
        if high < low:
            yield f"{name} decreases from {low} to {high} at row {row}"
            return


def steps_match(name: str, got: Entries, *, live: list[int]) -> Iterator[str]:
    """Offsets give each live row as many entries as the batch says."""
    offsets = got.tolist()
    steps = [high - low for low, high in zip(offsets, offsets[1:], strict=False)]
    if len(steps) < len(live):
        yield f"{name} has {len(steps)} rows for {len(live)} live ones"
    elif steps[: len(live)] != live:
        at = _first_unequal(steps, live)
        yield f"{name} gives row {at} {steps[at]} entries, the batch says {live[at]}"


def spans_padding(
    name: str, got: Entries, *, live: int, stop: int, value: int, source: str = ""
) -> Iterator[str]:
    """Offsets give each row behind the live ones, up to row `stop`, as many entries as promised."""
    offsets = got.tolist()
    for row, (low, high) in enumerate(zip(offsets, offsets[1 : stop + 1], strict=False)):
        if row >= live and high - low != value:
            promised = f" ({source})" if source else ""
            yield f"{name} gives padded row {row} {high - low} entries, must be {value}{promised}"
            return


def names_own_slots(
    name: str,
    got: Entries,
    offsets: Entries,
    *,
    own: list[list[int]],
    drafted: list[list[int]],
    padded_bs: int,
    reserved: int,
    needed: list[list[int]],
    what: str = "slot",
    sink: int = 1,
) -> Iterator[str]:
    """A row names its own slots, each once and in any order; a padded row the reserved one.

    Args:
        own: KV slots of each live row; padding inside a row may name the reserved slot.
        drafted: slots of a draft's new tokens, which a live row may name as well.
        needed: those of its slots that each live row must name; none where a row names a part of
            them that the rule does not know, as with a window or a cached prefix.
        what: is named: a slot, or a page that holds several; then `own` are a row's pages.
        sink: how many numbers from the reserved one on are as good as that.
    """
    spare = range(reserved, reserved + sink)
    bounds, slots = offsets.tolist(), got.tolist()
    pairs = list(zip(bounds, bounds[1:], strict=False))
    if not bounds or bounds[0] != 0 or any(high < low for low, high in pairs):
        return  # `offsets_ascend` says it
    branches = max(1, len(pairs) // max(padded_bs, 1))  # rows of the attention for each request
    for row, (low, high) in enumerate(pairs):
        request = row // branches
        live = request < len(own)
        allowed = {*spare, *own[request], *drafted[request]} if live else {*spare}
        part = slots[low:high]
        if not allowed.issuperset(part):
            stranger = next(slot for slot in part if slot not in allowed)
            owner = f"row {row}" if live else f"padded row {row}"
            yield f"{name} of {owner} holds {what} {stranger}, which is not its own"
            return
        if live and len(distinct := set(part)) < len(part):
            twice = next(slot for slot in part if part.count(slot) > 1)
            yield f"{name} of row {row} holds {what} {twice} {part.count(twice)} times"
            return
        if live and (missing := [slot for slot in needed[request] if slot not in distinct]):
            yield (
                f"{name} of row {row} lacks {what} {missing[0]}, {len(missing)} of its"
                f" {len(needed[request])} {'tokens' if what == 'slot' else 'pages'}"
            )
            return


def names_own_pages(
    name: str,
    got: Entries,
    *,
    pages: list[list[int]],
    seq_lens: list[int],
    page_size: int,
    padding: str,
    value: int,
    in_order: bool,
) -> Iterator[str]:
    """A row of a page table names its own pages in order; a padded row what the engine promises.

    Args:
        pages: those of each live row, in order.
        seq_lens: tokens of each live row; entries behind its last page are nobody's business.
        padding: of padded rows. 'reserved': the first entry is `value`, the page that padded rows
            may use. 'fill', 'skip': every entry is `value`. 'free': anything.
        in_order: whether each page has its place; a sliding window shifts them.
    """
    width = got.shape[1]
    padded = {"reserved": min(1, width), "free": 0}.get(padding, width)
    for row in range(len(got)):
        live = row < len(pages)
        used = -(-seq_lens[row] // page_size) if live else padded
        if live and used > width:
            yield (
                f"{name} has {width} pages for row {row}, whose {seq_lens[row]} tokens lie"
                f" in {used}"
            )
            return
        own = pages[row] if live else [value] * used
        part = got[row, :used].tolist()
        if not set(own).issuperset(part):
            stranger = next(page for page in part if page not in own)
            owner = f"row {row}" if live else f"padded row {row}"
            promise = "which is not its own" if live or padding == "reserved" else f"not {value}"
            yield f"{name} of {owner} holds page {stranger}, {promise}"
            return
        if in_order and used > len(own):
            yield f"{name} has {used} pages for row {row}, which owns {len(own)}"
            return
        if in_order and part != own[:used]:
            at = _first_unequal(part, own)
            yield f"{name}[{row}, {at}] is page {part[at]}, the row's page there is {own[at]}"
            return


def _first_unequal(got: list[int], want: list[int]) -> int:
    """The first place where two lists differ."""
    return next(at for at, (one, two) in enumerate(zip(got, want, strict=False)) if one != two)
