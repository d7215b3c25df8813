"""How many live tokens this attention-TP rank has: the one rule for capture and replay."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.builtin.shape import pages_for


class LocalTokens:
    """Shards the token axis of a padded batch over the attention-TP ranks."""

    def __init__(self, config: EngineConfig) -> None:
        self.size = config.attn_tp_size
        self.rank = config.attn_tp_rank

    def per_rank(self, padded_tokens: int) -> int:
        """Tokens of each rank's shard, padding included."""
        return pages_for(padded_tokens, self.size)

    def shard(self, padded_tokens: int) -> tuple[int, int]:
        """First and one past the last token of this rank's shard."""
        per_rank = self.per_rank(padded_tokens)
        first = min(self.rank * per_rank, padded_tokens)
        return first, min(first + per_rank, padded_tokens)

    def live(self, total_live: int, padded_tokens: int) -> int:
        """Live tokens in this rank's shard."""
        per_rank = self.per_rank(padded_tokens)
        return max(0, min(total_live - self.rank * per_rank, per_rank))

    def at_capture(self, padded_tokens: int) -> int:
        """The count a graph is captured with: every token of the capture batch is live."""
        return self.live(padded_tokens, padded_tokens)
