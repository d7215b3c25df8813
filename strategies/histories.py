"""A flat record of small integers becomes a history of replay steps.

Every record is meaningful, whatever its bytes, so nothing is ever filtered away; smaller bytes
mean simpler steps, which is what shrinking relies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, EngineConfig, Mode, ReplayStep, Via, ladder, raw_size
from fuzzgraph.case.adapters import most_adapters, pinned_adapters, room_for_adapters
from fuzzgraph.case.capture_sizes import counts_tokens, most_of_a_rank
from fuzzgraph.case.verified_states import (
    Computed,
    computed,
    joins_with_drafts,
    most_requests,
    verifies_states,
)
from fuzzgraph.case.verify_budgets import cuts_rows
from fuzzgraph.case.whole_pasts import with_whole_past
from fuzzgraph.layout.free_list import FreeList
from fuzzgraph.strategies import boundaries
from fuzzgraph.strategies.profile import Profile
from fuzzgraph.strategies.wide_batches import is_wide

_ROWS = 8
STEP_BYTES = 7 + 2 * _ROWS
"""One step: presence, mode, size, flags, finish, composition, length style, then a length and
an extra byte for each row (rows beyond the eighth take them again, mixed)."""

PRESENCE, _MODE, SIZE, _FLAGS, FINISH, _COMPOSITION, _STYLE, _LENGTHS = range(8)
_EXTRAS = _LENGTHS + _ROWS
_RANKS = _EXTRAS - 1
"""The other ranks, from the bytes of the eighth row, which few batches have."""
_IDLE_FROM = 242
"""Of 256: one step in 18 is idle, where the target has that mode."""
_REPEAT_FROM, _EAGER_FROM = 206, 218
_EAGER_TOKENS = 256
"""Upper bound of a prefill above the ladder, whose cost grows with tokens times context."""


def _scaled(byte: int, count: int) -> int:
    """0..255 onto 0..count-1, in order."""
    return byte * count >> 8


def most_rows(config: EngineConfig, mode: Mode, above_ladder: bool) -> int:
    """Requests that a batch can have: all live ones, and the captured sizes unless above."""
    most = most_requests(config)
    return most if above_ladder else min(most, ladder(config, mode)[-1])


class HistoryBuilder:
    """Decodes step records; keeps who is live and how long everybody is."""

    def __init__(
        self,
        config: EngineConfig,
        can: Capabilities,
        profile: Profile,
        rows: FreeList,
        *,
        mrope: bool,
        prefix: int,
        raw_bs: tuple[int, ...] = (),
    ) -> None:
        self.config = config
        self.floor = prefix * config.page_size
        """Tokens of the shared prefix; a single shorter row would end the sharing for all."""
        self.least = max(can.min_seq_len, 1)
        self.mrope = mrope and can.mrope
        self.eager = can.eager_steps
        self.idle = "idle" in can.modes and (can.idle_alone or config.dp_size > 1)
        self.preemption = can.preemption
        self.ragged = can.ragged_verify and config.spec_topk == 1
        self.prompts_apart = verifies_states(config) and not can.verified_prompts
        """Whether a row of a verify goes on where it can, and else computes one token."""
        self.computed: dict[int, Computed] = {}
        """Live request -> what its last step computed, if so."""
        self.least_grown, self.styles_grown = (16, 226) if config.state_ring_len else (128, 204)
        """Of 256: rows from the one on grow, in steps below the other."""
        self.prefilling_ranks = can.prefilling_ranks and config.modes == ("decode",)
        self.parks = can.waiting
        """Whether requests that are not in a batch wait; else they leave."""
        wide = can.max_wide_batch and is_wide(config.req_pool_size)
        self.most: int = can.max_wide_batch if wide else min(can.max_batch, profile.max_batch)
        self.raw_bs = raw_bs
        """Live requests of a batch, one of these; () for what the config allows."""
        self.lengths: dict[int, int] = {}
        """Live request -> its length, in order of arrival."""
        self.verified: dict[int, int] = {}
        """Request -> tokens that its last step checked, if that was a verify of a chain."""
        self.encoders: dict[int, int] = {}
        self.adapters: dict[int, int] = {}
        """Request, live or not -> its LoRA adapter."""
        self.back: frozenset[int] = frozenset()
        """Requests of this step that come back."""
        self.free_rows = rows
        """The request pool's allocator, as the layout of the case will have it."""
        self.rows: dict[int, int] = {}
        """Live request -> its row of the request pool."""
        self.left: dict[int, int] = {}
        """Row -> length of the last request that finished there."""
        self.waiting: dict[int, int] = {}
        """Request that left and may come back -> its length, the longest away first."""
        self.named = 0
        self.last: ReplayStep | None = None

    def step(self, record: bytes) -> ReplayStep:
        """The step that the record means after the history so far."""
        flags = record[_FLAGS]
        # Of 256: 38 run eagerly, and 12 below them repeat the step before. The lowest bit is free.
        via: Via = "eager" if self.eager and flags >= _EAGER_FROM else "graph"
        mrope = self.mrope and flags & 1 == 1
        mode = self._mode(record[_MODE])
        repeats = _REPEAT_FROM <= flags < _EAGER_FROM and not self.prompts_apart
        if self.last is not None and repeats:
            via = "graph" if self.config.eager_above_ladder else self.last.via
            step = ReplayStep(mode=self.last.mode, rows=self.last.rows, via=via, mrope=mrope)
        elif mode == "idle":
            finish = self._finish(record[FINISH], 0)
            finish += () if self.parks else self._gone([*self.lengths])
            step = ReplayStep(mode=mode, finish=finish, via=via)
        else:
            size = self._size(mode, record[SIZE], via)
            finish = self._finish(record[FINISH], size)
            requests = self._requests(size, record[_COMPOSITION], finish)
            if not self.parks:
                finish += self._gone([name for name in self.lengths if name not in requests])
            rows = self._rows(mode, requests, record, via)
            step = ReplayStep(mode=mode, rows=rows, finish=finish, via=via, mrope=mrope)
        if self.config.dp_size > 1:
            step = msgspec.structs.replace(step, other_ranks=self._other_ranks(step, record))
            if (
                self.prefilling_ranks
                and step.mode in ("decode", "idle")
                and record[_RANKS] % 4 == 1
            ):
                step = self._beside_prompts(step, record)
        self.last = step
        return step

    def _other_ranks(self, step: ReplayStep, record: bytes) -> tuple[int, ...]:
        """Sizes of the other ranks: as here, none, one far larger, or any at an edge.

        An idle rank is so beside others, never alone.
        """
        count, style = self.config.dp_size - 1, record[_RANKS]
        # Beside a rank that no graph holds rows would be whole.
        sizes = self._rank_sizes(self._above_ladder(step.via) and not self._cut(step))
        first, here = record[_EXTRAS + _ROWS - 1], raw_size(step)
        if step.rows and style < 64:
            return ()
        if step.rows and style < 104:
            return (0,) * count
        if style < 176:  # the others idle, or as large as this one
            rest = (0, here)[style & 1]
            larger = [size for size in sizes if size > here] or [sizes[-1]]
            place = style // 2 % count
            rows = larger[_scaled(first, len(larger))]
            return tuple(rows if rank == place else rest for rank in range(count))
        choices = (0, *sizes)
        drawn = [choices[(first * (2 * rank + 1) + style) % len(choices)] for rank in range(count)]
        return tuple(drawn) if step.rows or any(drawn) else (sizes[-1],) * count

    def _cut(self, step: ReplayStep) -> bool:
        """Whether a budget has left some row fewer drafts."""
        drafts = self.config.draft_tokens
        budget = self.config.verify_budget == "compact"
        return budget and any(row.new_tokens < drafts for row in step.rows)

    def _beside_prompts(self, step: ReplayStep, record: bytes) -> ReplayStep:
        """The step beside ranks of which one or more compute prompts, and some may be idle."""
        most = most_of_a_rank(self.config, prefills=True)
        here, drawn = raw_size(step), record[_EXTRAS + _ROWS - 1] + record[_RANKS]
        tokens = [min(size, most) for size in (here + 1, 1, here + 7, here or 3, 2)]
        choices = (tokens[drawn % 5], 0, tokens[drawn // 5 % 5])
        count = self.config.dp_size - 1
        others = [choices[(rank + drawn) % 3] for rank in range(count)]
        if not any(others):
            others[0] = tokens[0]
        return msgspec.structs.replace(step, other_ranks=tuple(others), others_prefill=True)

    def _rank_sizes(self, above_ladder: bool) -> tuple[int, ...]:
        """Sizes of a rank that are worth trying, ascending."""
        if not counts_tokens(self.config, "idle"):
            return boundaries.batch_sizes(self.config, self.most, above_ladder)
        largest = self.config.capture_tokens[-1]
        most = min(most_of_a_rank(self.config), largest + above_ladder)
        return boundaries.token_counts(self.config, most)

    def _mode(self, byte: int) -> Mode:
        if self.idle and byte >= _IDLE_FROM:
            return "idle"
        modes = self.config.modes
        return modes[byte * len(modes) // (_IDLE_FROM if self.idle else 256)]

    def _above_ladder(self, via: Via) -> bool:
        return self.eager and (via == "eager" or self.config.eager_above_ladder)

    def _size(self, mode: Mode, byte: int, via: Via) -> int:
        if self.raw_bs:
            top = most_rows(self.config, mode, above_ladder=self._above_ladder(via))
            sizes = tuple(size for size in self.raw_bs if size <= top)
            return sizes[_scaled(byte, len(sizes))]
        if mode == "prefill":
            top = min(self.most, most_rows(self.config, mode, self._above_ladder(via)))
            return 1 + byte * byte * top // 65536  # few requests with many tokens, mostly
        sizes = boundaries.batch_sizes(self.config, self.most, self._above_ladder(via))
        if not self.parks and byte & 1 and 0 < len(self.lengths) <= sizes[-1]:
            return len(self.lengths)  # who is passed over is gone: half of the batches keep all
        return sizes[_scaled(byte, len(sizes))]

    def _finish(self, byte: int, size: int) -> tuple[int, ...]:
        live = list(self.lengths)
        # Of 256. In half of the steps nobody leaves: a batch also shrinks while requests wait.
        # The widest band is the one in which those leave that do not fit the new size.
        if byte < 136 or not live:
            return ()
        if byte < 176:
            gone = live[size:]  # the youngest: what shrinks a batch in the simplest way
        elif byte < 200:
            gone = live[: max(0, len(live) - size)] or live[:1]  # the oldest, as a server does it
        elif byte < 216:
            gone = live[:1]  # one alone, whatever the size of the batch
        elif byte < 232:
            gone = live[byte & 1 :: 2]  # every second one, which leaves gaps in the request pool
        else:
            gone = live  # all of them: the next batch starts afresh on used memory
        return self._gone(gone)

    def _gone(self, requests: Sequence[int]) -> tuple[int, ...]:
        """These requests, once they have left."""
        for request in requests:
            row = self.rows.pop(request)
            self.left[row] = self.waiting[request] = self.lengths.pop(request)
            self.free_rows.give_back([row])
            self.computed.pop(request, None)
            del self.encoders[request]
        return tuple(requests)

    def _requests(self, size: int, byte: int, gone: tuple[int, ...]) -> list[int]:
        """Who is in the batch: live ones (the others are parked), then newcomers.

        Args:
            gone: those that leave just before it.
        """
        live = list(self.lengths)
        room = most_requests(self.config) - len(live)
        # In a quarter of the batches half of the rows are newcomers, whoever else is live.
        wanted = size // 2 if byte >= 192 else size
        kept = min(len(live), max(wanted, size - room))
        start = byte % 5 if len(live) > kept else 0
        chosen = [live[(start + index) % len(live)] for index in range(kept)]
        back: list[int] = []
        self.back = frozenset()
        if self.preemption and byte & 8 and size > kept:
            # One that left comes back in half of the batches with room, as a preempted one does.
            left = (name for name in self.waiting if name not in gone and self._fits(name))
            back = [*islice(left, 1)]
        self.back = frozenset(back)
        new = size - kept - len(back)
        chosen += [*back, *range(self.named, self.named + new)]
        self.named += new
        if byte & 7 == 7:  # one batch in eight: rows need not be in order of arrival
            chosen.reverse()
        return chosen

    def _rows(
        self, mode: Mode, requests: Sequence[int], record: bytes, via: Via
    ) -> tuple[BatchRow, ...]:
        new_tokens = self._new_tokens(mode, len(requests), record, via)
        rows: list[BatchRow] = []
        beside = False
        for index, (request, tokens) in enumerate(zip(requests, new_tokens, strict=True)):
            if request not in self.rows:
                self.rows[request] = self.free_rows.take(1)[0]
            length = self._length(mode, request, tokens, index, record)
            length = with_whole_past(self.config, mode, length, tokens)
            if self.prompts_apart:
                tokens, goes_on = self._verified(request, tokens, length, beside=beside)
                beside |= goes_on
            if request not in self.encoders:
                encoders = boundaries.encoder_lens(self.config)
                extra = record[_EXTRAS + index % _ROWS]
                self.encoders[request] = encoders[_scaled(extra, len(encoders))]
                self.adapters[request] = self._adapter(request, extra)
            self.lengths[request] = length
            chain = mode == "target_verify" and self.config.spec_topk == 1
            self.verified[request] = tokens if chain else 0
            self.waiting.pop(request, None)
            rows.append(
                BatchRow(
                    request=request,
                    seq_len=length,
                    new_tokens=tokens,
                    encoder_len=self.encoders[request],
                    adapter=self.adapters[request],
                )
            )
        return tuple(rows)

    def _adapter(self, request: int, byte: int) -> int:
        """The adapter of a request that comes, or comes back."""
        if request in self.back:
            return self.adapters[request]
        named = self._live_adapters()
        given: Sequence[int] = range(1 + most_adapters(self.config))
        if room_for_adapters(self.config, named) <= 0:
            given = (0, *sorted(named.union(pinned_adapters(self.config))))
        return given[_scaled(byte, len(given))]

    def _live_adapters(self) -> set[int]:
        """Those of live requests, which are never more than a batch may have."""
        return {self.adapters[name] for name in (*self.lengths, *self.back)} - {0}

    def _fits(self, request: int) -> bool:
        """Whether there is room for the adapter of a request that comes back."""
        named = self._live_adapters() | {self.adapters[request]} - {0}
        return room_for_adapters(self.config, named) >= 0

    def _verified(
        self, request: int, tokens: int, length: int, *, beside: bool
    ) -> tuple[int, bool]:
        """(tokens, whether it goes on) of a row of a verify that may not compute several tokens of
        a prompt. A row has all of them where it goes on, or joins others with drafts behind its
        prompt; else one.

        Args:
            beside: whether a row before it goes on.
        """
        before = self.computed.get(request)
        joins = joins_with_drafts(self.config, length - tokens, beside=beside)
        kept, now = computed(before, length - tokens, tokens, joins=joins)
        if not kept and not joins:
            tokens = 1
            _, now = computed(None, length - 1, 1)
        self.computed[request] = now
        return tokens, kept > 0

    def _new_tokens(self, mode: Mode, size: int, record: bytes, via: Via) -> list[int]:
        drafts = self.config.draft_tokens
        if mode == "prefill":
            return self._prefill_tokens(size, record, via)
        if mode == "draft_extend":
            extras = record[_EXTRAS : _EXTRAS + _ROWS]
            return [_scaled(extras[index % _ROWS], drafts + 1) for index in range(size)]
        # One verify in four, or three where a budget says so: rows have fewer drafts than the
        # engine checks at most.
        cut = cuts_rows(self.config, size) and record[_STYLE] & 3 < 3
        if mode == "target_verify" and (cut or (self.ragged and record[_STYLE] & 3 == 3)):
            extras = record[_EXTRAS : _EXTRAS + _ROWS]
            return [1 + extras[index % _ROWS] % drafts for index in range(size)]
        return [{"target_verify": drafts, "draft": 0}.get(mode, 1)] * size

    def _prefill_tokens(self, size: int, record: bytes, via: Via) -> list[int]:
        """Tokens per row that add up to a count near a captured one, evenly or all on one row.

        Above the ladder, where the batch runs eagerly, one in five fills every row's context.
        """
        ladder = self.config.capture_tokens
        context = self.config.max_context_len - self.floor
        most = max(ladder[-1] + 2, _EAGER_TOKENS) if self._above_ladder(via) else ladder[-1]
        counts = boundaries.token_counts(self.config, min(most, size * context))
        spread = record[_EXTRAS + 1]  # below 128 even, below 204 on one row, then all that fit
        total = max(size, counts[-1 if spread >= 204 else _scaled(record[_EXTRAS], len(counts))])
        if 128 <= spread < 204:
            first = min(context, total - size + 1)
            rest = total - first
            shares = [rest // (size - 1)] * (size - 1) if size > 1 else []
            for index in range(rest - sum(shares)):
                shares[index] += 1
            return [first, *shares]
        return [total // size + (index < total % size) for index in range(size)]

    def _length(self, mode: Mode, request: int, tokens: int, index: int, record: bytes) -> int:
        # The style of a step, of 256. Below 176: every row by its own byte. Below 204: all by the
        # first row's, so equal lengths. Below 226: all at the end of the context; below 236: all as
        # short as can be. From there on: grown by what this step computes, where that is possible;
        # below 204 half of the rows are. Nearly all are whose states lie in rings.
        style, least = record[_STYLE], max(self.floor + max(tokens, 1), self.least)
        byte = record[_LENGTHS + (0 if 176 <= style < 204 else index % _ROWS)]
        byte ^= 0x55 * (index // _ROWS) & 0xFF  # the ninth row is no copy of the first
        if style >= 204:
            byte = 255 if style < 226 else 0 if style < 236 else byte
        extra = record[_EXTRAS + index % _ROWS]
        if (
            (byte >= self.least_grown and style < self.styles_grown)
            or style >= 236
            or request in self.computed
        ):
            grown = self._grown(request, tokens, extra)
            if least <= grown <= self.config.max_context_len:
                return grown
        lengths = boundaries.seq_lens(self.config, mode, least)
        length = lengths[_scaled(byte, len(lengths))]
        if self.prompts_apart:  # none to three verifies later it is as long as that
            length = max(least, length - (extra & 3) * tokens)
        return length

    def _grown(self, request: int, tokens: int, byte: int) -> int:
        """Its length after `tokens` more; a newcomer looks like its row's last owner, one longer.

        Engines that keep what they wrote for a row take such a newcomer for the owner itself.
        0 where there is neither. After a verify, what it rejected is gone: nothing in half of
        the cases, else any number of drafts.
        """
        before = self.lengths.get(request, self.waiting.get(request))
        if before is not None:
            checked = self.verified.get(request, 0)
            accepted = min(checked, 1 + _scaled(byte, 2 * checked))
            if request in self.computed:  # of placeholders none stays
                accepted = min(accepted, self.computed[request].most)
            return before - checked + accepted + tokens
        left = self.left.get(self.rows[request])
        return 0 if left is None else left + 1
