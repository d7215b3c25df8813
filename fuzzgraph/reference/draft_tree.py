"""Drafts of several branches that a worker chooses by what their tokens are worth, in float64.

Sources: sglang spec_utils.py `select_top_k_tokens` (a branch's score times the part of each of its
best tokens; the best of all branches' go on, in their order, each with the hidden state of the
branch that it follows), eagle_utils.py `organize_draft_results` (of all that were looked at, the
best are handed out by their places, with the parents of all steps but the last).

A branch is a place, not a line of ancestors: at each step the token chosen for place b attends to
the keys of those chosen for place b before it (sglang cache_locs.py,
`generate_draft_decode_kv_indices`, which lists the slots of one branch; keys do not move when
branches change places).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import next_token
from fuzzgraph.draft_head import branch_logits
from fuzzgraph.splitmix import STRIDE, hash_counters
from fuzzgraph.world import Batch, IntArray

__all__ = ["DraftTree", "draft_tree"]

_ATTEMPTS = 4096
_CLOSE = 1e-3
"""Logarithms of scores that are not told apart."""
_LEAST, _PARTS = 0.25, 1 << 10
"""Parts of first tokens lie between 1/4 and 1, in steps that float32 has."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """What is chosen at each step, and what is handed out."""

    first_parts: Doubles
    """[rows, topk] scores of the first tokens, which are given; with them no choice is close."""
    tokens: IntArray
    """[steps + 1, rows, topk] tokens of each place at each step; the last one has no forward."""
    followed: IntArray
    """[steps + 1, rows, topk] place of the step before whose token each one follows."""
    places: IntArray
    """[rows, draft_tokens - 1] of the best among all tokens that were looked at, ascending."""
    handed_out: IntArray
    """[rows, draft_tokens - 1] these tokens."""
    parents: IntArray
    """[rows, topk + 1 + topk * (steps - 1)] places of those that were chosen, the row's first
    token being -1."""


def draft_tree(batch: Batch, config: EngineConfig) -> DraftTree:
    """The choices of all rows, each with the first scores by which none is close."""
    topk, steps, count = config.spec_topk, config.spec_steps, config.draft_tokens - 1
    rows = batch.raw_bs
    found = DraftTree(
        first_parts=np.empty((rows, topk)),
        tokens=_ids(steps + 1, rows, topk),
        followed=_ids(steps + 1, rows, topk),
        places=_ids(rows, count),
        handed_out=_ids(rows, count),
        parents=_ids(rows, topk * steps + 1),
    )
    for row in range(rows):
        one = _row(batch, config, row)
        for name in ("first_parts", "places", "handed_out", "parents"):
            getattr(found, name)[row] = getattr(one, name)
        for name in ("tokens", "followed"):
            getattr(found, name)[:, row] = getattr(one, name)
    return found


def _ids(*shape: int) -> IntArray:
    return np.empty(shape, dtype=np.int64)


def _row(batch: Batch, config: EngineConfig, row: int) -> DraftTree:
    first = batch.input_ids.reshape(-1, config.spec_topk)[row]
    key = int(batch.requests[row]) * STRIDE + int(batch.seq_lens[row])
    for attempt in range(_ATTEMPTS):
        at = np.arange(config.spec_topk, dtype=np.uint64) + np.uint64(attempt * config.spec_topk)
        drawn = (hash_counters(key & 0xFFFFFFFF, at) % np.uint64(_PARTS)).astype(np.float64)
        found, sound = _grown(first, _LEAST + (1 - _LEAST) * drawn / _PARTS, config)
        if sound:
            return found
    raise AssertionError("close choices by all of these scores, which are independent")


def _grown(first: IntArray, parts: Doubles, config: EngineConfig) -> tuple[DraftTree, bool]:
    """One row's choices by these scores; and whether none of them is close."""
    topk, steps = config.spec_topk, config.spec_steps
    scores, tokens, sound = np.log(parts), first, True
    chosen, followed = [first], [np.arange(topk)]
    looked_at, worth, parents = [first], [scores], [np.arange(-1, topk)]
    for step in range(steps):
        children = np.stack([next_token(tokens, step, child) for child in range(topk)], 1).ravel()
        values = (scores[:, None] + _log_parts(tokens, step, topk)).ravel()
        order = np.argsort(-values, kind="stable")
        sound = sound and bool((np.diff(-values[order][: topk + 1]) > _CLOSE).all())
        best = order[:topk]
        looked_at.append(children)
        worth.append(values)
        parents.append(best + topk + topk * topk * step)
        tokens, scores = children[best], values[best]
        chosen.append(tokens)
        followed.append(best // topk)
    everything, values = np.concatenate(looked_at), np.concatenate(worth)
    order = np.argsort(-values, kind="stable")
    count = config.draft_tokens - 1
    sound = sound and bool((np.diff(-values[order][count - 1 : count + 1]) > _CLOSE).all())
    places = np.sort(order[:count])
    handed_on = np.concatenate(parents[:-1])
    made = DraftTree(
        parts, np.stack(chosen), np.stack(followed), places, everything[places], handed_on
    )
    return made, sound


def _log_parts(tokens: IntArray, step: int, topk: int) -> Doubles:
    """[topk, topk] logarithms of the parts of each branch's best tokens, the best first. Other
    logits lie so far below that they have none."""
    logits = branch_logits(tokens, step, topk)
    largest = logits.max(1, keepdims=True)
    found: Doubles = logits - largest - np.log(np.exp(logits - largest).sum(1, keepdims=True))
    return found
