"""What a runner hands its backend, in a replay and in the eager run of the same step.

Engines have several methods for one thing, one for each kind of step. What they share is the last
name of a path, such as `seq_lens` of `forward_batch.seq_lens`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuzzgraph.finding import Stage
from fuzzgraph.handover import HandoverRule, Part, kind_of, root_of
from fuzzgraph.oracles.handover.breach import Breach, Pair
from fuzzgraph.oracles.handover.live import (
    are_offsets,
    key_counts,
    mask_cells,
    same_part,
    same_scalar,
)
from fuzzgraph.oracles.handover.shown import by_leaf, calls, held_in, kinds, leaf, scalars
from fuzzgraph.rules import handover as rules

NOTHING = {kind_of(None)}


def calls_match(pair: Pair) -> Iterator[Breach]:
    """Live entries, numbers and flags are those of the other run."""
    wanted = by_leaf(pair.other.handovers)
    for path, parts in calls(pair.replay.handovers).items():
        if (want := wanted.get(leaf(path))) is not None:
            for to, part in parts:
                yield from same_part(f"{to}.{path}", part, want, pair)
    held = held_in(pair.replay)
    for path, part in held.tensors.items():
        if root_of(path) not in held.types and (want := wanted.get(leaf(path))) is not None:
            yield from same_part(f"{held.to}.{path}", part, want, pair)
    numbers = {leaf(path): value for path, (_, value) in scalars(pair.other.handovers).items()}
    for path, (to, value) in scalars(pair.replay.handovers).items():
        if (number := numbers.get(leaf(path))) is not None:
            yield from same_scalar(f"{to}.{path}", value, number, pair)


def forms_match(pair: Pair) -> Iterator[Breach]:
    """Everything comes in the kind and size that it has in the eager run and at capture.

    A graph that breaks before attention is captured without it; its backend gets live rows.
    """
    if not pair.replay.handed_at_capture:
        return
    yield from _odd_kinds(pair)
    yield from _same_sizes(pair)


def _odd_kinds(pair: Pair) -> Iterator[Breach]:
    """One of the three, replay, capture or eager run, hands over what the other two do not.

    Where it is the eager run, nothing is said: its batch may be the harness's own.
    """
    now = kinds(pair.replay.handovers)
    then, eager = kinds(pair.replay.handed_at_capture), kinds(pair.other.handovers)
    for name in (each for each in now if each in then and each in eager):
        (path, got), (captured_path, captured), (_, want) = now[name], then[name], eager[name]
        if not got & (captured | want):
            yield from _odd_kind(path, got, captured | want, "a replay")
        elif not captured & (got | want):
            yield from _odd_kind(captured_path, captured, got | want, "capture")


def _odd_kind(name: str, got: set[str], want: set[str], when: str) -> Iterator[Breach]:
    rule: HandoverRule = "missing" if got == NOTHING else "kind"
    stage: Stage | None = "capture" if when == "capture" else None
    for message in rules.is_of_kind(name, min(got), want=sorted(want), when=when):
        yield Breach(rule, name, message, stage)


def _same_sizes(pair: Pair) -> Iterator[Breach]:
    """What has an entry for each live row or token in the eager run has one for each padded.

    A replay may hand over the whole of a static buffer; its first entries count.
    """
    replay, keys = pair.replay, key_counts(pair.step) | mask_cells(pair.step)
    for when, given in (("capture", replay.handed_at_capture), ("replay", replay.handovers)):
        for path, parts in calls(given).items():
            for (to, part), want in zip(parts, _eager_parts(path, len(parts), pair), strict=False):
                name = f"{to}.{path}"
                for size, sizes in _sizes(part, want, pair, keys):
                    least = min(sizes) if when == "replay" else None
                    for message in rules.has_size(name, size, want=sizes, least=least, when=when):
                        yield Breach("form", name, message, "capture" if least is None else None)


def _eager_parts(path: str, count: int, pair: Pair) -> list[Part]:
    """What the eager run handed over in each of `count` calls under a path; none if it did not.

    Layers of other kinds have other shapes, so calls are taken in order where there are as many, or
    several times as many: a capture runs a forward before it records one.
    """
    given = [part for _, part in calls(pair.other.handovers).get(path, ())]
    if given and count % len(given) == 0:
        return given * (count // len(given))
    first = by_leaf(pair.other.handovers).get(leaf(path))
    return [] if first is None else [first] * count


def _sizes(got: Part, want: Part, pair: Pair, keys: set[int]) -> Iterator[tuple[int, list[int]]]:
    """(size, sizes that it may have) of each axis whose meaning the eager run's size tells.

    Args:
        keys: how many keys, pages of them, or cells of masks the batch has.
    """
    if len(got.shape) != len(want.shape) or pair.plans_in(got, want):
        return
    one, two = pair.replay, pair.other
    for size, live in zip(got.shape, want.shape, strict=True):
        if live in keys:
            continue  # it may be a list of keys, or a mask
        known = [one.padded_bs] if live == two.padded_bs else []
        # Where tokens are padded without a graph too, as many live ones as rows tell neither.
        tokens = live == two.padded_tokens or (known and live == two.num_tokens)
        known += [one.padded_tokens] if tokens else []
        # Positions may look like offsets, which are one more than rows.
        known += [one.padded_bs + 1] if known and are_offsets(want, pair) else []
        if known and size != live:
            yield size, known
