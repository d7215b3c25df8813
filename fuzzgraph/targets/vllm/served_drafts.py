"""What a scheduler tells the runner of requests for which EAGLE is to draft."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.vllm.draft_models import token_before
from fuzzgraph.targets.vllm.served_requests import (
    Scheduled,
    ServedRequests,
    request_data,
    scheduler_output,
)
from fuzzgraph.world import Batch


class ServedDrafts(ServedRequests):
    """Each request ends with its step, because the pages of its draft are the step's own.

    A step computes the last token of a prompt. The model samples the token that the case drafts
    from, which the draft model takes at the position of the one before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[str] = set()

    def step(self, batch: Batch) -> Scheduled:
        self.count += 1
        names = [f"{request}.{self.count}" for request in batch.requests.tolist()]
        new = [_new_request(name, batch, row) for row, name in enumerate(names)]
        output = scheduler_output(dict.fromkeys(names, 1), groups=1, new=new)
        output.finished_req_ids, self._running = self._running, set(names)
        output.num_spec_tokens_to_schedule = drafted_steps(batch)
        firsts = batch.input_ids.tolist()
        sampled = {name: [first] for name, first in zip(names, firsts, strict=True)}
        rows = {name: row for row, name in enumerate(names)}
        return Scheduled(output, rows, sampled, [1] * len(names))


def drafted_steps(batch: Batch) -> int:
    """Tokens of each draft; 0 without rows."""
    return len(batch.slot_mapping) // max(batch.raw_bs, 1)


def _new_request(name: str, batch: Batch, row: int) -> Any:
    """A request with the pages of its past and those of its draft; a page is one token's."""
    past, steps = int(batch.seq_lens[row]), drafted_steps(batch)
    tokens = [0] * past + [token_before(int(batch.input_ids[row]))]
    known = batch.pages.row(row)[:past].tolist()  # a case's request may get shorter
    drafted = batch.slot_mapping[row * steps : (row + 1) * steps].tolist()
    return request_data(name, tokens, ([*known, *drafted],), past)
