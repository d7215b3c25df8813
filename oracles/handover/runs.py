"""A replay against another run of the same step: launches, metadata, calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuzzgraph.handover import Handover, Part
from fuzzgraph.observation import Observation
from fuzzgraph.oracles.handover.breach import Breach, Pair, missing_in
from fuzzgraph.oracles.handover.kernels import seen_keys
from fuzzgraph.oracles.handover.live import row_counts, same_part
from fuzzgraph.oracles.handover.shown import calls, held_in, leaf
from fuzzgraph.rules import handover as rules


def against(pair: Pair) -> Iterator[Breach]:
    yield from _launches_match(pair)
    yield from _held_match(pair)
    yield from _calls_match(pair)


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
            yield from _same_scalar(f"{one.to}.{argument}", got, want, pair)


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
        for token in range(min(pair.replay.num_tokens, len(theirs))):
            got, want = ours.get(token, []), theirs.get(token, [])
            for message in rules.sees_the_same_keys(
                name, got, token=token, want=want, other=pair.called
            ):
                yield Breach("meaning", name, message)
                return


def _same_scalar(name: str, got: object, want: object, pair: Pair) -> Iterator[Breach]:
    """Numbers of a size are large enough; what says how to compute is the same."""
    if type(want) is not int:
        found = rules.says_the_same(name, got, want=want, other=pair.called)
    elif type(got) is int:
        found = rules.fits(name, got, want=want, other=pair.called)
    else:
        return
    for message in found:
        yield Breach("fits", name, message)


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
        if path.partition(".")[0] not in one.types:
            continue  # the record itself is missing
        if path not in one.tensors:
            yield from missing_in(name, pair)
        else:
            yield from same_part(name, one.tensors[path], part, pair)
            yield from _graph_size(name, one.tensors[path], part, pair)
    for path in one.tensors.keys() - two.tensors.keys():
        if path.rpartition(".")[0] in two.types:
            name = f"{one.to}.{path}"
            message = f"{name} is missing in {pair.called}; the graph step has it"
            yield Breach("missing", name, message, "eager")


def _graph_size(name: str, got: Part, want: Part, pair: Pair) -> Iterator[Breach]:
    """Offsets of rows in metadata are one more than the graph's rows."""
    if want.values is None or want.shape != (pair.other.padded_bs + 1,) or len(got.shape) != 1:
        return
    entries = want.values.tolist()
    if entries[0] or np.diff(entries).tolist() not in row_counts(pair.step):
        return
    facts = {"padded": pair.replay.padded_bs + 1, "live": len(entries)}
    for message in rules.has_graph_size(name, got.shape[0], **facts, other=pair.called):
        yield Breach("form", name, message)


def _calls_match(pair: Pair) -> Iterator[Breach]:
    """What the runner hands over for a replay, and what the graph was captured with, by leaf."""
    wanted = {leaf(path): parts[0][1] for path, parts in calls(pair.other.handovers).items()}
    for path, parts in calls(pair.replay.handovers).items():
        if (want := wanted.get(leaf(path))) is not None:
            for to, part in parts:
                yield from same_part(f"{to}.{path}", part, want, pair)
    held = held_in(pair.replay)
    for path, part in held.tensors.items():
        root = path.partition(".")[0]
        if root not in held.types and (want := wanted.get(leaf(path))) is not None:
            yield from same_part(f"{held.to}.{path}", part, want, pair)
