"""Drafts and verifies at temperatures: draws by numbers that are given, of which none is close."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected
from fuzzgraph.reference.philox import uniforms
from fuzzgraph.reference.sampled import (
    accepted,
    block_draws,
    draft_logits,
    temperatures,
    verify_draws,
)
from fuzzgraph.strategies import DEFAULT
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.world import VOCAB, Batch


def verify(*rows: tuple[int, int], **settings: Any) -> tuple[Batch, EngineConfig]:
    """Rows of these requests and lengths, the last four tokens of each verified."""
    given = {"sampling": "draft", "draft_tokens": 4, "max_context_len": 40, "kv_pool_pages": 200}
    config = EngineConfig(modes=("target_verify",), **{**given, **settings})
    made = tuple(BatchRow(request=name, seq_len=length, new_tokens=4) for name, length in rows)
    step = ReplayStep(mode="target_verify", rows=made)
    case = validate(Case(schema_version=1, config=config, steps=(step,)))
    return plan(case)[0], config


ROWS = ((0, 20), (1, 9), (2, 16), (3, 12))


def test_some_requests_have_temperatures_and_others_are_greedy() -> None:
    batch, _ = verify(*ROWS)
    assert (temperatures(batch) > 0).tolist() == [True, False, True, True]


def test_a_request_keeps_its_temperature() -> None:
    first, _ = verify((2, 16), (0, 20))
    later, _ = verify((0, 24), (2, 20))
    assert temperatures(first).tolist() == temperatures(later)[::-1].tolist()


def test_uniform_numbers_are_between_0_and_1_and_each_is_another_one() -> None:
    found = uniforms(7, 1 << 40, 3, 2, 8)
    assert found.shape == (3, 2, 8)
    assert ((found > 0) & (found < 1)).all()
    assert len(np.unique(found)) == found.size


def test_drafts_are_drawn_by_the_softmax() -> None:
    """At a temperature of 8 a token 32 logits above all others has a part of 0.64."""
    noise = -np.log1p(-uniforms(3, 5, 4000, 1, VOCAB))[:, 0]
    logits = np.zeros(VOCAB)
    logits[9] = 32.0
    drawn = (logits / 8.0 - np.log(noise)).argmax(1)
    assert np.mean(drawn == 9) == pytest.approx(np.exp(4) / (np.exp(4) + 31), abs=0.03)


def test_drafts_of_greedy_rows_are_those_of_a_case_without_temperatures() -> None:
    blocks = {"drafted_blocks": "whole"}
    batch, config = verify(*ROWS, **blocks)
    drawn = expected(batch, config).outputs["markov_tokens"].view(4, 4)
    _, plain = verify(*ROWS, **blocks, sampling="greedy")
    greedy = expected(batch, plain).outputs["markov_tokens"].view(4, 4)
    assert drawn[1].equal(greedy[1])
    assert not drawn.equal(greedy)


def test_drafts_are_the_same_whenever_they_are_worked_out() -> None:
    found = [block_draws(*verify(*ROWS, drafted_blocks="causal")) for _ in range(2)]
    assert found[0].count == found[1].count
    assert found[0].at_each.equal(found[1].at_each)


@pytest.mark.parametrize("sampling", ["target", "draft"])
def test_numbers_a_little_off_decide_the_same(sampling: str) -> None:
    """As rounding takes them: nothing that is judged is close."""
    for lengths in ((20, 9, 16, 12), (21, 10, 17, 13), (24, 11, 18, 36)):
        batch, config = verify(*zip((0, 1, 2, 3), lengths, strict=True), sampling=sampling)
        draws = verify_draws(batch, config)
        target = torch.zeros(16, VOCAB).scatter(1, torch.tensor(batch.predicted)[:, None], 32.0)
        heat = torch.tensor(temperatures(batch)).clamp_min(1.0)[:, None, None]
        parts = (target.view(4, 4, VOCAB) / heat).float().softmax(-1)
        drafts = torch.tensor(batch.input_ids).view(4, 4)[:, 1:]
        sure = torch.nn.functional.one_hot(drafts, VOCAB).float()
        weights = (draft_logits(batch) / heat).float().softmax(-1)
        other = weights if sampling == "draft" else sure
        each = drafts[..., None]
        coins = torch.tensor(draws.coins, dtype=torch.float32)
        stays = coins * other.gather(2, each)[..., 0] < parts[:, :3].gather(2, each)[..., 0]
        counts = stays.int().cumprod(1).sum(1)
        assert counts.tolist() == accepted(batch, config)[0].tolist()


def test_what_follows_a_rejected_draft_is_never_that_draft() -> None:
    for length in range(8, 36):
        batch, config = verify((2, length), (3, length), sampling="target")
        counts, follows = accepted(batch, config)
        drafts = batch.input_ids.reshape(2, 4)
        for row, (count, token) in enumerate(zip(counts, follows, strict=True)):
            assert count == 3 or token != drafts[row, 1 + count]


@pytest.mark.parametrize(
    "beside", [{"spec_topk": 2}, {"recurrent_state": True}, {"ngram_drafts": True}]
)
def test_temperatures_beside_other_rows_are_refused(beside: dict[str, Any]) -> None:
    config = EngineConfig(modes=("target_verify",), sampling="target", **beside)
    with pytest.raises(InvalidCase, match="sampling"):
        validate(Case(schema_version=1, config=config, steps=()))


def test_half_of_the_verifies_of_a_target_that_samples_have_temperatures() -> None:
    can = Capabilities(
        modes=("target_verify",),
        samplings=("greedy", "target"),
        max_spec_topk=1,
        draft_adapters=False,
        kv_compressions=("none",),
        ngram_drafts=False,
        recurrent_state=False,
    )
    found = [swarm_config(can, DEFAULT, number) for number in range(100)]
    assert 30 < sum(config.sampling == "target" for config in found) < 70
    without = can.replace(samplings=("greedy",))
    assert all(swarm_config(without, DEFAULT, at).sampling == "greedy" for at in range(100))
