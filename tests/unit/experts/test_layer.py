"""A layer of experts: the truth that engines are held against."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.data_ranks import tokens_of_ranks
from fuzzgraph.experts.columns import ATTENDED, EXPERT_WIDTH, OWN
from fuzzgraph.experts.outputs import expert_coarseness, expert_outputs, other_parts, rank_outputs
from fuzzgraph.experts.placement import (
    expert_at,
    expert_counts,
    local_experts,
    placed_experts,
    received_counts,
)
from fuzzgraph.experts.routing import (
    chosen_experts,
    correction_bias,
    experts_of_tokens,
    router_bias,
    router_weight,
)
from fuzzgraph.experts.weights import (
    SHARED,
    down_bias,
    down_weight,
    gate_up_bias,
    gate_up_weight,
    token_rows,
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


SIGMOID = msgspec.structs.replace(CONFIG, expert_scoring="sigmoid")


def sigmoids_of(token: int, experts: int = 8) -> torch.Tensor:
    return (router_weight(experts, scoring="sigmoid").double() @ row_of(token)).sigmoid()


def test_weights_of_sigmoids_are_parts_of_their_sum_and_leave_out_the_bias() -> None:
    batch = batch_of()
    found = expert_outputs(batch, SIGMOID, torch.float64)
    for place, token in enumerate(batch.input_ids.tolist()):
        x, parts = row_of(token), sigmoids_of(token)
        best = (parts + correction_bias(8)).topk(2).indices
        total = torch.zeros(EXPERT_WIDTH, dtype=torch.float64)
        for part, expert in zip(parts[best], best.tolist(), strict=True):
            gate, up = (gate_up_weight(expert).double() @ x).chunk(2)
            inner = gate * gate.sigmoid() * up
            total += 2.5 * part / parts[best].sum() * (down_weight(expert).double() @ inner)
        torch.testing.assert_close(found[place], total)


def test_a_router_of_sigmoids_without_its_bias_chooses_other_experts() -> None:
    ids = batch_of().input_ids
    chosen = torch.stack([sigmoids_of(token).topk(2).indices for token in ids.tolist()])
    assert (chosen.numpy() != chosen_experts(batch_of(), SIGMOID)).any()


@pytest.mark.parametrize(("experts", "groups"), [(4, 2), (8, 2), (8, 4), (64, 4)])
def test_experts_come_from_the_half_of_groups_with_the_best_two(experts: int, groups: int) -> None:
    config = msgspec.structs.replace(SIGMOID, num_experts=experts, expert_groups=groups)
    each = experts // groups
    elsewhere = 0
    for token, chosen in enumerate(experts_of_tokens(config).tolist()):
        sums = (sigmoids_of(token, experts) + correction_bias(experts)).tolist()
        parts = [sums[first : first + each] for first in range(0, experts, each)]
        best = sorted(range(groups), key=lambda group: -sum(sorted(parts[group])[-2:]))
        kept = [expert for expert in range(experts) if expert // each in best[: groups // 2]]
        assert chosen == sorted(kept, key=lambda expert: -sums[expert])[:2]
        elsewhere += chosen != sorted(range(experts), key=lambda expert: -sums[expert])[:2]
    assert elsewhere


def test_what_routers_of_sigmoids_choose_by_never_comes_close() -> None:
    for experts in (4, 8, 64):
        for token in range(VOCAB):
            sums = (sigmoids_of(token, experts) + correction_bias(experts)).sort(descending=True)
            assert -sums.values[:16].diff().max() > 0.02


def shared_output(token: int, columns: slice = slice(None)) -> torch.Tensor:
    """float64 [EXPERT_WIDTH] of the shared expert, of some columns between its products."""
    gate, up = (gate_up_weight(SHARED).double() @ row_of(token)).chunk(2)
    return down_weight(SHARED).double()[:, columns] @ (gate * gate.sigmoid() * up)[columns]


@pytest.mark.parametrize("kind", ["apart", "fused"])
def test_a_shared_expert_computes_every_token_beside_those_that_were_chosen(kind: str) -> None:
    batch, shared = batch_of(), msgspec.structs.replace(CONFIG, shared_experts=kind)
    more = expert_outputs(batch, shared, torch.float64) - expert_outputs(
        batch, CONFIG, torch.float64
    )
    for place, token in enumerate(batch.input_ids.tolist()):
        torch.testing.assert_close(more[place], shared_output(token))


def test_ranks_share_out_the_columns_of_a_shared_expert_that_lies_apart() -> None:
    batch, ranks = batch_of(), msgspec.structs.replace(CONFIG, ep_size=2, ep_rank=1)
    shared = msgspec.structs.replace(ranks, shared_experts="apart")
    more = expert_outputs(batch, shared, torch.float64) - expert_outputs(
        batch, ranks, torch.float64
    )
    for place, token in enumerate(batch.input_ids.tolist()):
        torch.testing.assert_close(more[place], shared_output(token, slice(8, 16)))


def test_ranks_give_even_parts_of_a_shared_expert_that_is_fused() -> None:
    batch, ranks = batch_of(), msgspec.structs.replace(CONFIG, ep_size=4, ep_rank=2)
    shared = msgspec.structs.replace(ranks, shared_experts="fused")
    more = expert_outputs(batch, shared, torch.float64) - expert_outputs(
        batch, ranks, torch.float64
    )
    for place, token in enumerate(batch.input_ids.tolist()):
        torch.testing.assert_close(more[place], shared_output(token) / 4)


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


@pytest.mark.parametrize("kind", ["none", "apart", "fused"])
def test_the_parts_of_all_ranks_make_the_whole(kind: str) -> None:
    batch, alone = batch_of(), msgspec.structs.replace(CONFIG, shared_experts=kind)
    ranks = [msgspec.structs.replace(alone, ep_size=4, ep_rank=rank) for rank in range(4)]
    parts = [expert_outputs(batch, each, torch.float64) for each in ranks]
    torch.testing.assert_close(sum(parts), expert_outputs(batch, alone, torch.float64))
    assert [*local_experts(ranks[1])] == [2, 3]


@pytest.mark.parametrize("kind", ["none", "apart", "fused"])
def test_a_data_parallel_rank_gets_the_whole_sum_and_gives_its_part_for_all(kind: str) -> None:
    alone = msgspec.structs.replace(CONFIG, shared_experts=kind)
    beside = msgspec.structs.replace(alone, dp_size=2, dp_rank=1, ep_size=2, ep_rank=1)
    of = tuple(BatchRow(request=name, seq_len=3 + name) for name in range(2))
    steps = (ReplayStep(rows=of, other_ranks=(3,)),)
    batch = plan(Case(schema_version=1, config=beside, steps=steps))[0]
    tokens = tokens_of_ranks(batch, beside)
    assert [len(each) for each in tokens] == [3, 2]
    assert tokens[1].tolist() == batch.input_ids.tolist()
    whole = expert_outputs(batch, beside, torch.float64)
    torch.testing.assert_close(whole, expert_outputs(batch, alone, torch.float64))
    own = rank_outputs(batch, beside, torch.float64)[3:]
    if kind == "apart":  # which is added behind the others
        mine = msgspec.structs.replace(alone, ep_size=2, ep_rank=1)
        none = msgspec.structs.replace(mine, shared_experts="none")
        own += expert_outputs(batch, mine, torch.float64)
        own -= expert_outputs(batch, none, torch.float64)
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


def copied(**settings: Any) -> EngineConfig:
    return msgspec.structs.replace(SIGMOID, expert_copies=4, **settings)


def test_every_expert_lies_somewhere_and_copies_behind_them_all() -> None:
    lies = expert_at(copied())
    assert sorted(lies[:8]) == [*range(8)] and lies[:8] != [*range(8)]
    assert lies[8:] == [0, 3, 6, 1]


def test_copies_of_an_expert_take_turns_from_row_to_row() -> None:
    batch, lies = batch_of(), expert_at(copied())
    placed = placed_experts(batch, copied())
    by_place = np.array(lies)[placed]
    assert np.array_equal(by_place, chosen_experts(batch, SIGMOID))
    for row, places_of_row in enumerate(placed.tolist()):
        for place in places_of_row:
            of_expert = [each for each, expert in enumerate(lies) if expert == lies[place]]
            assert place == of_expert[row % len(of_expert)]


def test_the_parts_of_ranks_with_copies_make_the_whole() -> None:
    batch = batch_of()
    for kind in ("none", "apart", "fused"):
        ranks = [copied(ep_size=4, ep_rank=rank, shared_experts=kind) for rank in range(4)]
        parts = [expert_outputs(batch, each, torch.float64) for each in ranks]
        whole = expert_outputs(batch, copied(shared_experts=kind), torch.float64)
        torch.testing.assert_close(sum(parts), whole)
        counts = expert_counts(batch, ranks[0])
        assert counts.sum() == 2 * batch.num_tokens and len(counts) == 12


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
