"""The logical content of one step, before any engine has padded or encoded it.

A `Batch` says which requests a step serves, what tokens they hold and which
physical rows, pages and slots are theirs. The harness owns it: `layout` computes
it from the case alone, targets translate it into their engine's own batch, the
reference and the oracles judge against it. Nothing here is read back from an
engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fuzzgraph.case import Mode, Via

IntArray = npt.NDArray[np.int64]

RESERVED_ROW = 0
"""Request-pool row that padded rows may name; its page map holds `RESERVED_SLOT` only."""
RESERVED_PAGE = 0
RESERVED_SLOT = 0
"""KV slot that padded tokens may write and read. No request owns the rest of page 0."""
TRAPS = (1, 2)
"""Trap numbers of world A and world B. Each is at once a valid request row, page, slot and
state slot that no request owns, so that a wrong read lands somewhere and shows."""
# Slots 1 and 2 lie in page 0, 1 or 2 at any page size, so pages and rows from 3 on are handed out.
FIRST_ROW = 3
FIRST_PAGE = 3
VOCAB = 32
"""Token ids run from 0 to VOCAB - 1."""
PLACEHOLDER = VOCAB - 1
"""What stands behind the first token of a drafted block. Requests may have the same token."""


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of different length in one array: row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: IntArray
    offsets: IntArray

    def row(self, index: int) -> IntArray:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def with_rows(self, rows: IntArray) -> Ragged:
        """These rows, in this order."""
        lens = np.diff(self.offsets)
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lens[rows])))
        return Ragged(self.values[segments(lens, rows)], offsets)

    def followed_by(self, other: Ragged) -> Ragged:
        """As many rows, each with that of `other` behind its own.

        >>> one = Ragged(np.array([1, 2]), np.array([0, 2]))
        >>> one.followed_by(Ragged(np.array([3]), np.array([0, 1]))).values.tolist()
        [1, 2, 3]
        """
        pairs = [part.row(row) for row in range(len(self)) for part in (self, other)]
        values = np.concatenate(pairs) if pairs else self.values
        return Ragged(values, self.offsets + other.offsets)


def segments(lens: IntArray, rows: IntArray) -> IntArray:
    """Places of the entries of these rows, one row behind another, where each row has `lens`.

    >>> segments(np.array([3, 2]), np.array([1, 0])).tolist()
    [3, 4, 0, 1, 2]
    """
    starts, counts = (np.cumsum(lens) - lens)[rows], lens[rows]
    ends = np.cumsum(counts)
    places: IntArray = np.arange(int(counts.sum())) + np.repeat(starts - (ends - counts), counts)
    return places


def _no_numbers() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One step as the scheduler of a serving engine would hand it over; int64 arrays on the host.

    Tokens are packed row after row without padding. In mode `draft` a row computes no tokens of
    its own: `spec_steps` tokens on each of `spec_topk` branches follow from `input_ids`, which
    then holds one token per branch ([raw_bs * spec_topk]).
    """

    step: int
    mode: Mode
    via: Via
    raw_bs: int
    num_tokens: int
    """Length of the token axis: sum of `new_lens`, or raw_bs * spec_topk in mode draft."""
    requests: IntArray
    """[raw_bs] logical request ids."""
    req_pool_indices: IntArray
    """[raw_bs] rows of the request pool, >= FIRST_ROW."""
    seq_lens: IntArray
    """[raw_bs] KV tokens that attention reads, those computed in this step included."""
    new_lens: IntArray
    """[raw_bs] tokens computed in this step (0 in mode draft)."""
    input_ids: IntArray
    """[num_tokens]"""
    positions: IntArray
    """[num_tokens]"""
    token_rows: IntArray
    """[num_tokens] batch row of each token."""
    slot_mapping: IntArray
    """Slots that receive new KV: [num_tokens], or [raw_bs * spec_topk * spec_steps] in mode
    draft, ordered row, branch, step."""
    kv_slots: Ragged
    """Physical slot of every position below `seq_lens`, per row; new tokens included."""
    kv_tokens: Ragged
    """Token id at every such position."""
    prompts: Ragged
    """Tokens of each row's prompt as far as this case has it: in a prefill, also those that later
    steps of its request compute."""
    kv_positions: Ragged
    """Model position of every such token (equal depth twice in a verify tree)."""
    pages: Ragged
    """Physical pages of each row, in order; page i holds positions i*page_size onwards."""
    encoder_lens: IntArray
    """[raw_bs]; 0 for a request without an encoder."""
    encoder_slots: Ragged
    encoder_tokens: Ragged
    state_slots: IntArray
    """[raw_bs] recurrent-state slots, >= FIRST_ROW; empty without recurrent state."""
    draft_state_slots: IntArray
    """[raw_bs, draft_tokens] in a config that verifies: the slots of a request, of which the first
    is its `state_slots`. What a verify computes behind its token i lies in slot i. Empty in others,
    and without recurrent state."""
    kept_tokens: IntArray
    """[raw_bs] tokens that stayed of what the last step of a request computed, 0 where this one
    does not go on from one: it computes the end of the request's prompt. Empty where
    `draft_state_slots` is. After a prompt it is 1: there is one state, behind its last token."""
    new_states: IntArray
    """[raw_bs] states that a row of a verify leaves, each behind one of its last tokens: one for
    each token of a row that checks drafts, and 1 where it computes the end of a prompt alone. Empty
    where `draft_state_slots` is."""
    tree_parents: IntArray | None
    """[raw_bs, draft_tokens] parent of each draft token within its row, -1 for the root; None
    outside target_verify. A parent precedes its children; a chain is [-1, 0, 1, ...]."""
    next_tokens: IntArray
    """[raw_bs] token that follows each row's last: what its sampler has to give."""
    predicted: IntArray
    """[num_tokens] token that follows each one in its request for good. In a verify it is what the
    model says of a draft: where it differs from the next draft, that one is rejected. Empty in mode
    draft."""
    finished: IntArray
    """Requests that left for good since the step before; what they owned is free, and may be
    others' now. A request that is not named anywhere waits, with all that it owns."""
    preempted: IntArray
    """Requests that left since the step before and come back later: what they owned is free too."""
    resumed: IntArray
    """Requests of this step that come back after they were preempted, with a row and pages of
    their own again."""
    mrope: IntArray | None
    """[num_tokens] extra position input, or None where the batch comes without it."""
    track_slots: IntArray
    """[raw_bs] recurrent-state slot that a copy of the state goes to where `state_tracked` says so;
    empty without `state_track_interval`."""
    tracked_lens: IntArray
    """[raw_bs] tokens of the row behind which that state lies; 0 where the step keeps none, as in a
    draft-extend, before which a verify has kept it. Empty where `track_slots` is."""
    ring_depths: IntArray
    """[raw_bs] tokens before this step that a row's state, as it was written last, does not hold
    yet: what they brought lies in its ring. Empty without `state_ring_len`, as in the five
    below."""
    ring_left: IntArray
    """[raw_bs] the same behind this step."""
    rings_taken: IntArray
    """[raw_bs] 1 where the row does not go on from its last step: its state is one behind a prompt,
    and whatever its slot's ring holds is another's."""
    rings_forced: IntArray
    """[raw_bs] 1 where the step writes the state because of `state_flush_interval`."""
    ring_starts: IntArray
    """[raw_bs] place of the first of them in the ring, which verifies do not empty in place."""
    ring_starts_left: IntArray
    """[raw_bs] the same behind this step."""
    rank_sizes: IntArray
    """[dp_size] live rows of each data-parallel rank, or tokens where steps are prefills, with this
    one's at its place. Those of other ranks are tokens where `others_prefill`."""
    adapters: IntArray
    """[raw_bs] LoRA adapter of each request, numbered from 1 on; 0 for none."""
    others_prefill: bool = False
    """Whether other data-parallel ranks compute prompts in this step."""
    adapter_pools: tuple[tuple[int, ...], ...] = ()
    """Adapters that a pool may hold once it has those of this step, 0 for requests without one,
    each possibility in rising order; empty without adapters. See `layout.adapter_pool`."""
    plain_tokens: int = 0
    """Tokens of each row, from its first on, that have no adapter whatever `adapters` says."""
    most_kept: IntArray = field(default_factory=_no_numbers)
    """[raw_bs] tokens of a verify that may stay of each row, its first among them; empty where all
    may."""
    virtual_slots: Ragged | None = None
    """How the page map names every position below `seq_lens`, per row; None where it names slots as
    they are. A name lasts as long as its request has the page, in all KV cache groups, and
    `kv_slots` may differ from step to step."""
    more_groups: tuple[Batch, ...] = ()
    """The same step as the layers of each further KV cache group see it: with `slot_mapping`,
    `kv_slots` and `pages` of that group, all else is the same. Positions whose page is freed,
    because it lies wholly behind the group's window, have the reserved page and slot. No two
    groups own a page of one number at once, as where all take them from one pool."""

    @property
    def groups(self) -> tuple[Batch, ...]:
        """The step as each KV cache group sees it, in the order of `case.group_configs`."""
        return (self, *self.more_groups)

    @property
    def map_slots(self) -> Ragged:
        """What the page map holds for every position below `seq_lens`, per row."""
        return self.kv_slots if self.virtual_slots is None else self.virtual_slots

    @property
    def map_slot_mapping(self) -> IntArray:
        """`slot_mapping` as the page map names these slots."""
        if self.virtual_slots is None:
            return self.slot_mapping
        offsets = self.virtual_slots.offsets
        places = np.arange(offsets[-1])
        new = places >= np.repeat(offsets[:-1] + self.cached_lens, np.diff(offsets))
        found: IntArray = self.virtual_slots.values[new]
        return found

    @property
    def token_adapters(self) -> IntArray:
        """[num_tokens] LoRA adapter of each token, 0 for none."""
        first = np.cumsum(self.new_lens) - self.new_lens
        number = np.arange(self.num_tokens) - first[self.token_rows]
        found: IntArray = self.adapters[self.token_rows] * (number >= self.plain_tokens)
        return found

    @property
    def largest_rank(self) -> int:
        """The largest of `rank_sizes`, which sizes the graphs of all ranks."""
        return int(self.rank_sizes.max())

    @property
    def cached_lens(self) -> IntArray:
        """[raw_bs] KV tokens that were there before this step."""
        return self.seq_lens - self.new_lens

    @property
    def stayed_lens(self) -> IntArray:
        """[raw_bs] tokens that are there for good behind this step: in a verify of a chain those
        before it, its first, and its drafts up to the first one that the model rejects, but no more
        than `most_kept`."""
        if self.mode != "target_verify" or not len(self.predicted):
            return self.seq_lens
        found, ends = self.cached_lens.copy(), np.append(0, np.cumsum(self.new_lens))
        for row, (start, stop) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            right = self.input_ids[start + 1 : stop] == self.predicted[start : stop - 1]
            found[row] += min(1, stop - start) + int(np.logical_and.accumulate(right).sum())
        if len(self.most_kept):
            found = np.minimum(found, self.cached_lens + self.most_kept)
        return found

    @property
    def state_tracked(self) -> IntArray:
        """[raw_bs] 1 where the step keeps a state of the row for a prefix cache, else 0."""
        return np.minimum(self.tracked_lens, 1)

    @property
    def own_state_slots(self) -> IntArray:
        """[n] all recurrent-state slots that the step may write."""
        own = self.draft_state_slots.ravel() if len(self.draft_state_slots) else self.state_slots
        return np.concatenate((own, self.track_slots[self.state_tracked > 0]))

    def freed_pages(self) -> IntArray:
        """[raw_bs] leading pages that lie wholly behind the window of the KV cache group."""
        # A request that began again with fewer tokens has freed ones behind its own, too.
        held = self.pages.values != RESERVED_PAGE
        before = np.append(0, np.cumsum(held))[self.pages.offsets[:-1]]
        rows = np.repeat(np.arange(self.raw_bs), np.diff(self.pages.offsets))
        leading = ~held & (np.cumsum(held) == before[rows])
        counts: IntArray = np.bincount(rows[leading], minlength=self.raw_bs)
        return counts

    def with_rows(self, rows: IntArray) -> Batch:
        """The same requests in another order: row i of it is row `rows[i]` of this batch."""
        counts = np.bincount(self.token_rows, minlength=self.raw_bs)
        tokens = segments(counts, rows)
        written = len(self.slot_mapping) // max(len(self.token_rows), 1)  # a draft's are several
        slots = (tokens[:, None] * written + np.arange(written)).ravel()
        per_row = {name: getattr(self, name)[rows] for name in _BY_ROW}
        states = {name: getattr(self, name) for name in _OF_STATES}
        states = {name: held[rows] if len(held) else held for name, held in states.items()}
        per_token = {name: getattr(self, name)[tokens] for name in _BY_TOKEN}
        predicted = self.predicted[tokens] if len(self.predicted) else self.predicted
        ragged = {name: getattr(self, name).with_rows(rows) for name in _RAGGED}
        return replace(
            self,
            **per_row,
            **per_token,
            **ragged,
            token_rows=np.repeat(np.arange(self.raw_bs), counts[rows]),
            predicted=predicted,
            most_kept=self.most_kept[rows] if len(self.most_kept) else self.most_kept,
            slot_mapping=self.slot_mapping[slots],
            **states,
            tree_parents=None if self.tree_parents is None else self.tree_parents[rows],
            mrope=None if self.mrope is None else self.mrope[tokens],
            virtual_slots=self.virtual_slots and self.virtual_slots.with_rows(rows),
            more_groups=tuple(group.with_rows(rows) for group in self.more_groups),
        )


_BY_ROW = (
    "requests", "req_pool_indices", "seq_lens", "new_lens", "encoder_lens", "next_tokens",
    "adapters",
)  # fmt: skip
_OF_STATES = (
    "state_slots",
    "draft_state_slots",
    "kept_tokens",
    "new_states",
    "track_slots",
    "tracked_lens",
    "ring_depths",
    "ring_left",
    "rings_taken",
    "rings_forced",
    "ring_starts",
    "ring_starts_left",
)
"""By row, and empty in a config without them."""
_BY_TOKEN = ("input_ids", "positions")
_RAGGED = (
    "kv_slots", "kv_tokens", "prompts", "kv_positions", "pages", "encoder_slots", "encoder_tokens",
)  # fmt: skip
