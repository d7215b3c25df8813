"""What a scheduler tells the runner of requests for which EAGLE is to draft."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.draft_models import token_before
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.served_requests import Scheduled, ServedRequests
from fuzzgraph.world import Batch

_OUTPUT = "vllm.v1.core.sched.output"


class ServedDrafts(ServedRequests):
    """Each request ends with its step, because the pages of its draft are the step's own.

    A step computes the last token of a prompt. The model samples the token that the case drafts
    from, which the draft model takes at the position of the one before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[str] = set()

    def step(self, batch: Batch) -> Scheduled:
        module = engine_module(_OUTPUT)
        self.count += 1
        names = [f"{request}.{self.count}" for request in batch.requests.tolist()]
        output = module.SchedulerOutput.make_empty()
        output.scheduled_new_reqs = [
            _new_request(module, name, batch, row) for row, name in enumerate(names)
        ]
        output.num_scheduled_tokens = dict.fromkeys(names, 1)
        output.total_num_scheduled_tokens = batch.raw_bs
        output.finished_req_ids, self._running = self._running, set(names)
        output.num_common_prefix_blocks = [0]
        output.num_spec_tokens_to_schedule = _steps(batch)
        firsts = batch.input_ids.tolist()
        sampled = {name: [first] for name, first in zip(names, firsts, strict=True)}
        rows = {name: row for row, name in enumerate(names)}
        return Scheduled(output, rows, sampled, [1] * len(names))


def _steps(batch: Batch) -> int:
    return len(batch.slot_mapping) // max(batch.raw_bs, 1)


def _new_request(module: Any, name: str, batch: Batch, row: int) -> Any:
    """A request with the pages of its past and those of its draft; a page is one token's."""
    past, steps = int(batch.seq_lens[row]), _steps(batch)
    tokens = [0] * past + [token_before(int(batch.input_ids[row]))]
    known = batch.pages.row(row)[:past].tolist()  # a case's request may get shorter
    drafted = batch.slot_mapping[row * steps : (row + 1) * steps].tolist()
    return call_with_known(
        module.NewRequestData,
        req_id=name,
        prompt_token_ids=tokens,
        prefill_token_ids=tokens,
        mm_features=[],
        sampling_params=engine_module("vllm.sampling_params").SamplingParams(temperature=0.0),
        pooling_params=None,
        block_ids=([*known, *drafted],),
        num_computed_tokens=past,
        lora_request=None,
    )
