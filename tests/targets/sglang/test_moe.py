"""A block of experts behind attention on released sglang: what padded tokens do in its graphs."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import step, verify
from tests.targets.sglang.released import Workers

NEWEST = "0.5.23"
TARGETS = ("sglang-moe", "sglang-moe-verify")
DEEPSEEK = "sglang-moe-deepseek"
GPT_OSS = "sglang-moe-gpt-oss"


def _case(*steps: ReplayStep, **settings: Any) -> Case:
    given = {
        "modes": (steps[0].mode,), "capture_bs": (2, 4), "max_context_len": 16,
        "dtype": "float16", "num_experts": 8, "experts_per_token": 2, **settings,
    }  # fmt: skip
    return validate(Case(schema_version=1, config=EngineConfig(**given), steps=steps))


_STEPS = (
    step((0, 5), (1, 6), (2, 7), (3, 8)),
    step((0, 6), (1, 7), (2, 8), finish=(3,)),
    step((1, 8), finish=(0, 2)),
)
_VERIFIES = (
    verify((0, 5), (1, 6), (2, 7), (3, 8)),
    verify((0, 8), (1, 9), (2, 10), finish=(3,)),
)
ONE_RANK = _case(*_STEPS)
RANKS = [_case(*_STEPS, ep_size=2, ep_rank=rank) for rank in range(2)]
THREE_OF_64 = _case(*_STEPS, num_experts=64, experts_per_token=3, ep_size=4, ep_rank=3)
ONE_EACH = _case(*_STEPS, experts_per_token=1, ep_size=2)
EAGER = _case(*_STEPS, capture_bs=(1, 2))
SIGMOIDS = [_case(*_STEPS, ep_size=2, ep_rank=rank, expert_scoring="sigmoid") for rank in range(2)]
FUSED, APART = (
    [
        _case(*_STEPS, ep_size=2, ep_rank=rank, expert_scoring="sigmoid", shared_experts=kind)
        for rank in range(2)
    ]
    for kind in ("fused", "apart")
)
FUSED_ALONE = _case(
    *_STEPS, experts_per_token=3, expert_groups=2, expert_scoring="sigmoid", shared_experts="fused"
)
APART_ALONE = _case(*_STEPS, expert_scoring="sigmoid", shared_experts="apart")
GROUPED = [
    _case(
        *_STEPS, num_experts=experts, expert_groups=groups, ep_size=ranks, expert_scoring="sigmoid"
    )
    for experts, groups, ranks in ((4, 2, 1), (8, 4, 2))
]
GROUPED_FUSED = _case(
    *_STEPS, num_experts=64, experts_per_token=3, expert_groups=4, ep_size=4, ep_rank=3,
    expert_scoring="sigmoid", shared_experts="fused",
)  # fmt: skip
COPIES = [
    _case(*_STEPS, expert_copies=2, expert_scoring="sigmoid"),
    _case(
        *_STEPS, expert_copies=2, expert_groups=2, ep_size=2, ep_rank=1, expert_scoring="sigmoid",
        shared_experts="apart",
    ),
]  # fmt: skip
FUSED_COPIES = _case(
    *_STEPS, expert_copies=2, expert_groups=2, ep_size=2, expert_scoring="sigmoid",
    shared_experts="fused",
)  # fmt: skip
BIASED = [
    _case(*_STEPS, ep_size=2, ep_rank=rank, expert_activation="clamped_swiglu") for rank in range(2)
]
VERIFIED = _case(*_VERIFIES, draft_tokens=3, ep_size=2)
MANY = _case(
    verify(*((row, 5 + row % 4) for row in range(12))),
    verify(*((row, 8 + row % 4) for row in range(11)), finish=(11,)),
    capture_bs=(12,), req_pool_size=12, kv_pool_pages=200, draft_tokens=3, experts_per_token=3,
)  # fmt: skip
"""More than 32 tokens, whose sums a compiled kernel makes."""


def found(workers: Workers, version: str, of: Case, target: str) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding."""
    return {(one.clause, one.buffer) for one in workers.findings(version, of, target)}


HEALTHY = {
    "one rank": ONE_RANK, "first rank": RANKS[0], "last rank": RANKS[1],
    "three of 64": THREE_OF_64, "one each": ONE_EACH, "eager": EAGER,
}  # fmt: skip


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("of", HEALTHY.values(), ids=HEALTHY.keys())
@pytest.mark.parametrize("version", ["0.5.13", "0.5.19", NEWEST])
def test_each_token_has_its_own_experts(workers: Workers, version: str, of: Case) -> None:
    assert found(workers, version, of, TARGETS[0]) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("of", [ONE_RANK, RANKS[1], THREE_OF_64], ids=["one", "last", "of 64"])
def test_the_experts_of_0_5_9_compute_what_they_should(workers: Workers, of: Case) -> None:
    named = {buffer for _, buffer in found(workers, "0.5.9", of, TARGETS[0])}
    assert not [buffer for buffer in named if "expert" in buffer or "topk" in buffer]


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.19", NEWEST])
def test_each_draft_has_its_own_experts(workers: Workers, version: str) -> None:
    assert found(workers, version, VERIFIED, TARGETS[1]) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", NEWEST])
def test_many_drafts_have_the_sums_of_their_experts(workers: Workers, version: str) -> None:
    assert found(workers, version, MANY, TARGETS[1]) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_routers_that_take_sigmoids_choose_the_same_experts(workers: Workers, rank: int) -> None:
    assert found(workers, NEWEST, SIGMOIDS[rank], DEEPSEEK) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "of", [FUSED_ALONE, *FUSED, APART_ALONE, *APART],
    ids=[f"{kind} {place}" for kind in ("fused", "apart") for place in ("alone", "first", "last")],
)  # fmt: skip
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", NEWEST])
def test_a_shared_expert_computes_every_token(workers: Workers, version: str, of: Case) -> None:
    known = {("metadata", f"local_topk_ids.{place}") for place in range(2)}  # sglang PR 40498
    seen = found(workers, version, of, DEEPSEEK)
    assert seen <= (set() if version == NEWEST else known)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("of", [*GROUPED, GROUPED_FUSED], ids=["two of 4", "four of 8", "fused"])
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", NEWEST])
def test_experts_of_a_token_come_from_its_best_groups(
    workers: Workers, version: str, of: Case
) -> None:
    known = {("metadata", f"local_topk_ids.{place}") for place in range(3)}  # sglang PR 40498
    seen = found(workers, version, of, DEEPSEEK)
    assert seen <= (set() if version == NEWEST else known)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("of", COPIES, ids=["one rank", "last rank"])
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", NEWEST])
def test_copies_of_an_expert_take_turns(workers: Workers, version: str, of: Case) -> None:
    known = {("metadata", f"local_topk_ids.{place}") for place in range(2)}  # sglang PR 40498
    seen = found(workers, version, of, DEEPSEEK)
    assert seen <= (set() if version == NEWEST else known)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", NEWEST])
def test_a_fused_shared_expert_beside_copies_is_taken_for_the_first_of_them(
    workers: Workers, version: str
) -> None:
    """See reports/findings/sglang-fused-expert-copies.md."""
    seen = found(workers, version, FUSED_COPIES, DEEPSEEK)
    assert {("metadata", "topk_ids.2"), ("computes", "experts")} <= seen


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_padded_tokens_go_to_a_fused_shared_expert_of_every_rank_up_to_0_5_22(
    workers: Workers, version: str
) -> None:
    """sglang PR 40498, on a rank that does not have the last of the other experts."""
    seen = found(workers, version, FUSED[0], DEEPSEEK)
    assert (("metadata", "local_topk_ids.0") in seen) is (version != NEWEST)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("scaled_with_the_others", FUSED_ALONE, ("computes", "experts")),
        ("named_one_too_far", FUSED_ALONE, ("metadata", "topk_ids.3")),
        ("normalised_with_it", FUSED_ALONE, ("computes", "experts")),
        ("flags_swapped", APART_ALONE, ("computes", "experts")),
        ("whole_on_each_rank", FUSED[1], ("computes", "experts")),
        ("padded_not_masked", FUSED[0], ("metadata", "topk_ids.0")),
        ("on_no_rank", FUSED[0], ("metadata", "local_topk_ids.2")),
        ("left_out", APART[1], ("computes", "experts")),
        ("by_place_among_experts", COPIES[0], ("metadata", "topk_ids.1")),
        ("left_where_they_were", COPIES[1], ("metadata", "topk_ids.0")),
        ("bias_left_out", APART_ALONE, ("metadata", "topk_ids.0")),
        ("weights_with_bias", APART_ALONE, ("computes", "experts")),
        ("groups_by_their_best", GROUPED[0], ("metadata", "topk_ids.0")),
        ("one_group_more", GROUPED[1], ("metadata", "topk_ids.1")),
    ],
)
def test_a_planted_bug_of_a_shared_expert_or_of_a_router_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    seen = found(workers, NEWEST, of, f"tests.targets.sglang.shared_expert_mutants:{planted}")
    assert named in seen, seen


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.19", NEWEST])
def test_experts_with_biases_compute_what_they_should(
    workers: Workers, version: str, rank: int
) -> None:
    assert found(workers, version, BIASED[rank], GPT_OSS) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "rank", "goes_to_an_expert"),
    [("0.5.21", 0, False), ("0.5.21", 1, True), ("0.5.22", 1, True), (NEWEST, 1, False)],
)
def test_padded_tokens_go_to_the_last_expert_up_to_0_5_22(
    workers: Workers, version: str, rank: int, goes_to_an_expert: bool
) -> None:
    """sglang PR 40498."""
    seen = found(workers, version, SIGMOIDS[rank], DEEPSEEK)
    assert (("metadata", "local_topk_ids.0") in seen) is goes_to_an_expert
    assert ("computes", "experts") not in seen


@pytest.mark.sglang
def test_a_release_whose_block_is_told_of_no_padded_tokens_is_refused(workers: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match=r"0\.5\.21 on"):
        workers.findings("0.5.19", SIGMOIDS[0], DEEPSEEK)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("nothing_masked", RANKS[0], ("metadata", "topk_ids.0")),
        ("one_too_few", RANKS[1], ("metadata", "topk_ids.0")),
        ("first_expert", RANKS[0], ("metadata", "expert_counts")),
        ("rows_counted", VERIFIED, ("computes", "experts")),
        ("masked_before_the_map", RANKS[1], ("metadata", "local_topk_ids.0")),
        ("count_of_the_graph", RANKS[0], ("metadata", "topk_ids.0")),
        ("padded_counted", RANKS[0], ("metadata", "expert_counts")),
        ("never_reset", RANKS[0], ("metadata", "expert_counts")),
        ("only_first_choice", RANKS[0], ("metadata", "expert_counts")),
        ("short_blocks", ONE_RANK, ("writes", "in moe_align_block_size")),
        ("not_normalised", ONE_RANK, ("computes", "experts")),
        ("experts_of_a_neighbour", RANKS[0], ("metadata", "local_topk_ids.0")),
        ("without_biases", BIASED[0], ("computes", "experts")),
        ("not_clamped", BIASED[1], ("computes", "experts")),
        ("router_without_bias", BIASED[0], ("metadata", "topk_ids.0")),
    ],
)
def test_a_planted_bug_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    clause, buffer = named
    seen = found(workers, NEWEST, of, f"tests.targets.sglang.moe_mutants:{planted}")
    assert [where for broken, where in seen if broken == clause and buffer in where], seen


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "num_experts must be 1 or more"),
        ({"num_experts": 4, "dtype": "float32"}, "dtype='float32' is not driven"),
        ({"num_experts": 4, "dtype": "float16", "attn_tp_size": 2}, "attn_tp_size=2 is not driven"),
        ({"num_experts": 4, "dtype": "float16", "swa_window": 2}, "swa_window=2 is not driven"),
        (
            {"num_experts": 4, "dtype": "float16", "expert_scoring": "sigmoid"},
            "expert_scoring='sigmoid' is not driven",
        ),
    ],
)
def test_configs_that_the_target_does_not_have_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    assert said in str(open_target(TARGETS[0]).unsupported(EngineConfig(**settings)))
