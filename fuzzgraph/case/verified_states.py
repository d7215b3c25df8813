"""How many recurrent-state slots there are, and which of a request's a step goes on from.

For its prefix cache an engine may keep states of a request behind some of its lengths. They take
two slots in turn, so that one stays whole while the other is written. Source: sglang
HybridReqToTokenPool `mamba_ping_pong_track_buffer`.

A verify cannot take back what a draft did to a state, so the state behind each of its tokens has a
slot of its own, and the next step starts from the one behind the last token that stayed. Sources:
vLLM MambaSpec.num_speculative_blocks; sglang MambaPool.SpeculativeState.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuzzgraph.case.engine_config import EngineConfig, Mode
from fuzzgraph.case.model import BatchRow, Case


def verifies_states(config: EngineConfig) -> bool:
    """Whether steps check drafts by layers with recurrent states."""
    return config.recurrent_state and "target_verify" in config.modes


def states_each(config: EngineConfig) -> int:
    """Recurrent-state slots of a request."""
    if verifies_states(config):
        return config.draft_tokens
    return 1 if config.recurrent_state else 0


TRACK_SLOTS = 2
"""Slots of a request whose states are kept for a prefix cache, taken in turn."""


def state_slots_each(config: EngineConfig) -> int:
    """All recurrent-state slots of a request, those of kept states behind the others."""
    return states_each(config) + (TRACK_SLOTS if config.state_track_interval else 0)


def tracked_len(
    mode: Mode, row: BatchRow, interval: int, stays: int, *, branches: bool = False
) -> int:
    """Tokens behind which a step keeps a state of a row for the prefix cache; 0 where it keeps
    none.

    A decode keeps one where it reaches a multiple of the interval, and a prompt behind as many
    whole intervals as it computes, counted from its first new token, or where a prefix that it
    shares with another prompt ends. A verify keeps one behind the
    last multiple that the tokens which stay reach or pass; a draft-extend follows such a verify.
    Sources: sglang schedule_batch.py `_mamba_radix_cache_v2_req_prepare_for_extend`,
    `prepare_for_decode`; spec_utils.py `_verify_commit_step_indices`.

    Args:
        stays: new tokens of the row that are there for good behind the step.
        branches: whether such a prefix ends one interval before the last that a prompt computes.

    >>> tracked_len("prefill", BatchRow(request=0, seq_len=200, new_tokens=140), 64, stays=140)
    188
    >>> tracked_len("target_verify", BatchRow(request=0, seq_len=67, new_tokens=4), 64, stays=2)
    64
    """
    if mode == "decode":
        return row.seq_len if row.seq_len % interval == 0 else 0
    if mode == "prefill" and row.new_tokens >= interval:
        earlier = interval if branches and row.new_tokens >= 2 * interval else 0
        return row.seq_len - row.new_tokens % interval - earlier
    if mode in ("target_verify", "draft_extend"):
        cached = row.seq_len - row.new_tokens
        ends = cached + stays
        return ends - ends % interval if ends // interval > cached // interval else 0
    return 0


def requests_with_state(config: EngineConfig) -> int:
    """Requests for which there are recurrent-state slots."""
    return config.state_pool_size or config.req_pool_size


def most_requests(config: EngineConfig) -> int:
    """Requests that can be live at once."""
    return min(config.req_pool_size, requests_with_state(config))


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step computed of a request, and how much of it the next step may find."""

    start: int
    """Tokens that were there before."""
    least: int
    """Tokens of its own that stay at least."""
    most: int
    states: int
    """Recurrent states that it left, one behind each of its last tokens."""

    def kept(self, cached: int) -> int:
        """Number of the state that a step with `cached` tokens goes on from, from 1; 0 where that
        does not go on from this one. It is that of tokens that stayed; a prompt left one alone."""
        stayed = cached - self.start
        return min(stayed, self.states) if self.least <= stayed <= self.most else 0


def computed(
    before: Computed | None, cached: int, tokens: int, *, joins: bool = False
) -> tuple[int, Computed]:
    """(state that a row of a verify goes on from, 0 for none, and what the row computes).

    A row that goes on checks drafts, and leaves a state behind each token. Another one computes the
    end of a prompt, whose one state is behind its last token. Where it `joins`, its first token is
    that end, and those behind it are placeholders, of which none stays.
    """
    if before is not None and (kept := before.kept(cached)):
        return kept, Computed(cached, least=1, most=tokens, states=tokens)
    if joins:
        return 0, Computed(cached, least=1, most=1, states=tokens)
    return 0, Computed(cached, least=tokens, most=tokens, states=1)


def joins_with_drafts(config: EngineConfig, cached: int, *, beside: bool) -> bool:
    """Whether drafts stand behind the prompt of a request that begins: `beside` one that goes on,
    or over tokens that a prefix cache had.

    Source: vLLM v1/core/sched/scheduler.py `pad_spec_decode`.
    """
    return config.drafted_prompts and (beside or cached > 0)


def computed_by(
    config: EngineConfig, rows: Sequence[BatchRow], last: Mapping[int, Computed]
) -> dict[int, tuple[int, Computed]]:
    """Request -> `computed`, of the rows of a verify, by what each request's last step computed."""
    cached = {row.request: row.seq_len - row.new_tokens for row in rows}
    beside = any(one in last and last[one].kept(there) for one, there in cached.items())
    found = {}
    for row in rows:
        there = cached[row.request]
        joins = joins_with_drafts(config, there, beside=beside)
        found[row.request] = computed(last.get(row.request), there, row.new_tokens, joins=joins)
    return found


def _begun(case: Case) -> Iterator[tuple[int, int, Computed]]:
    """(step, request, what it computes) of each row of a verify that begins a request."""
    last: dict[int, Computed] = {}
    for number, step in enumerate(case.steps):
        for request in step.finish:
            last.pop(request, None)
        for request, (kept, now) in computed_by(case.config, step.rows, last).items():
            last[request] = now
            if not kept:
                yield number, request, now


def verified_prompts(case: Case) -> Iterator[tuple[int, int]]:
    """(step, tokens of its prompt) of each row of a verify that begins a request."""
    for number, _, now in _begun(case):
        yield number, now.least


def placeholder_rows(case: Case) -> Iterator[tuple[int, int]]:
    """(step, request) of each row whose drafts are placeholders."""
    if case.config.drafted_prompts:
        for number, request, now in _begun(case):
            if now.states > 1:
                yield number, request
