"""The head of a language model behind prompts: logits of each request, and logprobs of its prompt.

Which rows of a batch ask for logprobs, from which of their tokens on, follows from the batch alone:
some from their first new token, some from a later one, some not at all.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.language_head import HIDDEN, LOGITS, head_outputs
from fuzzgraph.world import Batch, IntArray

__all__ = [
    "PROMPT_LOGPROBS",
    "PROMPT_OUTPUTS",
    "TOP_LOGPROBS",
    "asked_count",
    "asked_starts",
    "asked_tokens",
    "prompt_outputs",
    "top_count",
    "top_counts",
]

PROMPT_LOGPROBS = "prompt_logprobs"
"""The output: of the token behind each one that asks, its logprob, [tokens that ask]; float32."""
TOP_LOGPROBS = "prompt_top_logprobs"
"""The output: the largest logprobs behind each token that asks, best first, one token's behind
another's."""
PROMPT_OUTPUTS = (PROMPT_LOGPROBS, TOP_LOGPROBS)
_UNKNOWN = 0
"""The token behind a prompt's last one, where a server asks for a logprob all the same (sglang
schedule_batch.py prepare_for_extend)."""


def asked_starts(batch: Batch) -> IntArray:
    """[raw_bs] new tokens of each row before the first that asks: all of them where none does. The
    first row asks, since a batch in which nobody does has no logprobs."""
    starts: IntArray = (3 * batch.requests + batch.new_lens) % (batch.new_lens + 1)
    starts[:1] %= batch.new_lens[:1]
    return starts


def asked_tokens(batch: Batch) -> IntArray:
    """Tokens whose logprobs are asked for, row after row: each is the one behind a token that
    asks."""
    found: list[int] = []
    for row, start in enumerate(asked_starts(batch).tolist()):
        prompt, cached = batch.prompts.row(row), int(batch.cached_lens[row])
        behind = range(cached + start + 1, int(batch.seq_lens[row]) + 1)
        found += [int(prompt[at]) if at < len(prompt) else _UNKNOWN for at in behind]
    return np.array(found, dtype=np.int64)


def top_counts(batch: Batch) -> IntArray:
    """[raw_bs] how many of the largest logprobs a row asks for: 1 to 3, and 0 where it asks for
    none."""
    asks = asked_starts(batch) < batch.new_lens
    found: IntArray = np.where(asks, 1 + batch.requests % 3, 0)
    return found


def asked_count(batch: Batch) -> int:
    """Tokens that ask."""
    return int((batch.new_lens - asked_starts(batch)).sum())


def top_count(batch: Batch) -> int:
    """Largest logprobs of all tokens that ask."""
    return int(((batch.new_lens - asked_starts(batch)) * top_counts(batch)).sum())


def prompt_outputs(
    attended: torch.Tensor, batch: Batch, config: EngineConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """`head_outputs` of prompts: logits and last hidden states of each request; logprobs by token
    that asks, in float32 at least.

    Args:
        attended: [tokens, Hq, Dv] what attention gives.
    """
    outputs, last = head_outputs(attended, config, dtype), batch.new_lens.cumsum() - 1
    logits = outputs[LOGITS]
    outputs[LOGITS] = logits[last]
    if config.returned_hidden == "last":
        outputs[HIDDEN] = outputs[HIDDEN][last]
    if config.prompt_logprobs != "none":
        wide = logits if logits.dtype == torch.float64 else logits.float()
        outputs |= _logprobs(torch.log_softmax(wide, -1), batch)
    return outputs


def _logprobs(every: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
    """Of what all tokens' logits say, what is asked for."""
    ends, starts, counts = batch.new_lens.cumsum(), asked_starts(batch), top_counts(batch)
    firsts = ends - batch.new_lens + starts
    rows = [every[first:end] for first, end in zip(firsts, ends, strict=True)]
    asked = torch.cat(rows)
    tokens = torch.from_numpy(asked_tokens(batch))
    tops = [
        row.sort(-1, descending=True).values[:, :count].flatten()
        for row, count in zip(rows, counts.tolist(), strict=True)
    ]
    return {
        PROMPT_LOGPROBS: asked.gather(1, tokens[:, None])[:, 0],
        TOP_LOGPROBS: torch.cat(tops),
    }
