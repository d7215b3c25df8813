"""What a scheduler tells the V2 runner of requests for which EAGLE drafts, step after step.

A step verifies the drafts of the step before it, and drafts behind what stays of them. Each request
ends with its step, because the pages of its draft are the step's own; so what a step goes on from
is told in steps of its own before it. How much of the last drafts stays is made up here, of the
batch alone: an engine's drafts are judged by the tokens that the case drafts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuzzgraph.targets.vllm.served_drafts import drafted_steps
from fuzzgraph.targets.vllm.served_requests import (
    Scheduled,
    ServedAnew,
    cached_requests,
    drafts_behind_prompts,
    request_data,
    scheduler_output,
)
from fuzzgraph.targets.vllm.v2_draft_models import followed
from fuzzgraph.world import RESERVED_PAGE, VOCAB, Batch


@dataclass(frozen=True)
class Row:
    """One request as a step computes it.

    The draft model takes the token behind each token that the target computes, at the same
    position, and drafts behind the last one that stays, whose position is `past`.
    """

    name: str
    """The engine's id."""
    past: int
    """Tokens of the draft model whose KV is there."""
    ids: list[int]
    """Of the target, of positions 0 to `past`."""
    first: int
    """The token that the target samples, behind which is drafted."""
    new: int
    """Tokens that stay of those that the step computes, the last of them at `past`."""
    rejected: int
    """Drafts behind them that do not stay."""
    goes_on: bool
    """Whether the step verifies drafts; else it computes the end of a prompt."""
    resumed: bool
    """Whether it was preempted: it is a new request, with what was sampled behind its prompt."""
    blocks: list[int]
    """Of a token each, beginning with the first one's."""

    @property
    def computed(self) -> int:
        """Tokens that the target has computed before the step."""
        return self.past + 1 - self.new

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return self.new + self.rejected

    @property
    def drafts(self) -> list[int]:
        """Those that the step verifies. Behind the end of a prompt they are placeholders, whose
        ids the target does not predict either: releases before 0.33 would accept them."""
        staying = self.ids[self.computed + 1 :] if self.goes_on else []
        return [*staying, *[(self.first + 1) % VOCAB] * self.rejected]

    @property
    def predicted(self) -> list[int]:
        """What the target says behind the token before each draft, and behind the last one."""
        staying = self.ids[self.computed + 1 :] if self.goes_on else []
        return [*staying, self.first, *[0] * self.rejected]


class ServedVerifiedDrafts(ServedAnew):
    """The requests of one step, and those of the step before it, which have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._running: dict[str, int] = {}
        """Engine's id -> the case's number."""
        self._left: tuple[set[str], set[str]] = set(), set()
        """Of those that nobody has told the runner of: ended, preempted."""

    def before(self, batch: Batch) -> Iterator[Scheduled]:
        """The step that begins the requests of which the next step verifies drafts, if any."""
        self.count += 1
        steps = drafted_steps(batch)
        preempted = batch.preempted.tolist()
        for name, request in self._running.items():
            self._left[request in preempted].add(name)
        self.rows = rows_of(batch, steps, self.count)
        names = [row.name for row in self.rows]
        self._running = dict(zip(names, batch.requests.tolist(), strict=True))
        begun = [row for row in self.rows if row.goes_on]
        if begun:
            yield self._scheduled(
                0,  # drafts that nobody verifies; releases that are not asked draft all the same
                new=[
                    _new(row, row.ids[: row.computed], row.computed - 1, row.computed + steps)
                    for row in begun
                ],
                scheduled={row.name: 1 for row in begun},
                sampled={row.name: [row.ids[row.computed]] for row in begun},
            )

    def step(self, batch: Batch) -> Scheduled:
        """What is handed over after `before`."""
        rows, steps = self.rows, drafted_steps(batch)
        return self._scheduled(
            steps,
            new=[_new(row, row.ids, row.computed) for row in rows if not row.goes_on],
            going=cached_requests(
                [_going(row, row.computed + steps) for row in rows if row.goes_on]
            ),
            scheduled={row.name: row.tokens for row in rows},
            drafts={row.name: row.drafts for row in rows if row.drafts},
            sampled={row.name: row.predicted for row in rows},
        )

    def _scheduled(self, steps: int, sampled: dict[str, list[int]], **told: Any) -> Scheduled:
        output = scheduler_output(groups=1, **told)
        output.num_spec_tokens_to_schedule = steps
        output.finished_req_ids, output.preempted_req_ids = self._left
        self._left = set(), set()
        places = {row.name: place for place, row in enumerate(self.rows)}
        return Scheduled(output, places, sampled, [])


def rows_of(batch: Batch, steps: int, count: int) -> list[Row]:
    """The requests of a step, each with as many drafts that stay as its number and length say.

    Args:
        steps: tokens of each draft.
        count: number of the step, which tells the engine's ids apart.
    """
    together = int(batch.seq_lens.sum())
    joining = together % 2 == 1
    placeholders = together % 4 == 1 and drafts_behind_prompts()
    rows = []
    for at, request in enumerate(batch.requests.tolist()):
        past, resumed = int(batch.seq_lens[at]), request in batch.resumed
        number = past + request
        joins = resumed or (joining and number % 2 == 1)
        new = min(number % (steps + 1) + 1, past)
        tokens, first = batch.kv_tokens.row(at).tolist(), int(batch.input_ids[at])
        alone = joins and placeholders  # drafts stand behind one token of a prompt, not behind more
        row = Row(
            name=f"{request}.{count}",
            past=past,
            ids=followed(tokens, first),
            first=first,
            new=1 if alone else new,
            rejected=steps if alone else 0 if joins else steps + 1 - new,
            goes_on=not joins,
            resumed=resumed,
            blocks=_blocks(batch, at, steps),
        )
        rows.append(row)
    return rows


def _blocks(batch: Batch, at: int, steps: int) -> list[int]:
    """Those of the past, which gets shorter at times, and of the draft. One token at most is stored
    behind it: a rejected one, into the reserved block."""
    past = batch.pages.row(at)[: batch.seq_lens[at]].tolist()
    return [*past, *batch.slot_mapping[at * steps : (at + 1) * steps].tolist(), RESERVED_PAGE]


def _new(row: Row, ids: list[int], computed: int, blocks: int | None = None) -> Any:
    """A request that the runner does not know; of one that was preempted half is its prompt."""
    prompt = (len(ids) + 1) // 2 if row.resumed else None
    return request_data(row.name, ids, (row.blocks[:blocks],), computed, prompt)


def _going(row: Row, known: int) -> dict[str, Any]:
    """With the blocks behind those that the runner knows."""
    return {
        "req_ids": row.name,
        "resumed": False,
        "all_token_ids": row.ids[: row.computed + 1],
        "new_block_ids": (row.blocks[known:],),
        "num_computed_tokens": row.computed,
        "num_output_tokens": 1,
    }
