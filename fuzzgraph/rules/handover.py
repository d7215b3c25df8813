"""What must hold of things handed over: the same live meaning, sizes, addresses, sides.

Each rule takes the name of what was handed over and plain facts, and yields a sentence for each
breach. Which facts belong to which name is `oracles.handover`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = [
    "RULES",
    "ascends",
    "fits",
    "has_captured_size",
    "has_graph_size",
    "has_size",
    "is_of_kind",
    "is_there",
    "keeps_address",
    "lies_on_device",
    "live_entries_match",
    "padding_is_reserved",
    "padding_is_that_of_a_fresh_graph",
    "says_captured_size",
    "says_the_same",
    "sees_own_keys",
    "sees_the_same_keys",
    "stays_counts",
]

RULES = {
    "live": "live entries are those of the eager run",
    "keys": "a query sees its row's keys",
    "form": "sizes are those that the graph was captured with",
    "missing": "what capture or eager run had is there",
    "kind": "replay, capture and eager run hand over things of one kind",
    "address": "what the graph reads lies where the engine writes",
    "side": "kernels get the device's memory",
    "fits": "numbers handed over are large enough, and flags the same",
    "meaning": "padded lengths and offsets are lengths and offsets",
    "padding": "padded entries of a graph's inputs hold nothing of an earlier batch",
}
"""What must hold, by the name of the rule."""

Entries = Any


def live_entries_match(
    name: str, got: Entries, want: Entries, *, live: int, other: str
) -> Iterator[str]:
    """The first `live` entries are those of the other run."""
    one, two = got[:live], want[:live]
    if one.shape != two.shape:
        yield f"{name} is {list(got.shape)}, {other} had {list(want.shape)}"
    elif one.tobytes() != two.tobytes():  # several times as fast as a comparison of entries
        index = tuple(int(axis[0]) for axis in (one != two).nonzero())
        at = ", ".join(map(str, index))
        yield f"{name}[{at}] is {one[index]}, {other} had {two[index]}"


def sees_own_keys(name: str, got: Sequence[int], *, token: int, want: list[int]) -> Iterator[str]:
    """A live token sees each key that attention defines for it, once (or once for each layer)."""
    seen = sorted(got)
    layers = max(1, len(seen) // max(1, len(want)))
    if seen == sorted(want * layers):
        return
    if strangers := sorted(set(seen) - set(want)):
        yield f"{name}: token {token} sees slot {strangers[0]}, which is no key of it"
    elif missing := sorted(set(want) - set(seen)):
        yield f"{name}: token {token} does not see slot {missing[0]}, one of its {len(want)} keys"
    else:
        twice = next(slot for slot in seen if seen.count(slot) > layers)
        yield f"{name}: token {token} sees slot {twice} {seen.count(twice)} times"


def sees_the_same_keys(
    name: str, got: Sequence[int], *, token: int, want: list[int], other: str
) -> Iterator[str]:
    """A live token sees the keys that it sees in the other run."""
    if sorted(got) == sorted(want):
        return
    odd = sorted(set(got) ^ set(want))
    which = f", {odd[0]} in one run only" if odd else ""
    yield f"{name}: token {token} sees {len(got)} keys, in {other} {len(want)}{which}"


def padding_is_reserved(
    name: str, got: Sequence[int], *, token: int, page_size: int
) -> Iterator[str]:
    """A padded token sees nothing but the reserved page, 0."""
    strangers = [slot for slot in got if not 0 <= slot < page_size]
    if strangers:
        yield f"{name}: padded token {token} sees slot {strangers[0]}, not of the reserved page"


def padding_is_that_of_a_fresh_graph(
    name: str, got: Entries, want: Entries, *, at: int
) -> Iterator[str]:
    """Padded entries hold what they hold in a graph that replayed no batch before.

    Args:
        got, want: [..., padded] entries behind the live ones.
        at: the index of the first padded entry.
    """
    if (got != want).any():
        index = tuple(int(axis[0]) for axis in (got != want).nonzero())
        where = ", ".join(map(str, (*index[:-1], index[-1] + at)))
        yield (
            f"{name}[{where}] of a padded row is {got[index]}; in a graph that replayed no batch"
            f" before it is {want[index]}"
        )


def has_captured_size(
    name: str, got: Sequence[int], *, captured: Sequence[int], sizes: Sequence[int]
) -> Iterator[str]:
    """A tensor whose size is the graph's at capture does not come with fewer entries.

    Args:
        sizes: of the graph: rows, tokens, and one more of each.
    """
    for size, then in zip(got, captured, strict=False):
        if size < then and then in sizes:
            yield (
                f"{name} is {list(got)} in a forward of the padded size, which was captured with"
                f" {list(captured)}"
            )
            return


def has_graph_size(name: str, got: int, *, padded: int, live: int, other: str) -> Iterator[str]:
    """Offsets are one more than the rows of the graph, as they are of the rows of the other run."""
    if got != padded:
        yield f"{name} has {got} offsets, the graph needs {padded}; {other} had {live}"


def says_captured_size(name: str, got: int, *, captured: int, raw: int) -> Iterator[str]:
    """A number that was the graph's size at capture is not the live size at a replay."""
    if got == raw != captured:
        yield f"{name} is {got}, the live size; the graph was captured with {captured}"


def is_there(name: str, there: bool, *, other: str) -> Iterator[str]:
    """What was handed over in another run is not missing in a graph step."""
    if not there:
        yield f"{name} is missing in the graph step; {other} had it"


def is_of_kind(name: str, got: str, *, want: Sequence[str], when: str) -> Iterator[str]:
    """What a replay hands over is of the kind that capture or eager run hand over; what a capture
    hands over, of the kind of replay or eager run.

    Args:
        when: "a replay" or "capture".
    """
    if got not in want:
        others = "replay" if when == "capture" else "capture"
        yield f"{name} is {got} at {when}; {others} and eager run have {' or '.join(want)}"


def has_size(
    name: str, got: int, *, want: Sequence[int], least: int | None, when: str
) -> Iterator[str]:
    """What has an entry for each row or token of a batch has one for each of the graph's.

    Args:
        least: entries that will do; None where there must not be more.
    """
    if got not in want and (least is None or got < least):
        sizes = " or ".join(map(str, sorted(set(want))))
        yield f"{name} has {got} entries at {when}; the rows of the graph need {sizes}"


def keeps_address(name: str, now: int, *, captured: int) -> Iterator[str]:
    """The engine writes the memory that the graph was captured with."""
    if now != captured:
        yield f"{name} lies at another address than the tensor that the graph was captured with"


def lies_on_device(name: str, side: str) -> Iterator[str]:
    """A kernel cannot read the host's memory."""
    if side == "host":
        yield f"{name} lies in the host's memory; a kernel reads the device's"


def fits(name: str, got: float, *, want: float, other: str) -> Iterator[str]:
    """A number frozen in a graph is no smaller than the one that the batch needs."""
    if got < want:
        yield f"{name} is {got} in the graph, {other} of the same batch has {want}"


def says_the_same(name: str, got: object, *, want: object, other: str) -> Iterator[str]:
    """A flag, a factor or a name says the same in both runs."""
    if got != want:
        yield f"{name} is {got} in the graph, {other} has {want}"


def ascends(name: str, got: Sequence[int]) -> Iterator[str]:
    """Offsets start at 0 and never decrease, padded rows included."""
    if len(got) and got[0] != 0:
        yield f"{name} must start at 0; got {got[0]}"
    for row, (low, high) in enumerate(zip(got, got[1:], strict=False)):
        if high < low:
            yield f"{name} decreases from {low} to {high} at row {row}"
            return


def stays_counts(name: str, got: Sequence[int]) -> Iterator[str]:
    """Counts of padded rows are not negative."""
    if len(got) and (least := min(got)) < 0:
        yield f"{name} holds the negative count {least}"
