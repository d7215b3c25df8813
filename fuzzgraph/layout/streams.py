"""Which token stands at which position of which request, hashed from the case's seed."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from fuzzgraph.case import Case
from fuzzgraph.case.verified_states import placeholder_rows
from fuzzgraph.content import token_ids
from fuzzgraph.world import PLACEHOLDER, VOCAB, IntArray

_SHARED_PREFIX = 1 << 21
"""Stands for "any request" where prefixes share tokens; above every request id."""
ENCODER = 1 << 22
MROPE = 1 << 23
BRANCHES = 1 << 24
BUDGET = 1 << 28
REJECTED = 1 << 29
"""Each names a stream of tokens of its own, when added to a request id."""


def token_streams(
    case: Case, lengths: dict[int, int], prefix: int, salt: int
) -> dict[int, IntArray]:
    """Token ids of the first `lengths[request]` positions of each request, hashed in one go.

    Requests agree on the first `prefix` positions. `salt` picks the stream.
    """
    if not lengths:
        return {}
    offsets = [0, *accumulate(lengths.values())]
    counts = ints(list(lengths.values()))
    positions = np.arange(offsets[-1]) - np.repeat(ints(offsets[:-1]), counts)
    names = np.repeat(ints(list(lengths)), counts)
    if prefix:
        names[positions < prefix] = _SHARED_PREFIX
    tokens = token_ids(case.seed, names + salt, positions)
    return {
        name: tokens[start:stop]
        for name, start, stop in zip(lengths, offsets[:-1], offsets[1:], strict=True)
    }


def longest_lens(case: Case) -> tuple[dict[int, int], dict[int, int]]:
    """Per request: the largest seq_len of the case, and its encoder length."""
    found: dict[int, int] = {}
    encoder: dict[int, int] = {}
    for step in case.steps:
        for row in step.rows:
            if row.seq_len > found.get(row.request, 0):
                found[row.request] = row.seq_len
            encoder[row.request] = max(row.encoder_len, encoder.get(row.request, 0))
    return found, encoder


def accepted_lens(case: Case) -> dict[tuple[int, int], int]:
    """(step, request) -> tokens that stay of those that a verify of a chain computes.

    Its request's next step says so: the tokens that are cached there. A verify stays whole where
    that says nothing, because the request ends or another length follows. Of placeholders none
    stays.
    """
    if case.config.spec_topk > 1:
        return {}
    found: dict[tuple[int, int], int] = {}
    last: dict[int, tuple[int, int, int]] = {}
    for index, step in enumerate(case.steps):
        for row in step.rows:
            cached = row.seq_len - row.new_tokens
            before, start, count = last.pop(row.request, (0, 0, 0))
            if 0 < cached - start < count:
                found[before, row.request] = cached - start
            if step.mode == "target_verify":
                last[row.request] = index, cached, row.new_tokens
    return found | dict.fromkeys(placeholder_rows(case), 1)


def prompt_lens(case: Case) -> dict[tuple[int, int], int]:
    """(step, request) -> tokens of its prompt, of rows of a prefill whose prompt goes on later.

    A prompt goes on where the next step of its request is a prefill that starts where this one
    ends, and ends with the last of them that computes more than one token.
    """
    found: dict[tuple[int, int], int] = {}
    later: dict[int, tuple[int, int]] = {}
    for index in range(len(case.steps) - 1, -1, -1):
        step = case.steps[index]
        for row in step.rows:
            start, end = later.pop(row.request, (0, 0))
            if step.mode != "prefill":
                continue
            goes_on = start == row.seq_len and end > start
            if goes_on:
                found[index, row.request] = end
            own = row.seq_len if row.new_tokens > 1 else 0
            later[row.request] = row.seq_len - row.new_tokens, end if goes_on else own
    return found


def with_rejected(tokens: IntArray, start: int, stop: int, request: int, case: Case) -> IntArray:
    """These tokens, with drafts at `start` up to `stop` of which the first is not what follows."""
    places = np.arange(start, stop)
    drafts = token_ids(case.seed, np.full(len(places), request + REJECTED), places)
    if drafts[0] == tokens[start]:
        drafts[0] = (drafts[0] + 1) % VOCAB
    found = tokens.copy()
    found[start:stop] = drafts
    return found


def with_placeholders(tokens: IntArray, start: int, stop: int) -> IntArray:
    """These tokens, with placeholders behind the one at `start`, up to `stop`."""
    found = tokens.copy()
    found[start + 1 : stop] = PLACEHOLDER
    return found


def ints(values: list[int]) -> IntArray:
    """int64 array of these numbers."""
    return np.array(values, dtype=np.int64)
