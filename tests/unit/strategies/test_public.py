"""Strategies for tests with Hypothesis: what they draw, what they print, how far they shrink."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import Phase, find, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import fuzzgraph
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import UsageError
from fuzzgraph.faults.catalogue import fault_named, target_with
from fuzzgraph.strategies import minimise
from fuzzgraph.targets.builtin.target import BuiltinTarget

PUBLIC = {
    "Case": Case,
    "EngineConfig": EngineConfig,
    "ReplayStep": ReplayStep,
    "BatchRow": BatchRow,
}


def drawn(strategy: SearchStrategy[Any], count: int = 150) -> list[Any]:
    found: list[Any] = []

    @seed(1)
    @settings(max_examples=count, database=None, phases=[Phase.generate], deadline=None)
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def report_of(strategy: SearchStrategy[Any], fails: Callable[[Any], bool]) -> str:
    """What Hypothesis says of the least example that fails."""

    @seed(1)
    @settings(max_examples=300, database=None, deadline=None, print_blob=False)
    @given(value=strategy)
    def check(value: Any) -> None:
        assert not fails(value)

    with pytest.raises(AssertionError) as caught:
        check()
    return "\n".join(getattr(caught.value, "__notes__", []))


def least(fails: Callable[[Case], bool]) -> Case:
    return find(
        fuzzgraph.cases(),
        fails,
        settings=settings(deadline=None, database=None, max_examples=2000),
        random=random.Random(2),
    )


def shrinks_with_three_rows(case: Case) -> bool:
    return any(len(a.rows) > 2 > len(b.rows) > 0 for a, b in pairwise(case.steps))


def touches_the_window_edge(case: Case) -> bool:
    window = case.config.sliding_window
    return window > 1 and any(row.seq_len == window + 1 for step in case.steps for row in step.rows)


def verifies_two_requests_in_splits(case: Case) -> bool:
    return case.config.split_kv > 0 and any(
        step.mode == "target_verify" and len(step.rows) > 1 for step in case.steps
    )


def test_a_failing_case_prints_as_an_expression_that_makes_it_again() -> None:
    report = report_of(fuzzgraph.cases(), shrinks_with_three_rows)
    text = report[report.index("value=") + len("value=") : report.rindex(",\n)")]
    case = eval(text, dict(PUBLIC))
    assert shrinks_with_three_rows(validate(case))
    assert eval(repr(case), dict(PUBLIC)) == case
    assert "page_size" not in text, "what is at its default is left out"


def test_a_failing_case_is_noted_as_a_table() -> None:
    report = report_of(fuzzgraph.cases(), shrinks_with_three_rows)
    assert "step mode" in report and "raw/padded rows (request:seq_len)" in report


def test_a_batch_is_noted_with_the_case_that_it_comes_from() -> None:
    report = report_of(
        fuzzgraph.batches(EngineConfig(kv_pool_pages=130)), lambda batch: batch.raw_bs > 1
    )
    assert "steps=(ReplayStep(" in report and "raw_bs=2" in report


@pytest.mark.parametrize(
    "fails",
    [shrinks_with_three_rows, touches_the_window_edge, verifies_two_requests_in_splits],
    ids=lambda fails: fails.__name__,
)
def test_hypothesis_reaches_the_size_that_a_campaign_does(fails: Callable[[Case], bool]) -> None:
    def size(case: Case) -> tuple[int, int]:
        return len(case.steps), sum(len(step.rows) for step in case.steps)

    found = least(fails)
    assert size(minimise(found, fails)) == size(found)


@pytest.mark.slow
@pytest.mark.slow
def test_hypothesis_shrinks_a_planted_fault_to_one_step_of_one_request() -> None:
    target = target_with(fault_named("tensorrt-llm-pr-17816-rank-keeps-other-rows"))

    def fails(case: Case) -> bool:
        return bool(fuzzgraph.run_case(case, target).findings)

    case = find(
        fuzzgraph.cases(target),
        fails,
        settings=settings(deadline=None, database=None),
        random=random.Random(2),
    )
    assert [len(step.rows) for step in case.steps] == [1]


def test_bounds_hold_in_every_case() -> None:
    bounded = fuzzgraph.cases(page_size=(16, 32), modes=("decode",), raw_bs=(2, 5), head_dim=8)
    for case in drawn(bounded):
        assert validate(case).config.page_size in (16, 32)
        assert case.config.modes == ("decode",) and case.config.head_dim == 8
        assert all(len(step.rows) in (2, 5) for step in case.steps)


def test_every_value_of_a_bound_is_drawn_and_the_first_is_the_simplest() -> None:
    dtypes = [config.dtype for config in drawn(fuzzgraph.configs(dtype=("float16", "bfloat16")))]
    assert set(dtypes) == {"float16", "bfloat16"}
    simplest = find(
        fuzzgraph.configs(dtype=("float16", "bfloat16")),
        lambda config: True,
        settings=settings(deadline=None, database=None),
    )
    assert simplest.dtype == "float16"


def test_one_ladder_of_captured_sizes_is_one_value() -> None:
    ladders = {config.capture_bs for config in drawn(fuzzgraph.configs(capture_bs=(1, 4, 8)))}
    assert ladders == {(1, 4, 8)}
    several = {config.capture_bs for config in drawn(fuzzgraph.configs(capture_bs=[(1,), (2, 3)]))}
    assert several == {(1,), (2, 3)}


def test_parts_compose_to_valid_cases() -> None:
    def on(config: EngineConfig) -> SearchStrategy[Case]:
        steps = fuzzgraph.histories(config, raw_bs=(1, 2), modes=("decode",))
        return steps.map(lambda steps: Case(schema_version=1, config=config, steps=steps))

    found = drawn(fuzzgraph.configs(page_size=16, modes=("decode",)).flatmap(on))
    for case in found:
        assert {len(step.rows) for step in validate(case).steps} <= {1, 2}
    assert len({case.config for case in found}) > 12, "parts vary as much as whole cases"
    assert len(set(found)) > 0.8 * len(found)


def test_histories_and_batches_fit_the_page_pool_of_a_given_config() -> None:
    config = EngineConfig(
        modes=("decode", "prefill", "target_verify"), capture_bs=(8,), capture_tokens=(16,)
    )
    assert config.kv_pool_pages < config.req_pool_size * config.max_context_len
    assert {batch.raw_bs for batch in drawn(fuzzgraph.batches(config))} >= {1, 8}
    for steps in drawn(fuzzgraph.histories(config)):
        validate(Case(schema_version=1, config=config, steps=steps))


def test_rows_that_fit_the_page_pool_stay_as_long_as_they_were_drawn() -> None:
    lengths = [int(batch.seq_lens.max()) for batch in drawn(fuzzgraph.batches(EngineConfig()))]
    assert max(lengths) == EngineConfig().max_context_len


def test_a_batch_has_the_wanted_rows_and_mode() -> None:
    config = EngineConfig(modes=("decode", "target_verify"), capture_bs=(8,))
    for batch in drawn(fuzzgraph.batches(config, raw_bs=3, modes=("target_verify",)), 50):
        assert (batch.mode, batch.raw_bs) == ("target_verify", 3)
        assert batch.num_tokens == 3 * config.draft_tokens


def test_a_target_without_eager_steps_captures_the_wanted_rows() -> None:
    target = BuiltinTarget()
    target.capabilities = target.capabilities.replace(eager_steps=False)
    for case in drawn(fuzzgraph.cases(target, raw_bs=7, modes="decode")):
        assert case.config.capture_bs[-1] >= 7
        assert all(len(step.rows) == 7 for step in case.steps)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"page_szie": 16}, r"page_szie=16 is not a bound. Known: raw_bs, modes, capture_bs"),
        ({"page_size": "16"}, r"page_size='16' must be of type int"),
        ({"page_size": 0}, r"page_size=0 must lie in 1\.\."),
        ({"capture_bs": []}, r"capture_bs=\[\] lists no value"),
        ({"capture_bs": ((8,), (4, 8))}, "must be a tuple of sizes"),
        ({"dtype": "float8"}, r"dtype='float8' is not one of its values: 'float32'"),
        ({"modes": ("decoding",)}, r"'decoding' is not a mode of the target"),
        ({"raw_bs": 900}, r"raw_bs=900 must be a number in 1\.\.max_batch=8"),
        ({"page_size": 4096}, r"page_size=4096 must lie in 1\.\.1024"),
        ({"sliding_window": 99}, r"sliding_window=99 does not fit the other bounds"),
        ({"dtype": ()}, r"dtype=\(\) lists no value"),
        ({"attention": "mla", "num_kv_heads": 2}, r"num_kv_heads=2 does not fit the other bounds"),
    ],
)
def test_a_bound_that_cannot_hold_is_refused_at_once(bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fuzzgraph.cases(**bounds)


def test_a_given_config_is_not_bounded_again() -> None:
    with pytest.raises(UsageError, match="page_size=16: the config is given"):
        fuzzgraph.histories(EngineConfig(), page_size=16)


def test_a_batch_that_the_config_cannot_hold_is_refused() -> None:
    config = EngineConfig(eager_above_ladder=False)
    with pytest.raises(UsageError, match="raw_bs=3 exceeds the 2 rows"):
        fuzzgraph.batches(config, raw_bs=3)
    with pytest.raises(UsageError, match="the config captures decode"):
        fuzzgraph.histories(config, modes="prefill")


def test_the_parts_of_a_case_can_be_drawn_in_the_test() -> None:
    @settings(max_examples=20, database=None, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        config = data.draw(fuzzgraph.configs(raw_bs=4))
        batch = data.draw(fuzzgraph.batches(config, raw_bs=4))
        assert len(batch.seq_lens) == 4

    check()
