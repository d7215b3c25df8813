"""Padded rows of what a graph reads of its batch: nothing of an earlier batch is left in them."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzgraph.handover import root_of
from fuzzgraph.observation import Observation
from fuzzgraph.oracles.handover.breach import Breach, Pair
from fuzzgraph.oracles.handover.live import live_part
from fuzzgraph.oracles.handover.shown import by_leaf, held_in, leaf
from fuzzgraph.rules import handover as rules


def padding_is_fresh(pair: Pair, fresh: Observation) -> Iterator[Breach]:
    """Padded entries are those of a graph that has replayed nothing before.

    Args:
        pair: the replay and the eager run, whose sizes tell which entries are live.
        fresh: the same step replayed without the past.
    """
    wanted = by_leaf(pair.other.handovers)
    held, other = held_in(pair.replay), held_in(fresh).tensors
    for path, part in held.tensors.items():
        eager, again = wanted.get(leaf(path)), other.get(path)
        # A declared field has a rule of its own.
        declared = leaf(path) in pair.replay.metadata or root_of(path) in held.types
        if declared or eager is None or again is None:
            continue
        if pair.plans_in(part, eager):
            continue
        live = live_part(part.shape, eager.shape, pair)
        if live is None or live.table or part.values is None or again.values is None:
            continue
        if part.shape != again.shape:
            continue
        name = f"{held.to}.{path}"
        got, want = part.values[..., live.entries :], again.values[..., live.entries :]
        for message in rules.padding_is_that_of_a_fresh_graph(name, got, want, at=live.entries):
            yield Breach("padding", name, message)
