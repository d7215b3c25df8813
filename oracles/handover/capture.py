"""A replay against the capture of its graph: addresses, sizes, records."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzgraph.handover import root_of
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.oracles.handover.breach import Breach
from fuzzgraph.oracles.handover.live import key_counts
from fuzzgraph.oracles.handover.shown import calls, held_in, scalars
from fuzzgraph.rules import handover as rules


def against_capture(step: StepRecord, replay: Observation) -> Iterator[Breach]:
    held = held_in(replay)
    for path, captured in held.bound.items():
        if root_of(path) not in held.types:
            continue  # the batch of the capture is gone; its buffers are judged by their content
        name = f"{held.to}.{path}"
        if path in held.rebound:
            for message in rules.keeps_address(name, held.rebound[path], captured=captured):
                yield Breach("address", name, message)
    # A record without a tensor, of a feature that this batch does not use, is no loss.
    used = {root_of(path) for path in held.bound}
    for root in used.intersection(held.dropped):
        for message in rules.is_there(f"{held.to}.{root}", False, other="its capture"):
            yield Breach("missing", f"{held.to}.{root}", message)
    then, now = calls(replay.handed_at_capture), calls(replay.handovers)
    padded = {replay.padded_bs, replay.padded_bs + 1, replay.padded_tokens}
    sizes = tuple(padded - {1})
    for path, parts in now.items():
        # Engines have several methods for one thing; the argument's name is what they share.
        known = then.get(path)
        if known is None:
            continue
        for to, part in parts:
            shapes = [other.shape for _, other in known if len(other.shape) == len(part.shape)]
            if shapes and part.shape not in shapes:
                for message in rules.has_captured_size(
                    f"{to}.{path}", part.shape, captured=shapes[-1], sizes=sizes
                ):
                    yield Breach("form", f"{to}.{path}", message)
    yield from _announced(step, replay)


def _announced(step: StepRecord, replay: Observation) -> Iterator[Breach]:
    """Numbers that were the graph's size at capture."""
    then = scalars(replay.handed_at_capture)
    sizes = {replay.padded_bs: replay.raw_bs, replay.padded_tokens: replay.num_tokens}
    for path, (to, value) in scalars(replay.handovers).items():
        captured = then.get(path, ("", 0))[1]
        if type(value) is not int or type(captured) is not int:
            continue
        if captured not in sizes or _may_be_content(value, step, replay):
            continue
        facts = {"captured": captured, "raw": sizes[captured]}
        for message in rules.says_captured_size(f"{to}.{path}", value, **facts):
            yield Breach("form", f"{to}.{path}", message)


def _may_be_content(value: int, step: StepRecord, replay: Observation) -> bool:
    """Whether a number is also the sum or the largest of something that was handed over."""
    if value not in (replay.raw_bs, replay.num_tokens):
        return False
    if value in key_counts(step):
        return True
    contents = [
        part.values
        for parts in calls(replay.handovers).values()
        for _, part in parts
        if part.values is not None and part.values.size
    ]
    return any(value in (int(each.sum()), int(each.max())) for each in contents)
