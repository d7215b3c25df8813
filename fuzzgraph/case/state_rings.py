"""How far the ring beside a recurrent state is filled, step by step.

An engine may write a state once in several tokens. What the tokens since then have brought lies in
a ring beside it, and a step replays them behind the state that was written. Source: sglang
hybrid_linear_attn_backend.py `_replay_metadata` (`replayssm_write_pos`), memory_pool.py
`HybridReqToTokenPool.alloc` and `MambaPool.copy_from`, which begin an empty ring.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuzzgraph.case.model import EngineConfig


@dataclass(frozen=True, slots=True)
class Ring:
    """That of one request."""

    depth: int
    """Tokens that lie in it."""
    end: int
    """Tokens of the request that state and ring stand for together."""

    def found(self, cached: int) -> Ring:
        """What a step finds that has so many tokens before it: where those are others than the last
        step left, the request has begun anew, behind a prompt."""
        return self if self.end == cached else NO_RING

    def after(self, config: EngineConfig, seq_len: int) -> tuple[Ring, bool]:
        """(what a decode leaves, whether it writes the state because of its length).

        >>> Ring(depth=1, end=5).after(EngineConfig(state_ring_len=3), 6)
        (Ring(depth=2, end=6), False)
        >>> Ring(depth=2, end=6).after(EngineConfig(state_ring_len=3), 7)
        (Ring(depth=0, end=7), False)
        """
        interval = config.state_flush_interval
        forced = interval > 0 and seq_len % interval == 0
        full = self.depth == config.state_ring_len - 1
        return Ring(0 if forced or full else self.depth + 1, seq_len), forced


NO_RING = Ring(depth=0, end=-1)
"""That of a request without a step."""
