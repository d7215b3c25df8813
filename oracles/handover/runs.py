"""A replay against another run of the same step: launches, metadata, calls."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzgraph.handover import Handover, Part, root_of
from fuzzgraph.observation import Observation
from fuzzgraph.oracles.handover.breach import Breach, Pair, missing_in
from fuzzgraph.oracles.handover.calls import calls_match
from fuzzgraph.oracles.handover.kernels import seen_keys
from fuzzgraph.oracles.handover.live import (
    are_by_token,
    are_offsets,
    live_places,
    same_part,
    same_scalar,
)
from fuzzgraph.oracles.handover.shown import held_in
from fuzzgraph.rules import handover as rules


def against(pair: Pair) -> Iterator[Breach]:
    yield from _launches_match(pair)
    yield from _held_match(pair)
    yield from calls_match(pair)


def fields_shown(pair: Pair) -> Iterator[Breach]:
    """A declared field that the other run shows is there; whose metadata it is stands before it."""
    holder = held_in(pair.replay).to
    for name in pair.other.metadata.keys() - pair.replay.metadata.keys():
        yield from missing_in(f"{holder}.{name}" if holder else name, pair)


def _launches_match(pair: Pair) -> Iterator[Breach]:
    matched, missing = _matched(pair)
    for name in missing:
        yield from missing_in(name, pair)
    for one, two in matched:
        yield from _same_meaning(one, two, pair)
        for argument, part in two.tensors.items():
            name = f"{one.to}.{argument}"
            if argument not in one.tensors:
                yield from missing_in(name, pair)
            else:
                yield from same_part(name, one.tensors[argument], part, pair)
        for argument, want in two.scalars.items():
            got = one.scalars.get(argument)
            yield from same_scalar(f"{one.to}.{argument}", got, want, pair)


def _matched(pair: Pair) -> tuple[list[tuple[Handover, Handover]], list[str]]:
    """Launches of one kernel in their order, and kernels of which the replay has fewer."""
    ours, theirs = _by_kernel(pair.replay), _by_kernel(pair.other)
    matched, missing = [], []
    for kernel, launches in theirs.items():
        got = ours.get(kernel, [])
        matched += list(zip(got, launches, strict=False))
        if len(got) < len(launches):
            missing.append(kernel)
    return matched, missing


def _by_kernel(seen: Observation) -> dict[str, list[Handover]]:
    found: dict[str, list[Handover]] = {}
    for each in seen.handovers:
        if each.kind == "kernel":
            found.setdefault(each.to, []).append(each)
    return found


def _same_meaning(replay: Handover, other: Handover, pair: Pair) -> Iterator[Breach]:
    """Each live token of the launch sees the same keys, with the same scale."""
    name = replay.to
    for one, two in zip(replay.attended, other.attended, strict=False):
        factors = [(each.scale, each.softcap) for each in (one, two)]
        for message in rules.says_the_same(
            f"{name}'s scale and cap", factors[0], want=factors[1], other=pair.called
        ):
            yield Breach("meaning", name, message)
        if one.place != two.place:
            continue
        ours, theirs = dict(seen_keys([one])), dict(seen_keys([two]))
        for token in (place for place in live_places(pair) if place < len(theirs)):
            got, want = ours.get(token, []), theirs.get(token, [])
            for message in rules.sees_the_same_keys(
                name, got, token=token, want=want, other=pair.called
            ):
                yield Breach("meaning", name, message)
                return


def _held_match(pair: Pair) -> Iterator[Breach]:
    one, two = held_in(pair.replay), held_in(pair.other)
    for path, kind in two.types.items():
        name = f"{one.to}.{path}"
        if path not in one.types:
            yield from missing_in(name, pair)
        else:
            for message in rules.says_the_same(name, one.types[path], want=kind, other=pair.called):
                yield Breach("missing", name, message)
    for path, part in two.tensors.items():
        name = f"{one.to}.{path}"
        if root_of(path) not in one.types:
            continue  # the record itself is missing
        if path not in one.tensors:
            yield from missing_in(name, pair)
            continue
        yield from same_part(name, one.tensors[path], part, pair)
        yield from _graph_size(name, one.tensors[path], part, pair)
    for path in one.tensors.keys() - two.tensors.keys():
        if path.rpartition(".")[0] in two.types:
            name = f"{one.to}.{path}"
            message = f"{name} is missing in {pair.called}; the graph step has it"
            yield Breach("missing", name, message, "eager")


def _graph_size(name: str, got: Part, want: Part, pair: Pair) -> Iterator[Breach]:
    """Offsets of rows in metadata are one more than the graph's rows."""
    if len(got.shape) != 1 or are_by_token(got, want, pair):
        return
    if are_offsets(want, pair) and not pair.plans_in(got, want):
        facts = {"padded": pair.replay.padded_bs + 1, "live": want.shape[0]}
        for message in rules.has_graph_size(name, got.shape[0], **facts, other=pair.called):
            yield Breach("form", name, message)
