"""Tokens that are drawn at a temperature: drafts, and what a verify makes of them, in float64.

Whatever is drawn follows from numbers that the harness gives, the same ones for each run of a step.
They are chosen so that no draw is close: of two tokens or two decisions that rounding could make
change places, no number given here has to decide. So each draw has one right answer in any dtype
and by any kernel.

Drafts are drawn by exponential noise, one number for each token: the token with the largest logit /
temperature - log(noise) is a draw by the softmax (Gumbel-max; sglang markov_sample.py, and the
noise of SampleStepTokens up to 0.5.21). A verify accepts a draft where coin * q < p, with p what
the target model and q what the draft model gives the token, and draws what follows the last one by
the inverse of the sums over max(p - q, 0), or over p behind all drafts (speculative sampling, Chen
et al. 2023, algorithm 2; sglang reject_sampling.py). Where no draft is drawn, q is 1 (sglang
verify_sampling.py, tree_speculative_sampling_target_only with thresholds of 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import next_token
from fuzzgraph.draft_head import marked, markov_weights
from fuzzgraph.reference.philox import uniforms
from fuzzgraph.splitmix import STRIDE, hash_counters
from fuzzgraph.world import VOCAB, Batch, IntArray

__all__ = [
    "KEY",
    "BlockDraws",
    "VerifyDraws",
    "accepted",
    "block_draws",
    "draft_logits",
    "temperatures",
    "verify_draws",
]

Doubles = npt.NDArray[np.float64]

KEY = 0x5DEECE66D1A2B3C4
"""Of the noise by which drafts are drawn, in place of one that a server's seed gives."""
_TEMPERATURES = (8.0, 0.0, 20.0, 4.0, 12.0)
"""By the request's name; 0 for a greedy one. Logits are up to 80 apart, so that many tokens have a
part in each."""
_ATTEMPTS = 4096
_CLOSE = 1e-3
"""Logits, with what is added to them, that are not told apart; float32 is off by 1e-5 at most."""
_CLOSE_PART = 1e-4
"""Probabilities that are not told apart, as a part of what they are compared with."""
_NEAR_ONE = 5e-7
"""How far float32 may be off where a uniform number is near 1, times how near it is."""
_DRAFTED, _BESIDE = 48.0, 16.0
"""Logits of the drafted token, and of another one, that a draft model has given."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockDraws:
    """The numbers by which the drafts of a step are drawn, and the drafts."""

    count: int
    """Of the blocks that were drawn before: the noise follows from it and `KEY`."""
    noise: Doubles
    """[raw_bs, draft_tokens, VOCAB] exponential noise of each row, place and token."""
    at_each: torch.Tensor
    """[raw_bs, draft_tokens] drafts where the model samples at a block's first token too."""
    behind: torch.Tensor
    """[raw_bs, draft_tokens - 1] the same where it does not."""


@dataclass(frozen=True, slots=True, eq=False)
class VerifyDraws:
    """The numbers by which a verify draws; float64 with the values of float32."""

    coins: Doubles
    """[raw_bs, draft_tokens - 1] for each draft."""
    last: Doubles
    """[raw_bs] for the token that follows."""


def temperatures(batch: Batch) -> Doubles:
    """[raw_bs] of each request, for its life; 0 where it is greedy."""
    return np.array(_TEMPERATURES)[batch.requests % len(_TEMPERATURES)]


# Drafts


def block_draws(batch: Batch, config: EngineConfig) -> BlockDraws:
    """The first numbers by which no draft of the step is close."""
    for count in _counts(batch):
        uniform = uniforms(KEY, count, batch.raw_bs, config.draft_tokens, VOCAB)
        noise = -np.log1p(-uniform)
        # Float32 has 1 - uniform to some 6e-8, and its logarithm's logarithm is worse off.
        doubt = _CLOSE + _NEAR_ONE / ((1 - uniform) * noise)
        chains = [_chain(batch, noise, doubt, first) for first in (0, 1)]
        if all(sound for _, sound in chains):
            return BlockDraws(count, noise, chains[0][0], chains[1][0])
    raise AssertionError("close draws in all of these numbers, which are independent")


def _counts(batch: Batch) -> Iterator[int]:
    """Numbers above 2 ** 32 too: a counter of a long-lived server."""
    places = np.arange(_ATTEMPTS, dtype=np.uint64)
    first = int(batch.seq_lens.sum()) * STRIDE + batch.step
    drawn = hash_counters(first & 0xFFFFFFFF, places) >> np.uint64(30)
    return iter(drawn.tolist())


def _chain(batch: Batch, noise: Doubles, doubt: Doubles, first: int) -> tuple[torch.Tensor, bool]:
    """Drafts of a Markov head, each by the one before it; and whether none is close.

    Args:
        first: place of a block at which the first draft is sampled.
    """
    heads = [weight.double() for weight in markov_weights()]
    blocks = torch.from_numpy(batch.input_ids).view(batch.raw_bs, -1)
    positions = torch.from_numpy(batch.positions).view(batch.raw_bs, -1)
    predicted = next_token(blocks, positions, 0)[:, first:]
    heat = temperatures(batch)[:, None]
    token, found, sound = blocks[:, 0], [], True
    for step, says in enumerate(predicted.unbind(1)):
        logits = (marked(says, torch.float64) + heads[0][token] @ heads[1].T).numpy()
        warm = logits / np.where(heat, heat, 1.0) - np.where(heat, np.log(noise[:, step]), 0.0)
        best = warm.argmax(1)
        sound = sound and _apart(warm, np.where(heat, doubt[:, step], 0.0), best)
        token = torch.from_numpy(best)
        found.append(token)
    return torch.stack(found, 1) if found else predicted, sound


def _apart(values: Doubles, doubt: Doubles, best: IntArray) -> bool:
    """Whether the best of each row stays so wherever the others lie within their doubts."""
    rows = np.arange(len(values))
    least = values[rows, best] - doubt[rows, best]
    rest = values + doubt
    rest[rows, best] = -np.inf
    return bool((least > rest.max(1)).all())


# Verifies


def draft_logits(batch: Batch) -> torch.Tensor:
    """[raw_bs, draft_tokens - 1, VOCAB] that a draft model is said to have drawn the drafts by."""
    drafts = torch.from_numpy(batch.input_ids).view(batch.raw_bs, -1)[:, 1:]
    ids, beside = torch.arange(VOCAB), (5 * drafts + 7) % VOCAB
    found = (drafts[..., None] == ids) * _DRAFTED
    return torch.where((beside[..., None] == ids) & (found == 0), _BESIDE, found)


def verify_draws(batch: Batch, config: EngineConfig) -> VerifyDraws:
    """For each row the first numbers by which nothing that it decides is close."""
    target, draft = _probabilities(batch, config)
    drafts = batch.input_ids.reshape(batch.raw_bs, -1)[:, 1:]
    found = [
        next(given for given in _numbers(batch, row) if _decided(*given, *each))
        for row, each in enumerate(zip(target, draft, drafts, strict=True))
    ]
    coins = np.array([coins for coins, _ in found]).reshape(drafts.shape)
    return VerifyDraws(coins, np.array([last for _, last in found]))


def accepted(batch: Batch, config: EngineConfig) -> tuple[IntArray, IntArray]:
    """([raw_bs] drafts that stay, [raw_bs] token that follows) in rows with temperatures."""
    draws = verify_draws(batch, config)
    target, draft = _probabilities(batch, config)
    drafts = batch.input_ids.reshape(batch.raw_bs, -1)[:, 1:]
    rows = zip(draws.coins, draws.last, target, draft, drafts, strict=True)
    found = [_drawn(*row) for row in rows]
    counts, follows = zip(*found, strict=True) if found else ((), ())
    return np.array(counts, dtype=np.int64), np.array(follows, dtype=np.int64)


def _probabilities(batch: Batch, config: EngineConfig) -> tuple[Doubles, Doubles]:
    """([raw_bs, draft_tokens, VOCAB], [raw_bs, draft_tokens - 1, VOCAB]) of target and draft."""
    heat = np.where(temperatures(batch), temperatures(batch), 1.0)[:, None, None]
    says = torch.from_numpy(batch.predicted)
    target = marked(says, torch.float64).view(batch.raw_bs, -1, VOCAB).numpy()
    drafts = torch.from_numpy(batch.input_ids).view(batch.raw_bs, -1)[:, 1:]
    if config.sampling == "draft":
        return _softmax(target / heat), _softmax(draft_logits(batch).double().numpy() / heat)
    sure: Doubles = (drafts[..., None] == torch.arange(VOCAB)).double().numpy()
    return _softmax(target / heat), sure


def _softmax(logits: Doubles) -> Doubles:
    parts = np.exp(logits - logits.max(-1, keepdims=True))
    found: Doubles = parts / parts.sum(-1, keepdims=True)
    return found


def _numbers(batch: Batch, row: int) -> Iterator[tuple[Doubles, float]]:
    """Coins of a row's drafts and the number of what follows, in (0, 1), as float32 has them."""
    width = int(batch.new_lens[row])
    key = int(batch.requests[row]) * STRIDE + int(batch.seq_lens[row])
    for attempt in range(_ATTEMPTS):
        places = np.arange(attempt * width, (attempt + 1) * width, dtype=np.uint64)
        drawn = hash_counters(key & 0xFFFFFFFF, places) >> np.uint64(41)
        numbers = (drawn.astype(np.float64) + 0.5) / 2**23
        yield numbers[:-1], float(numbers[-1])


def _drawn(
    coins: Doubles, last: float, target: Doubles, draft: Doubles, drafts: IntArray
) -> tuple[int, int]:
    """Drafts of one row that stay, and the token that follows."""
    places = np.arange(len(drafts))
    stays = coins * draft[places, drafts] < target[places, drafts]
    count = int(np.logical_and.accumulate(stays).sum())
    sums = np.cumsum(_rest(target, draft, count))
    return count, int((sums > last * sums[-1]).argmax())


def _decided(
    coins: Doubles, last: float, target: Doubles, draft: Doubles, drafts: IntArray
) -> bool:
    """Whether no decision of a row is close."""
    places = np.arange(len(drafts))
    bound, part = coins * draft[places, drafts], target[places, drafts]
    count, _ = _drawn(coins, last, target, draft, drafts)
    sums = np.cumsum(_rest(target, draft, count))
    apart = np.abs(sums - last * sums[-1]).min() > _CLOSE_PART * sums[-1]
    return bool((np.abs(bound - part) > _CLOSE_PART * part).all() and apart)


def _rest(target: Doubles, draft: Doubles, count: int) -> Doubles:
    """What the token behind so many drafts is drawn by."""
    found: Doubles = target[count]
    return found if count == len(draft) else np.maximum(found - draft[count], 0.0)
