"""Who owns which recurrent-state slots, and what each step finds and leaves in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzzgraph.case import BatchRow, Case, ReplayStep
from fuzzgraph.case.state_rings import NO_RING, Ring
from fuzzgraph.case.verified_states import (
    TRACK_SLOTS,
    Computed,
    computed_by,
    requests_with_state,
    state_slots_each,
    states_each,
    tracked_len,
    verifies_states,
)
from fuzzgraph.layout.free_list import OTHER_ORDER, FreeList
from fuzzgraph.layout.streams import ints
from fuzzgraph.world import FIRST_ROW, IntArray

_NONE: IntArray = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class _States:
    """Of one live request."""

    slots: list[int]
    computed: Computed | None = None
    """By its last step, where drafts are checked by layers with recurrent states."""
    tracked: int = 0
    """States of it that were kept for a prefix cache."""
    ring: Ring = NO_RING


class RecurrentStates:
    """Of one case.

    Args:
        accepted: how many new tokens of a row stay, by step and request, where drafts are checked.
    """

    def __init__(self, case: Case, accepted: dict[tuple[int, int], int]) -> None:
        self._config, self._accepted = case.config, accepted
        self._each = states_each(case.config)
        self._slots_each = state_slots_each(case.config)
        count = requests_with_state(case.config) * max(self._slots_each, 1)
        self._free = FreeList(OTHER_ORDER[case.page_order], case.seed, FIRST_ROW, count)
        self._of: dict[int, _States] = {}

    def add(self, request: int) -> None:
        """A request comes, and takes its slots."""
        self._of[request] = _States(self._free.take(self._slots_each))

    def finish(self, request: int) -> None:
        """It is gone, and its slots are free."""
        self._free.give_back(self._of.pop(request).slots)

    def step(self, index: int, step: ReplayStep) -> dict[str, Any]:
        """What `Batch` has of the states of a step; takes down what the step leaves."""
        live = [self._of[row.request] for row in step.rows]
        track_slots, tracked_lens = self._track(index, step, live)
        kept_tokens, new_states = self._verify(step.rows, live)
        depths, left, taken, forced, starts, starts_left = self._rings(index, step, live)
        state_slots = (
            ints([one.slots[0] for one in live]) if self._config.recurrent_state else _NONE
        )
        return dict(
            state_slots=state_slots,
            draft_state_slots=self._draft_slots(live),
            kept_tokens=kept_tokens,
            new_states=new_states,
            track_slots=track_slots,
            tracked_lens=tracked_lens,
            ring_depths=depths,
            ring_left=left,
            rings_taken=taken,
            rings_forced=forced,
            ring_starts=starts,
            ring_starts_left=starts_left,
        )

    def _stays(self, index: int, row: BatchRow) -> int:
        """New tokens of a row that are there for good behind the step."""
        return self._accepted.get((index, row.request), row.new_tokens)

    def _track(
        self, index: int, step: ReplayStep, live: Sequence[_States]
    ) -> tuple[IntArray, IntArray]:
        """Where a copy of each row's state goes, and behind how many tokens the step makes one."""
        if not self._config.state_track_interval:
            return _NONE, _NONE
        slots = ints([one.slots[self._each + one.tracked % TRACK_SLOTS] for one in live])
        pairs = zip(step.rows, live, strict=True)
        lens = [self._tracked_len(index, step, row, one) for row, one in pairs]
        for one, tracked in zip(live, lens, strict=True):
            one.tracked += tracked > 0
        # The verify before a draft-extend has made the copy.
        return slots, ints([0] * len(lens) if step.mode == "draft_extend" else lens)

    def _tracked_len(self, index: int, step: ReplayStep, row: BatchRow, one: _States) -> int:
        # A prefix ends once in a prompt, though parts of it may be computed by several steps.
        branches = self._config.prefix_branches and row.request % 2 == 0 and not one.tracked
        interval, stays = self._config.state_track_interval, self._stays(index, row)
        return tracked_len(step.mode, row, interval, stays, branches=branches)

    def _draft_slots(self, live: Sequence[_States]) -> IntArray:
        """[raw_bs, states of each] where a verify has a state for each token."""
        if not verifies_states(self._config):
            return _NONE.reshape(0, 0)
        slots = ints([slot for one in live for slot in one.slots[: self._each]])
        return slots.reshape(len(live), self._each)

    def _verify(
        self, rows: tuple[BatchRow, ...], live: Sequence[_States]
    ) -> tuple[IntArray, IntArray]:
        """(what stays of each row's last step, states that it leaves)."""
        if not verifies_states(self._config):
            return _NONE, _NONE
        pairs = list(zip(rows, live, strict=True))
        last = {row.request: one.computed for row, one in pairs if one.computed is not None}
        found = computed_by(self._config, rows, last)
        for row, one in pairs:
            one.computed = found[row.request][1]
        kept = ints([found[row.request][0] for row in rows])
        return kept, ints([found[row.request][1].states for row in rows])

    def _rings(self, index: int, step: ReplayStep, live: Sequence[_States]) -> IntArray:
        """[6, raw_bs] of each row's ring: tokens in it before and behind the step, whether another
        one's is taken over, whether the step has to empty it, its first place before and behind."""
        config = self._config
        if not config.state_ring_len:
            return np.empty((6, 0), dtype=np.int64)
        found: list[tuple[int, ...]] = []
        for row, one in zip(step.rows, live, strict=True):
            cached, forced = row.seq_len - row.new_tokens, False
            before = one.ring.found(cached)
            if step.mode == "target_verify":
                stays = self._stays(index, row)
                one.ring = before.behind_verify(config, cached + stays, stays)
            else:
                one.ring, forced = before.after(config, row.seq_len)
            after, taken = one.ring, before is NO_RING
            found.append((before.depth, after.depth, taken, forced, before.start, after.start))
        return np.array(found, dtype=np.int64).reshape(-1, 6).T
