"""What a scheduler tells the runner of each step, and what it has told it before.

The runner is handed a difference to the last step: requests that are new, that go on, that ended
or come back after they were preempted. Nothing of the batch is padded or ordered here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.vllm.release import engine_module
from fuzzgraph.targets.vllm.sliding_window import blocks_of
from fuzzgraph.world import Batch, IntArray

_OUTPUT = "vllm.v1.core.sched.output"
SCHEDULER = "vllm.v1.core.sched.scheduler"


def drafts_behind_prompts() -> bool:
    """Whether the release's scheduler puts drafts behind prompts: placeholders, all rejected."""
    schedule = engine_module(SCHEDULER).Scheduler.schedule
    return "pad_spec_decode" in schedule.__code__.co_varnames


@dataclass(frozen=True)
class Known:
    """What the scheduler knows of a request before a step."""

    name: str
    """The engine's id."""
    prompt: int
    """Tokens of its prompt."""
    pages: tuple[int, ...]
    """Pages that the runner knows of it in each KV cache group. That a window has left one behind
    it is never told."""
    computed: int
    """Tokens whose KV is there."""
    sampled: int = 0
    """Tokens that it was given behind its prompt."""


@dataclass(frozen=True)
class Scheduled:
    """One step as the engine sees it."""

    output: Any
    """`SchedulerOutput`"""
    rows: Mapping[str, int]
    """Engine's id -> row of the batch."""
    sampled: Mapping[str, list[int]]
    """Engine's id -> the tokens that its model predicts where the engine asks for logits: behind
    the last token, and behind each one before a draft."""
    in_prompt: list[int]
    """[rows of the batch] whether the step computes a part of the prompt."""
    answered: Mapping[str, list[int]] = field(default_factory=dict)
    """Engine's id -> the tokens that stay: of a verify the drafts up to the first that the model
    does not predict, and what it predicts in its place; none in the middle of a prompt. Nobody asks
    for those of a step that only tells the runner of a request's past."""


class ServedRequests:
    """The requests that a runner knows.

    A request that does not go on where its last step ended counts as ended, and another one takes
    its place: a server's requests grow by the next part of their prompt, by one token, or by what
    a verify accepts. The first step of a request computes the end of its prompt, whose beginning a
    cache of prefixes had.
    """

    resumed_are_new = False
    """Whether a request that comes back after it was preempted is handed over as a new one."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self.count = 0

    def step(self, batch: Batch) -> Scheduled:
        """What the scheduler hands over."""
        known = self.known
        ended = {known.pop(name).name for name in batch.finished.tolist() if name in known}
        preempted = {known[name].name for name in batch.preempted.tolist() if name in known}
        resumed = set(batch.resumed.tolist())
        new, going = [], []
        drafts: dict[str, list[int]] = {}
        rows: dict[str, int] = {}
        sampled: dict[str, list[int]] = {}
        answered: dict[str, list[int]] = {}
        in_prompt: list[int] = []
        for row, request in enumerate(batch.requests.tolist()):
            one = known.get(request)
            if one is not None and not _goes_on(one, batch, row):
                ended.add(one.name)
                one = None
            if one is None:
                one = self._newcomer(request, batch, row)
                new.append(new_request(one, batch, row))
            elif request in resumed and self.resumed_are_new:
                new.append(new_request(one, batch, row))
            else:
                going.append(going_request(one, batch, row, request in resumed))
            in_prompt.append(int(one.computed < self._prefilled(one, request in resumed)))
            drafted = _tokens(batch.input_ids, batch, row)[1:]
            predicted = _tokens(batch.predicted, batch, row)
            if not drafted or self._computes_prompt(one):
                drafted, predicted = [], predicted[-1:]
            else:
                drafts[one.name] = drafted
            rows[one.name], sampled[one.name] = row, predicted
            accepted = self._accepted(drafted, predicted, prefills=bool(in_prompt[-1]))
            ends = int(batch.seq_lens[row]) >= one.prompt
            answered[one.name] = predicted[: accepted + 1] if ends else []
            known[request] = _after(one, batch, row, len(drafted), accepted)
        output = scheduler_output(
            new=new,
            going=cached_requests(going),
            scheduled={name: int(batch.new_lens[row]) for name, row in rows.items()},
            drafts=drafts,
            groups=len(batch.groups),
        )
        output.finished_req_ids = ended
        output.preempted_req_ids = preempted - ended
        return Scheduled(output, rows, sampled, in_prompt, answered)

    def _newcomer(self, request: int, batch: Batch, row: int) -> Known:
        self.count += 1
        prompt = self._prompt(batch, row)
        return Known(f"{request}.{self.count}", prompt, (), int(batch.cached_lens[row]))

    def _prompt(self, batch: Batch, row: int) -> int:
        """Tokens of the prompt of a request that is new, without placeholders behind it."""
        placeholders = int(batch.new_states[row]) - 1 if len(batch.new_states) else 0
        return len(batch.prompts.row(row)) - placeholders

    def _prefilled(self, one: Known, resumed: bool) -> int:
        """Tokens that the runner takes for its prompt: of one that it forgot, sampled ones too."""
        return one.prompt + (one.sampled if resumed and self.resumed_are_new else 0)

    def _computes_prompt(self, one: Known) -> bool:
        """Whether all tokens of its step are its prompt's: drafts stand behind the last alone."""
        return one.computed + 1 < one.prompt

    def _accepted(self, drafted: list[int], predicted: list[int], *, prefills: bool) -> int:
        """How many of the drafts stay: those that the model predicts too.

        Args:
            prefills: whether the step computes what the runner takes for a part of the prompt; the
                drafts are placeholders then (spec_decode/rejection_sampler.py).
        """
        if prefills:
            return 0
        accepted = 0
        while accepted < len(drafted) and drafted[accepted] == predicted[accepted]:
            accepted += 1
        return accepted


class ServedAnew(ServedRequests):
    """As the V2 runner has it: it forgets a preempted request (scheduler.py, `schedule`)."""

    resumed_are_new = True


class ServedWithDrafts(ServedAnew):
    """Drafts stand behind the last token of a prompt too, which then runs as a decode
    (model_runner.py of V2, gather_batch_req_state). They are placeholders: none is accepted. The
    same goes for a request that comes back after it was preempted, whose sampled tokens the runner
    takes for its prompt's."""

    def _prompt(self, batch: Batch, row: int) -> int:
        return int(batch.cached_lens[row]) + 1


def scheduler_output(
    scheduled: dict[str, int],
    groups: int,
    new: Sequence[Any] = (),
    going: Any = None,
    drafts: Mapping[str, list[int]] = MappingProxyType({}),
) -> Any:
    """`SchedulerOutput` of one step.

    Args:
        scheduled: tokens of each request.
        groups: KV cache groups.
        going: `CachedRequestData`, of none where it is not given.
    """
    output = engine_module(_OUTPUT).SchedulerOutput.make_empty()
    output.scheduled_new_reqs = list(new)
    if going is not None:
        output.scheduled_cached_reqs = going
    output.num_scheduled_tokens = scheduled
    output.total_num_scheduled_tokens = sum(scheduled.values())
    output.scheduled_spec_decode_tokens = dict(drafts)
    output.num_common_prefix_blocks = [0] * groups
    return output


def _tokens(values: IntArray, batch: Batch, row: int) -> list[int]:
    """The entries of a row of what has one for each token."""
    end = int(batch.new_lens[: row + 1].sum())
    found: list[int] = values[end - int(batch.new_lens[row]) : end].tolist()
    return found


def _goes_on(one: Known, batch: Batch, row: int) -> bool:
    """Whether the step starts where the last one ended, and its prompt ends no sooner."""
    length = int(batch.seq_lens[row])
    in_prompt = one.computed < one.prompt
    return one.computed == batch.cached_lens[row] and not (in_prompt and length > one.prompt)


def _after(one: Known, batch: Batch, row: int, drafts: int, accepted: int) -> Known:
    """The request after the step."""
    length, pages = int(batch.seq_lens[row]), tuple(map(len, blocks_of(batch, row)))
    if length < one.prompt:
        return replace(one, pages=pages, computed=length)
    computed = length - drafts + accepted
    return replace(one, pages=pages, computed=computed, sampled=one.sampled + accepted + 1)


def new_request(one: Known, batch: Batch, row: int) -> Any:
    """A request that the runner does not know, with what was sampled before it was preempted."""
    tokens = batch.prompts.row(row)[: one.prompt + one.sampled].tolist()
    blocks = blocks_of(batch, row)
    return request_data(one.name, tokens, blocks, one.computed, prompt=one.prompt)


def request_data(
    name: str, tokens: list[int], blocks: Any, computed: int, prompt: int | None = None
) -> Any:
    """`NewRequestData` of a request.

    Args:
        tokens: of its prompt, and what was sampled behind it.
        blocks: of each KV cache group.
        computed: tokens whose KV is there.
        prompt: tokens of its prompt; None where nothing was sampled.
    """
    return call_with_known(
        engine_module(_OUTPUT).NewRequestData,
        req_id=name,
        prompt_token_ids=tokens[:prompt],
        prefill_token_ids=tokens,
        mm_features=[],
        sampling_params=engine_module("vllm.sampling_params").SamplingParams(temperature=0.0),
        pooling_params=None,
        block_ids=blocks,
        num_computed_tokens=computed,
        lora_request=None,
    )


def going_request(one: Known, batch: Batch, row: int, resumed: bool) -> dict[str, Any]:
    """A request that the runner knows, as one row of `CachedRequestData`."""
    more = blocks_of(batch, row)
    if not resumed:
        more = tuple(part[known:] for known, part in zip(one.pages, more, strict=True))
    return {
        "req_ids": one.name,
        "resumed": resumed,
        "all_token_ids": batch.prompts.row(row)[: one.prompt + one.sampled].tolist(),
        "new_block_ids": more if any(more) else None,
        "num_computed_tokens": one.computed,
        "num_output_tokens": one.sampled,
    }


def cached_requests(going: list[dict[str, Any]]) -> Any:
    listed = ("req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens")
    columns: Mapping[str, Any] = {name: [one[name] for one in going] for name in listed}
    return engine_module(_OUTPUT).CachedRequestData(
        **columns,
        resumed_req_ids={one["req_ids"] for one in going if one["resumed"]},
        new_token_ids=[],  # with one pipeline rank the runner keeps what it sampled
        all_token_ids={one["req_ids"]: one["all_token_ids"] for one in going},
    )
