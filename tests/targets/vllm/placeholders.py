"""A V2 runner that is handed what 0.33.0's scheduler hands over of a request that joins others.

Where one token of its prompt is left, the scheduler puts placeholders of drafts behind it, so that
all rows have as many tokens (v1/core/sched/scheduler.py, `pad_spec_decode`). Cases cannot say so
with recurrent layers: the row then has more tokens than the batch, which shows as findings of its
own, and only the request's first state is to be looked at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.targets.vllm.served_requests import Scheduled, ServedWithDrafts
from fuzzgraph.targets.vllm.v2_recurrent import V2DeltaNetTarget, V2DeltaNetVerifySession
from fuzzgraph.world import Batch


class _Padded(ServedWithDrafts):
    """Newcomers beside requests that are known have as many tokens as they."""

    width: int

    def step(self, batch: Batch) -> Scheduled:
        before = set(self.known)
        made = super().step(batch)
        sampled = dict(made.sampled)
        for name, row in made.rows.items():
            joins = before and int(batch.requests[row]) not in before
            if joins and batch.new_lens[row] == 1:
                behind = [0] * (self.width - 1)
                made.output.num_scheduled_tokens[name] = self.width
                made.output.scheduled_spec_decode_tokens[name] = behind
                sampled[name] = [*sampled[name], *behind]
        made.output.total_num_scheduled_tokens = sum(made.output.num_scheduled_tokens.values())
        return replace(made, sampled=sampled)


class _PaddedSession(V2DeltaNetVerifySession):
    served_kind = _Padded
    served: _Padded

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.served.width = self._config.draft_tokens

    def _with_logits_rows(self, hidden: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        return hidden


def placeholders_behind_prompts() -> Any:
    made: Any = V2DeltaNetTarget("vllm-v2-gdn-verify", "target_verify")
    made.session = _PaddedSession
    return made
