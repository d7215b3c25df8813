"""How many recurrent-state slots there are, and which of a request's a step goes on from.

For its prefix cache an engine may keep states of a request behind some of its lengths. They take
two slots in turn, so that one stays whole while the other is written. Source: sglang
HybridReqToTokenPool `mamba_ping_pong_track_buffer`.

A verify cannot take back what a draft did to a state, so the state behind each of its tokens has a
slot of its own, and the next step starts from the one behind the last token that stayed. Sources:
vLLM MambaSpec.num_speculative_blocks; sglang MambaPool.SpeculativeState.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuzzgraph.case.model import Case, EngineConfig


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


def requests_with_state(config: EngineConfig) -> int:
    """Requests for which there are recurrent-state slots."""
    return config.state_pool_size or config.req_pool_size


def most_requests(config: EngineConfig) -> int:
    """Requests that can be live at once."""
    return min(config.req_pool_size, requests_with_state(config))


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step computed of a request."""

    start: int
    """Tokens that were there before."""
    count: int
    is_prompt: bool
    """Whether that was the end of its prompt: then its state is behind its last token alone."""

    def kept(self, cached: int) -> int:
        """Tokens that stayed, for a step that finds `cached` of them; 0 where that does not go on
        from this one. Of a prompt, its one state."""
        stayed = cached - self.start
        if self.is_prompt:
            return int(stayed == self.count)
        return stayed if 0 < stayed <= self.count else 0


def verified_prompts(case: Case) -> Iterator[tuple[int, int]]:
    """(step, tokens) of each row of a verify that begins a request, and does not go on with it."""
    last: dict[int, Computed] = {}
    for number, step in enumerate(case.steps):
        for request in step.finish:
            last.pop(request, None)
        for row in step.rows:
            cached = row.seq_len - row.new_tokens
            before = last.get(row.request)
            begins = before is None or not before.kept(cached)
            last[row.request] = Computed(cached, row.new_tokens, is_prompt=begins)
            if begins:
                yield number, row.new_tokens
