"""How far the ring beside a recurrent state is filled, step by step.

An engine may write a state once in several tokens. What the tokens since then have brought lies in
a ring beside it, and a step replays them behind the state that was written. Source: sglang
hybrid_linear_attn_backend.py `_replay_metadata` (`replayssm_write_pos`), memory_pool.py
`HybridReqToTokenPool.alloc` and `MambaPool.copy_from`, which begin an empty ring.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuzzgraph.case.engine_config import EngineConfig


@dataclass(frozen=True, slots=True)
class Ring:
    """That of one request."""

    depth: int
    """Tokens that lie in it."""
    end: int
    """Tokens of the request that state and ring stand for together."""
    start: int = 0
    """Place of the first of them, where a ring goes on behind those that a state has taken."""

    def found(self, cached: int) -> Ring:
        """What a step finds that has so many tokens before it: where those are others than the last
        step left, the request has begun anew, behind a prompt."""
        return self if self.end == cached else NO_RING

    def after(self, config: EngineConfig, seq_len: int) -> tuple[Ring, bool]:
        """(what a decode leaves, whether it writes the state because of its length).

        >>> Ring(depth=1, end=5).after(EngineConfig(state_ring_len=3), 6)
        (Ring(depth=2, end=6, start=0), False)
        >>> Ring(depth=2, end=6).after(EngineConfig(state_ring_len=3), 7)
        (Ring(depth=0, end=7, start=0), False)
        """
        interval = config.state_flush_interval
        forced = interval > 0 and seq_len % interval == 0
        full = self.depth == config.state_ring_len - 1
        return Ring(0 if forced or full else self.depth + 1, seq_len), forced

    def behind_verify(self, config: EngineConfig, stayed_len: int, tokens: int) -> Ring:
        """What a verify leaves of which the last so many `tokens` stay: its drafts have lain in the
        ring, and there must be room for those of the next two.

        Source: sglang gdn_replayssm_spec_decode.py `_advance_gdn_spec_cursors_kernel` and
        `_finish_gdn_replayssm_circular_fold_kernel`.

        >>> Ring(0, 5).behind_verify(EngineConfig(state_ring_len=8, draft_tokens=2), 7, 2)
        Ring(depth=2, end=7, start=0)
        >>> Ring(4, 9).behind_verify(EngineConfig(state_ring_len=8, draft_tokens=2), 10, 1)
        Ring(depth=0, end=10, start=5)
        """
        depth, room = self.depth + tokens, config.state_ring_len
        if depth + 2 * config.draft_tokens > room:
            return Ring(0, stayed_len, (self.start + depth) % room)
        return Ring(depth, stayed_len, self.start)


NO_RING = Ring(depth=0, end=-1)
"""That of a request without a step."""
