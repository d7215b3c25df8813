"""A layer of experts: the truth that engines are held against."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.expert_columns import ATTENDED, EXPERT_WIDTH, OWN
from fuzzgraph.expert_layer import (
    chosen_experts,
    down_bias,
    down_weight,
    expert_coarseness,
    expert_counts,
    expert_outputs,
    gate_up_bias,
    gate_up_weight,
    local_experts,
    other_parts,
    rank_outputs,
    received_counts,
    router_bias,
    router_weight,
    token_rows,
    tokens_of_ranks,
)
from fuzzgraph.layout import plan
from fuzzgraph.reference import expected, rounding_of, yardstick
from fuzzgraph.world import VOCAB, Batch

CONFIG = EngineConfig(num_experts=8, experts_per_token=2, dtype="float16")


def batch_of(rows: int = 8) -> Batch:
    of = tuple(BatchRow(request=name, seq_len=3 + name) for name in range(rows))
    return plan(Case(schema_version=1, config=CONFIG, steps=(ReplayStep(rows=of),)))[0]


def row_of(token: int, attention: float = 0.0) -> torch.Tensor:
    """float64 [EXPERT_WIDTH] of a token behind attention that holds one number everywhere."""
    return torch.cat((token_rows()[token], torch.full((ATTENDED,), attention))).double()


def test_the_output_is_the_weighted_sum_of_the_chosen_experts() -> None:
    batch = batch_of()
    found = expert_outputs(batch, CONFIG, torch.float64)
    for place, token in enumerate(batch.input_ids.tolist()):
        x = row_of(token, 0.5)
        numbers = router_weight(8).double() @ x
        best = numbers.topk(2)
        total = torch.zeros(EXPERT_WIDTH, dtype=torch.float64)
        for weight, expert in zip(best.values.softmax(0), best.indices.tolist(), strict=True):
            gate, up = (gate_up_weight(expert).double() @ x).chunk(2)
            total += weight * (down_weight(expert).double() @ (gate * gate.sigmoid() * up))
        torch.testing.assert_close(found[place], total)


def test_weights_of_sigmoids_are_parts_of_their_sum() -> None:
    batch, sigmoid = batch_of(), msgspec.structs.replace(CONFIG, expert_scoring="sigmoid")
    found = expert_outputs(batch, sigmoid, torch.float64)
    for place, token in enumerate(batch.input_ids.tolist()):
        x = row_of(token)
        best = (router_weight(8).double() @ x).sigmoid().topk(2)
        total = torch.zeros(EXPERT_WIDTH, dtype=torch.float64)
        for part, expert in zip(best.values, best.indices.tolist(), strict=True):
            gate, up = (gate_up_weight(expert).double() @ x).chunk(2)
            inner = gate * gate.sigmoid() * up
            total += part / best.values.sum() * (down_weight(expert).double() @ inner)
        torch.testing.assert_close(found[place], total)


def test_experts_with_biases_clamp_what_comes_between_their_products() -> None:
    batch = batch_of()
    biased = msgspec.structs.replace(CONFIG, expert_activation="clamped_swiglu")
    found = expert_outputs(batch, biased, torch.float64)
    for place, token in enumerate(batch.input_ids.tolist()):
        x = row_of(token, 0.5)
        best = (router_weight(8, biased=True).double() @ x + router_bias(8)).topk(2)
        assert best.indices.tolist() == chosen_experts(batch, biased)[place].tolist()
        total = torch.zeros(EXPERT_WIDTH, dtype=torch.float64)
        for weight, expert in zip(best.values.softmax(0), best.indices.tolist(), strict=True):
            gate, up = (gate_up_weight(expert).double() @ x + gate_up_bias(expert)).chunk(2)
            gate, up = gate.clamp(max=7), up.clamp(-7, 7)
            inner = gate * (1.702 * gate).sigmoid() * (up + 1)
            total += weight * (down_weight(expert).double() @ inner + down_bias(expert))
        torch.testing.assert_close(found[place], total)


def test_a_router_without_its_bias_chooses_other_experts() -> None:
    batch = batch_of()
    numbers = torch.stack(
        [router_weight(8, biased=True) @ row_of(token).float() for token in batch.input_ids]
    )
    assert (numbers.topk(2).indices.numpy() != chosen_experts(batch, CONFIG)).any()


def test_the_router_prefers_the_experts_that_are_said_to_be_chosen() -> None:
    batch = batch_of()
    numbers = torch.stack([router_weight(8) @ row_of(token).float() for token in batch.input_ids])
    assert numbers.topk(2).indices.tolist() == chosen_experts(batch, CONFIG).tolist()


def test_no_two_experts_come_close_for_any_token() -> None:
    for experts in (4, 8, 64):
        numbers = torch.stack([router_weight(experts) @ row_of(t).float() for t in range(VOCAB)])
        assert numbers.sort(1).values.diff().min() >= 0.25


def test_attention_has_no_part_in_a_finite_row() -> None:
    near, far = row_of(3, 0.0), row_of(3, 6.0)
    for weight in (router_weight(8), gate_up_weight(5)):
        assert torch.equal(weight.double() @ near, weight.double() @ far)


def test_undefined_attention_reaches_every_number_of_the_router() -> None:
    assert (router_weight(8).double() @ row_of(3, torch.nan)).isnan().all()


def test_the_parts_of_all_ranks_make_the_whole() -> None:
    batch = batch_of()
    ranks = [
        EngineConfig(num_experts=8, experts_per_token=2, ep_size=4, ep_rank=r) for r in range(4)
    ]
    parts = [expert_outputs(batch, each, torch.float64) for each in ranks]
    torch.testing.assert_close(sum(parts), expert_outputs(batch, CONFIG, torch.float64))
    assert [*local_experts(ranks[1])] == [2, 3]


def test_a_data_parallel_rank_gets_the_whole_sum_and_gives_its_part_for_all() -> None:
    beside = EngineConfig(
        num_experts=8, experts_per_token=2, dtype="float16", dp_size=2, dp_rank=1, ep_size=2,
        ep_rank=1,
    )  # fmt: skip
    of = tuple(BatchRow(request=name, seq_len=3 + name) for name in range(2))
    steps = (ReplayStep(rows=of, other_ranks=(3,)),)
    batch = plan(Case(schema_version=1, config=beside, steps=steps))[0]
    tokens = tokens_of_ranks(batch, beside)
    assert [len(each) for each in tokens] == [3, 2]
    assert tokens[1].tolist() == batch.input_ids.tolist()
    whole = expert_outputs(batch, beside, torch.float64)
    torch.testing.assert_close(whole, expert_outputs(batch, CONFIG, torch.float64))
    own = rank_outputs(batch, beside, torch.float64)[3:]
    torch.testing.assert_close(own + other_parts(beside)[tokens[1]], whole)


def test_every_chosen_expert_of_a_token_counts_once() -> None:
    batch = batch_of()
    counts = expert_counts(batch, CONFIG)
    assert counts.sum() == 2 * batch.num_tokens and len(counts) == 8
    assert np.array_equal(np.bincount(chosen_experts(batch, CONFIG).ravel(), minlength=8), counts)


def test_another_expert_is_far_beyond_the_tolerance() -> None:
    bound = 3 * expert_coarseness(CONFIG, torch.float16)
    for token in range(VOCAB):
        x = row_of(token)
        outputs = []
        for expert in range(8):
            gate, up = (gate_up_weight(expert).double() @ x).chunk(2)
            outputs.append(down_weight(expert).double() @ (gate * gate.sigmoid() * up))
        apart = torch.pdist(torch.stack(outputs), p=torch.inf)
        assert apart.min() > bound


def test_the_reference_has_it_where_there_are_experts() -> None:
    batch = batch_of()
    truth, plain = expected(batch, CONFIG).outputs["experts"], yardstick(batch, CONFIG)["experts"]
    assert (plain.double() - truth).abs().max() < rounding_of("experts", CONFIG).absolute
    assert "experts" not in expected(batch, EngineConfig()).outputs


def test_experts_of_a_rank_receive_the_tokens_of_all_ranks_that_chose_them() -> None:
    ranks = {"dp_size": 2, "dp_rank": 1, "ep_size": 2, "ep_rank": 1}
    config = msgspec.structs.replace(CONFIG, **ranks)
    step = ReplayStep(rows=(BatchRow(request=0, seq_len=3),), other_ranks=(3,))
    batch = plan(Case(schema_version=1, config=config, steps=(step,)))[0]
    counts = dict.fromkeys(local_experts(config), 0)
    for tokens in tokens_of_ranks(batch, config):
        for token in tokens.tolist():
            for expert in router_weight(8)[:, OWN + token].topk(2).indices.tolist():
                if expert in counts:
                    counts[expert] += 1
    assert received_counts(batch, config).tolist() == [*counts.values()]
