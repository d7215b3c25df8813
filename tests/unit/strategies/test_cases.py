"""Generated cases: valid, cheap to repeat, from every dimension, nothing unsupported."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import Phase, find, given, seed, settings

from fuzzgraph.capabilities import WIDEST, Capabilities, page_numbers, unsupported_setting
from fuzzgraph.case import Case, EngineConfig, digest, validate
from fuzzgraph.coverage_values import coverage_values
from fuzzgraph.errors import UsageError
from fuzzgraph.layout import plan
from fuzzgraph.strategies import CI, DEFAULT, NIGHTLY, Profile, cases, profile_named
from fuzzgraph.strategies.boundaries import seq_lens
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.strategies.wide_batches import is_wide

EPOCHS, PER_EPOCH = 12, 100

REACHED = """
ladder [1]|ladder [1, 2, 4, 8]|ladder [6, 12]|ladder with gaps|ladder of one size
capture beyond pool|ladder within pool|above ladder|no eager fallback|raw<padded|raw=padded
1 steps|2 steps|3 steps|4 steps|5 steps or more|1 rows|2 rows|3 rows|8 rows
mode decode|mode target_verify|mode draft_extend|mode draft|mode prefill|mode idle
shrinking batch|growing batch|repeated size|shrinking twice|small large small|large small large
repeated step|interleaved modes|modes there and back|same graph twice|smaller graph after larger
eager between graphs|larger eager between graphs|idle between graphs|via eager
finished request|all finished|row reused|added later|continued request|grown by one
length rolled back|parked request|parked request returns
len=1|len=page-1|len=page|len=page+1|len=context-1|len=context|ragged lengths
one padded row|largest graph|request pool full|KV pool full
later page just full|later page just begun|last page of the context
len=window-1|len=window|len=window+1|len=window+2|window<page|window=page|window>page
len=split-1|len=split|len=split+1|split plan|several splits
len=context-drafts+1|drafts reach past the context|context ends inside a page
sum of lengths beyond max_bs * pages of a context
page_size=1|page_size=2|page_size=3|page_size=16|page_size=32|page_size=64|page_size=128
page_size=256|page order ascending|page order descending|page order shuffled
page order fragmented|shared prefix
topk 1|topk 2|topk 4|spec steps 1|spec steps 2|spec steps 3|spec steps 4|spec steps 5
draft tokens 2|draft tokens 3|draft tokens 5|draft tokens 8|draft tokens other than steps+1
accept 0|accept all|accept ragged|accept none at all
tp 2|tp 3|tp 4|tp 8|tp rank>0|local count below padded|rank without live rows
MHA|GQA|MQA|MLA|key and value dims differ
dtype float32|dtype bfloat16|dtype float16|kv dtype float8_e4m3fn|kernels triton
encoder|encoder lengths 0 and longest mixed|recurrent state
optional input present then absent|optional input absent then present
metadata full|metadata raw_out_graph|metadata raw_in_graph|page map page_table
fill value 0|fill value 1|free padding keep|free padding zero|free padding copy_live
runner cpu_graph|prefill runner piecewise|prefill runner breakable|token ladder
prefill raw<padded|prefill raw=padded|prefill ragged|prefill with history
fewer drafts than places|drafts rejected|prompt as long as a draft|prefill far above the ladder
row reused by a request one token longer|window<draft tokens
"""


def drawn(capabilities: Capabilities, profile: Profile, count: int, at: int) -> list[Case]:
    """`count` cases, the same in every run; all health checks are on."""
    found: list[Case] = []

    @seed(at)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=[],
    )
    @given(cases(capabilities, profile))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


@cache
def block(epoch: int) -> tuple[Case, ...]:
    return tuple(drawn(WIDEST, DEFAULT.at(epoch), PER_EPOCH, epoch))


@cache
def sample() -> tuple[Case, ...]:
    return tuple(case for epoch in range(EPOCHS) for case in block(epoch))


@cache
def reached() -> frozenset[str]:
    return frozenset().union(*map(coverage_values, sample()))


@pytest.mark.parametrize("dimension", REACHED.strip().replace("\n", "|").split("|"))
def test_the_dimension_is_reached_within_twelve_hundred_cases(dimension: str) -> None:
    assert dimension in reached()


def test_every_case_is_valid_and_its_pages_suffice() -> None:
    for case in sample()[::3]:
        batches = plan(validate(case))
        assert len(batches) == len(case.steps)


def test_nightly_cases_are_valid_and_longer() -> None:
    nightly = drawn(WIDEST, NIGHTLY, 100, 5)
    for case in nightly:
        plan(validate(case))
    assert max(len(case.steps) for case in nightly) > DEFAULT.max_steps


def test_equal_seeds_give_equal_cases() -> None:
    again = drawn(WIDEST, DEFAULT.at(3), PER_EPOCH, 3)
    assert [digest(case) for case in again] == [digest(case) for case in block(3)]


def test_few_cases_are_drawn_twice() -> None:
    assert len(set(map(digest, sample()))) > 0.98 * len(sample())


def test_about_four_cases_in_five_repeat_one_of_the_last_sixteen_configs() -> None:
    shares = [repeats(block(epoch)) for epoch in range(EPOCHS)]
    assert 0.65 < sum(shares) / len(shares) < 0.92


def repeats(block: tuple[Case, ...]) -> float:
    """Share of cases whose config a cache of sixteen sessions, least recent out, still holds."""
    recent: deque[EngineConfig] = deque(maxlen=16)
    hits = 0
    for case in block:
        if case.config in recent:
            hits += 1
            recent.remove(case.config)
        recent.append(case.config)
    return hits / len(block)


def test_another_epoch_brings_other_configs() -> None:
    here, there = ({case.config for case in block(epoch)} for epoch in (1, 2))
    assert len(here & there) <= 2


def test_histories_have_three_steps_on_average_and_seldom_one() -> None:
    lengths = Counter(len(case.steps) for case in sample())
    mean = sum(length * count for length, count in lengths.items()) / len(sample())
    assert 2.7 < mean < 3.3
    assert lengths[1] < 0.15 * len(sample())


def test_batches_are_not_mostly_single_rows() -> None:
    sizes = [len(step.rows) for case in sample() for step in case.steps if step.rows]
    assert sum(size == 1 for size in sizes) < len(sizes) / 2


def test_batches_are_small_but_for_wide_ones() -> None:
    narrow = [case for case in sample() if not is_wide(case.config.req_pool_size)]
    assert max(len(step.rows) for case in narrow for step in case.steps) <= DEFAULT.max_batch


def test_contexts_stay_small_but_for_rare_ones() -> None:
    configs = [case.config for case in sample()]
    # Compressed keys need a context beyond the window, and blocks one of several.
    short = [one for one in configs if one.kv_compression == "none" and not one.index_block]
    contexts = [one.max_context_len for one in short]
    assert sum(context <= 33 for context in contexts) > 0.7 * len(contexts)
    rare = sum(context > DEFAULT.rare_context_len for context in contexts)
    assert 0 < rare < 0.06 * len(contexts)


def test_keys_are_selected_by_a_plan_more_often_than_without_one() -> None:
    chosen = Counter(case.config.topk_kernel for case in sample() if case.config.index_topk)
    assert 0 < chosen["unplanned"] < chosen["planned"]


def test_a_long_context_has_rows_past_the_blocks_of_kernels_and_few_narrow_ones() -> None:
    found = [case for case in sample() if case.config.max_context_len > 512]
    assert any(row.seq_len > 1025 for case in found for step in case.steps for row in step.rows)
    tried = seq_lens(EngineConfig(max_context_len=5000), "decode", 1)
    assert {511, 512, 513, 1025, 4095, 4097} <= set(tried)
    assert all(case.config.req_pool_size <= 3 for case in found)
    assert all(case.config.num_q_heads == 1 for case in found)


def test_nothing_is_drawn_outside_a_narrow_reach() -> None:
    narrow = Capabilities(
        page_sizes=(16,),
        metadata=("raw_in_graph",),
        eager_steps=False,
        max_batch=3,
        capture_beyond_pool=False,
        max_context_len=20,
    )
    found = drawn(narrow, DEFAULT, 150, 7)
    for case in found:
        config = validate(case).config
        assert config.modes == ("decode",)
        assert config.page_size == 16
        assert config.metadata == "raw_in_graph"
        assert config.capture_bs[-1] <= 3
        assert config.capture_bs[-1] <= config.req_pool_size
        assert config.max_context_len <= 20
        assert not config.sliding_window and not config.max_encoder_len
        assert not config.recurrent_state and config.attn_tp_size == 1
        for step in case.steps:
            assert step.mode == "decode" and step.via == "graph" and not step.mrope
            assert len(step.rows) <= config.capture_bs[-1]
    assert len({case.config for case in found}) > 3


@pytest.mark.parametrize(
    "capabilities",
    [
        WIDEST.replace(page_sizes=(128,), capture_beyond_pool=False),
        WIDEST.replace(max_context_len=3),
        WIDEST.replace(max_batch=1),
        WIDEST.replace(runners=("cpu_graph",), attentions=("mla",), kv_dtypes=("float8_e4m3fn",)),
        WIDEST.replace(modes=("prefill", "idle")),
        WIDEST.replace(max_batch=128),
    ],
    ids=["large pages", "short context", "one row", "one choice", "prefill only", "wide"],
)
def test_cases_of_an_unusual_reach_are_valid(capabilities: Capabilities) -> None:
    profile = Profile(max_batch=128, fresh=60)
    for case in drawn(capabilities, profile, 100, 9):
        plan(validate(case))
        ladder = case.config.capture_bs
        assert capabilities.capture_beyond_pool or ladder[-1] <= case.config.req_pool_size
        assert case.config.max_context_len <= capabilities.max_context_len
        widest = (
            capabilities.max_wide_batch
            if is_wide(case.config.req_pool_size)
            else capabilities.max_batch
        )
        assert max(len(step.rows) for step in case.steps) <= widest


def test_a_target_without_shared_prefixes_gets_none() -> None:
    can = Capabilities(page_sizes=(1, 16), max_context_len=64)
    assert any(case.shared_prefix_pages for case in drawn(can, DEFAULT, 100, 9))
    apart = can.replace(shared_prefixes=False)
    assert not any(case.shared_prefix_pages for case in drawn(apart, DEFAULT, 100, 9))


def test_all_cases_of_recurrent_layers_alone_have_recurrent_state() -> None:
    reach = Capabilities(recurrent_state=True, recurrent_only=True, max_batch=8)
    found = drawn(reach, DEFAULT, 60, 7)
    assert all(case.config.recurrent_state for case in found)
    assert len({case.config for case in found}) > 3


def test_every_page_has_room_for_what_else_a_target_keeps_in_one() -> None:
    reach = Capabilities(
        page_sizes=(16, 32), max_q_heads=4, max_head_dim=16, max_batch=8, min_page_numbers=1304
    )
    configs = {case.config for case in drawn(reach, DEFAULT, 60, 7)}
    assert min(map(page_numbers, configs)) >= 1304
    assert {config.page_size for config in configs} == {16, 32}
    assert {config.num_kv_heads for config in configs} >= {2, 4}
    assert {config.num_q_heads % config.num_kv_heads for config in configs} == {0}
    small = EngineConfig(page_size=16, num_kv_heads=2, num_q_heads=2, head_dim=8, v_head_dim=8)
    said = "a page of 512 numbers is not driven, only from 1304 on"
    assert unsupported_setting(reach, small) == said


def test_every_page_of_a_verify_has_room_for_what_its_drafts_take() -> None:
    reach = Capabilities(
        modes=("target_verify",), recurrent_state=True, recurrent_only=True, recurrent_verify=True,
        page_sizes=(16, 32), max_q_heads=4, max_head_dim=16, max_draft_tokens=6,
        max_context_len=64, min_page_numbers=1304, page_numbers_per_draft=264,
    )  # fmt: skip
    configs = {case.config for case in drawn(reach, DEFAULT, 80, 7)}
    room = {page_numbers(config) - 264 * (config.draft_tokens - 1) for config in configs}
    assert min(room) >= 1304
    assert len({config.draft_tokens for config in configs}) > 3
    assert {config.page_size for config in configs} == {16, 32}


def test_kv_in_fp8_is_drawn_beside_the_one_dtype_that_kernels_give() -> None:
    reach = Capabilities(
        dtypes=("float32", "bfloat16"), kv_dtypes=("auto", "float8_e4m3fn"), max_batch=8,
        fp8_kv_beside="bfloat16",
    )  # fmt: skip
    configs = {case.config for case in drawn(reach, DEFAULT, 80, 7)}
    assert {(config.kv_dtype, config.dtype) for config in configs} == {
        ("auto", "float32"), ("auto", "bfloat16"), ("float8_e4m3fn", "bfloat16")
    }  # fmt: skip
    other = EngineConfig(kv_dtype="float8_e4m3fn")
    said = "dtype='float32' with KV in float8_e4m3fn is not driven, only bfloat16"
    assert unsupported_setting(reach, other) == said


def test_no_row_is_shorter_than_a_target_has_it() -> None:
    found = drawn(Capabilities(min_seq_len=3, max_batch=8, max_context_len=20), DEFAULT, 100, 5)
    lengths = {row.seq_len for case in found for step in case.steps for row in step.rows}
    assert min(lengths) == 3


def test_a_wide_profile_reaches_the_large_ladder_and_what_lies_above_it() -> None:
    found = drawn(WIDEST.replace(max_batch=128), Profile(max_batch=128, fresh=100), 600, 4)
    names = frozenset().union(*map(coverage_values, found))
    assert {"ladder [64, 128]", "65 rows", "63 rows"} <= names


def test_the_simplest_case_is_one_row_of_one_token() -> None:
    case = find(cases(WIDEST), lambda case: True, settings=settings(database=None))
    assert [len(step.rows) for step in case.steps] == [1]
    assert case.steps[0].rows[0].seq_len == 1
    assert case.config.page_size == 1


def test_a_config_that_the_target_refuses_loses_features() -> None:
    refused = []

    def without_pages(config: EngineConfig) -> bool:
        if config.page_size > 1:
            refused.append(config)
        return config.page_size == 1

    found: list[Case] = []

    @seed(2)
    @settings(max_examples=60, database=None, phases=[Phase.generate], deadline=None)
    @given(cases(WIDEST, supports=without_pages))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    assert refused
    assert all(case.config.page_size == 1 for case in found)
    assert len({case.config for case in found}) > 8


def test_hypothesis_alone_shrinks_to_two_steps_and_two_requests() -> None:
    def shrinks_across_a_page(case: Case) -> bool:
        sizes = [len(step.rows) for step in case.steps]
        longest = max((row.seq_len for step in case.steps for row in step.rows), default=0)
        return (
            any(a > b > 0 for a, b in zip(sizes, sizes[1:], strict=False))
            and case.config.page_size < longest
            and case.config.page_size > 1
        )

    case = find(
        cases(WIDEST),
        shrinks_across_a_page,
        settings=settings(database=None),
        random=random.Random(3),
    )
    assert [len(step.rows) for step in case.steps] == [2, 1]
    assert case.config.modes == ("decode",) and case.config.dtype == "float32"


def test_profiles_are_found_by_name() -> None:
    assert profile_named("ci") is CI
    assert replace(DEFAULT, epoch=4) == DEFAULT.at(4)
    with pytest.raises(UsageError, match=r"profile='nigthly' is unknown.*nightly"):
        profile_named("nigthly")


def test_a_split_plan_of_a_long_context_has_few_parts() -> None:
    can = WIDEST.replace(modes=("prefill",))
    configs = [swarm_config(can, DEFAULT, number) for number in range(3000)]
    items = [
        each.max_context_len * -(-each.max_context_len // each.split_kv)
        for each in configs
        if each.split_kv
    ]
    assert any(each.max_context_len > 4096 and each.split_kv for each in configs)
    assert max(items) <= 1 << 21
