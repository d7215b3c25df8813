"""What the runner answers the server after a verify: the tokens that stay of each request.

The rejection sampler compares drafts with what the model predicts, so the answer is the only place
where a draft that is wrongly rejected, or wrongly kept in the last place, shows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.fields import TOLD
from fuzzgraph.observation import Field
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.offline.demands import demand_instance
from fuzzgraph.targets.vllm.served_requests import Scheduled

__all__ = ["COUNTS", "SAMPLED", "answer_fields", "answers_given", "answers_told"]

SAMPLED = "sampled_token_ids"
"""All rows' tokens, one row behind the other."""
COUNTS = "num_sampled_tokens"
"""How many of them are each row's: without it, a token too many of the last row is behind all."""
_ANSWER = "the runner's answer"


def answer_fields(source: str, past: str) -> tuple[Field, ...]:
    """What a verify answers, in the batch's rows.

    Args:
        past: why a request that is new to the runner is rightly answered otherwise.
    """
    made = (common.value(name, repeats=TOLD, source=source) for name in (SAMPLED, COUNTS))
    return tuple(replace(field, past=past) for field in made)


def answers_given(output: Any, rows: Sequence[str]) -> dict[str, torch.Tensor]:
    """What the server gets, which looks it up by name.

    Args:
        output: `ModelRunnerOutput` of a step.
        rows: the engine's id of each row of the batch.
    """
    demand_instance(output.sampled_token_ids, list, SAMPLED, _ANSWER)
    tokens = dict(zip(output.req_ids, output.sampled_token_ids, strict=False))
    given = [tokens.get(name, []) for name in rows]
    return {
        SAMPLED: torch.tensor([token for row in given for token in row], dtype=torch.int64),
        COUNTS: torch.tensor([len(row) for row in given]),
    }


def answers_told(scheduled: Scheduled) -> dict[str, list[int]]:
    """What a server expects by what its scheduler handed over."""
    given = [scheduled.answered[name] for name in scheduled.rows]
    return {SAMPLED: [token for row in given for token in row], COUNTS: list(map(len, given))}
