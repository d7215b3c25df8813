"""Brings requests into a runner that knows none of them, in the middle of their drafts.

A verify goes on from what the one before it kept, and the runner keeps count of that. Where a step
is run without those before it, the runner has to be told by steps of its own: one that computes the
last token of each prompt, and one in which as many drafts are accepted as were kept last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fuzzgraph.targets.vllm.served_requests import (
    Known,
    Scheduled,
    ServedRequests,
    cached_requests,
    going_request,
    new_request,
    scheduler_output,
)
from fuzzgraph.world import Batch


def needs_admission(served: ServedRequests, batch: Batch) -> bool:
    """Whether a row goes on from a step that the runner has not seen."""
    pairs = zip(batch.requests.tolist(), batch.kept_tokens.tolist(), strict=False)
    return any(kept and request not in served.known for request, kept in pairs)


def admission_steps(served: ServedRequests, batch: Batch) -> Iterator[Scheduled]:
    """What the scheduler hands over so that the runner then knows the rows that go on."""
    rows = [row for row, kept in enumerate(batch.kept_tokens.tolist()) if kept]
    prompts = {row: _prompt_of(served, batch, row) for row in rows}
    yield _first_tokens(batch, prompts)
    drafted = {row: one for row, one in prompts.items() if batch.kept_tokens[row] > 1}
    if drafted:
        yield _accepted_drafts(batch, drafted)
    for row, one in prompts.items():
        sampled = int(batch.cached_lens[row]) - one.prompt + 1
        served.known[int(batch.requests[row])] = replace(
            one, pages=_pages(batch, row), computed=int(batch.cached_lens[row]), sampled=sampled
        )


def _prompt_of(served: ServedRequests, batch: Batch, row: int) -> Known:
    """A request whose prompt ends where its last verify began."""
    kept, cached = int(batch.kept_tokens[row]), int(batch.cached_lens[row])
    prompt = cached - kept if kept > 1 else cached
    served.count += 1
    return Known(f"{batch.requests[row]}.{served.count}", prompt, (), prompt - 1)


def _pages(batch: Batch, row: int) -> tuple[int, ...]:
    """How many blocks the runner has heard of."""
    return tuple(len(group.pages.row(row)) for group in batch.groups)


def _first_tokens(batch: Batch, prompts: dict[int, Known]) -> Scheduled:
    tokens = {row: batch.kv_tokens.row(row) for row in prompts}
    sampled = {one.name: [int(tokens[row][one.prompt])] for row, one in prompts.items()}
    output = scheduler_output(
        new=[new_request(one, batch, row) for row, one in prompts.items()],
        scheduled={one.name: 1 for one in prompts.values()},
        groups=len(batch.groups),
    )
    return Scheduled(output, {one.name: row for row, one in prompts.items()}, sampled, [])


def _accepted_drafts(batch: Batch, prompts: dict[int, Known]) -> Scheduled:
    sampled, drafts, going = {}, {}, []
    for row, one in prompts.items():
        said: list[int] = batch.kv_tokens.row(row)[one.prompt + 1 :].tolist()
        kept = int(batch.kept_tokens[row])
        sampled[one.name], drafts[one.name] = said[:kept], said[: kept - 1]
        known = replace(one, pages=_pages(batch, row), computed=one.prompt, sampled=1)
        going.append(going_request(known, batch, row, False))
    output: Any = scheduler_output(
        going=cached_requests(going),
        scheduled={name: len(kept) for name, kept in sampled.items()},
        drafts=drafts,
        groups=len(batch.groups),
    )
    return Scheduled(output, {one.name: row for row, one in prompts.items()}, sampled, [])
