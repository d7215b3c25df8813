"""Other data-parallel ranks: in a case, in drawn ones, in shrunk ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.capabilities import Capabilities, unsupported_case
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, group_configs, validate
from fuzzgraph.case.capture_sizes import padded_size, rank_sizes, replayed_size
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, draw, minimise
from fuzzgraph.strategies.repair import with_config
from fuzzgraph.text.case_text import case_table

CAN = Capabilities(modes=("decode", "target_verify", "idle"), max_dp_size=8, idle_alone=False)
PROMPTS = Capabilities(
    modes=("prefill", "idle"), prefill_runners=("breakable",), max_dp_size=8, idle_alone=False
)
CONFIG = EngineConfig(capture_bs=(1, 2, 4), dp_size=3, dp_rank=1)


def drawn(can: Capabilities, count: int = 300) -> list[Case]:
    found: list[Case] = []
    for block in range(count // 100):
        draw(cases(can, DEFAULT.at(block)), block, 100, found.append)
    return found


def decode(rows: int, *others: int) -> ReplayStep:
    each = tuple(BatchRow(request=name, seq_len=3) for name in range(rows))
    return ReplayStep(mode="decode" if rows else "idle", rows=each, other_ranks=others)


def case_of(*steps: ReplayStep, config: EngineConfig = CONFIG) -> Case:
    return Case(schema_version=1, config=config, steps=steps)


def test_ranks_are_as_large_as_this_one_where_a_step_says_nothing() -> None:
    assert rank_sizes(CONFIG, decode(2)) == (2, 2, 2)
    assert rank_sizes(CONFIG, decode(2, 4, 0)) == (4, 2, 0)


def test_the_largest_rank_sizes_the_graph() -> None:
    assert padded_size(CONFIG, decode(1)) == 1
    assert padded_size(CONFIG, decode(1, 0, 3)) == 4
    assert replayed_size(CONFIG, decode(0, 2, 0)) == 2
    assert padded_size(CONFIG, decode(1, 5, 0)) is None


def test_a_batch_says_what_each_rank_has() -> None:
    (batch,) = plan(validate(case_of(decode(1, 4, 0))))
    assert batch.rank_sizes.tolist() == [4, 1, 0]
    assert batch.largest_rank == 4


def test_a_second_group_of_layers_knows_of_no_other_rank() -> None:
    second = group_configs(msgspec.structs.replace(CONFIG, swa_window=4))[1]
    assert (second.dp_size, second.dp_rank) == (1, 0)


@pytest.mark.parametrize(
    ("step", "settings", "said"),
    [
        (decode(1, 2), {}, r"other_ranks=\(2,\) must name the 2 other ranks of dp_size=3"),
        (decode(1, 2, 9), {}, r"other_ranks=\(2, 9\) must lie in 0..8, which is what"),
        (decode(1), {"dp_rank": 3}, "config.dp_rank=3 must be below dp_size=3"),
        (
            decode(1, 5, 0),
            {"eager_above_ladder": False},
            r"size=5 exceeds max\(capture_bs\)=4",
        ),
        (
            decode(1),
            {"modes": ("prefill", "decode"), "capture_tokens": (4,)},
            "config.dp_size=3 counts tokens of prefills where nothing else is captured",
        ),
    ],
    ids=["too few", "beyond the pool", "no such rank", "above the ladder", "prefill"],
)
def test_what_contradicts_itself_is_refused(
    step: ReplayStep, settings: dict[str, Any], said: str
) -> None:
    config = msgspec.structs.replace(CONFIG, **settings)
    with pytest.raises(InvalidCase, match=said):
        validate(case_of(step, config=config))


def test_drawn_cases_are_coherent_and_no_rank_is_idle_alone() -> None:
    several = [case for case in drawn(CAN) if case.config.dp_size > 1]
    assert len(several) > 60
    for case in several:
        validate(case)
        assert unsupported_case(CAN, case) is None
        assert all(any(rank_sizes(case.config, step)) for step in case.steps)


def test_other_ranks_are_idle_larger_alike_and_change_from_step_to_step() -> None:
    steps = [
        (case.config, before, here)
        for case in drawn(CAN)
        if case.config.dp_size > 1
        for before, here in zip((None, *case.steps), case.steps, strict=False)
    ]
    ranks = [(len(here.rows), rank_sizes(config, here)) for config, _, here in steps]
    assert sum(own > 0 and sum(rows) == own for own, rows in ranks) > 15
    assert sum(own == 0 < max(rows) for own, rows in ranks) > 5
    assert sum(max(rows) > own for own, rows in ranks) > 100
    assert sum(len({*rows}) == 1 for _, rows in ranks) > 30
    assert sum(max(rank_sizes(c, step)) in c.capture_bs for c, _, step in steps) > 50
    assert sum(max(rank_sizes(c, step)) - 1 in c.capture_bs for c, _, step in steps) > 20
    kept = [(b, h) for _, b, h in steps if b is not None and b.rows == h.rows != ()]
    assert sum(before.other_ranks != here.other_ranks for before, here in kept) > 3


def test_ranks_with_prompts_are_counted_by_tokens() -> None:
    config = EngineConfig(
        modes=("prefill",), capture_bs=(), capture_tokens=(4, 8), dp_size=3, dp_rank=1
    )
    prompt = BatchRow(request=0, seq_len=3, new_tokens=3)
    step = ReplayStep(mode="prefill", rows=(prompt,), other_ranks=(6, 0))
    assert rank_sizes(config, step) == (6, 3, 0)
    assert padded_size(config, step) == 8
    assert padded_size(config, ReplayStep(mode="idle", other_ranks=(2, 4))) == 4


def test_drawn_prompts_of_other_ranks_lie_around_captured_counts() -> None:
    several = [case for case in drawn(PROMPTS) if case.config.dp_size > 1]
    assert len(several) > 60
    sizes = [
        (case.config.capture_tokens, max(rank_sizes(case.config, step)))
        for case in several
        for step in case.steps
    ]
    assert all(validate(case) for case in several)
    assert sum(most in ladder for ladder, most in sizes) > 50
    assert sum(most - 1 in ladder for ladder, most in sizes) > 20


def test_a_tenth_of_the_verifies_beside_other_ranks_has_drafts_that_ranks_cannot_share() -> None:
    found = drawn(CAN.replace(modes=("target_verify", "idle"), max_tp_size=4), 300)
    beside = [case.config for case in found if case.config.dp_size > 1]
    apart = [config for config in beside if config.draft_tokens % config.attn_tp_size]
    assert 10 * len(apart) > len(beside) > 0


def test_a_fifth_of_the_prompts_beside_other_ranks_has_a_graph_that_ranks_cannot_share() -> None:
    found = drawn(PROMPTS.replace(max_tp_size=4), 300)
    beside = [case.config for case in found if case.config.dp_size > 1]
    apart = [c for c in beside if any(size % c.attn_tp_size for size in c.capture_tokens[:-1])]
    assert 5 * len(apart) > len(beside) > 0


def test_a_target_without_other_ranks_gets_none() -> None:
    alone = drawn(CAN.replace(max_dp_size=1, idle_alone=True), 100)
    assert all(case.config.dp_size == 1 for case in alone)
    assert not any(step.other_ranks for case in alone for step in case.steps)


def test_an_idle_step_alone_is_not_driven_where_a_server_has_none() -> None:
    said = "steps[0] without rows on any rank is not driven"
    assert unsupported_case(CAN, case_of(decode(0))) == said
    assert unsupported_case(CAN, case_of(decode(0, 0, 1))) is None


def test_fewer_ranks_keep_the_rows_of_the_first_ones() -> None:
    case = case_of(decode(1, 4, 2))
    assert with_config(case, dp_size=2).steps[0].other_ranks == (4,)
    assert with_config(case, dp_size=1, dp_rank=0).steps[0].other_ranks == ()


def test_what_needs_a_larger_rank_shrinks_to_two_ranks_and_one_row() -> None:
    def largest_elsewhere(case: Case) -> bool:
        return any(max(rank_sizes(case.config, step)) > len(step.rows) > 0 for step in case.steps)

    small = minimise(case_of(decode(2), decode(1, 4, 2)), largest_elsewhere)
    assert (small.config.dp_size, small.config.dp_rank) == (2, 0)
    assert [(len(step.rows), step.other_ranks) for step in small.steps] == [(1, (2,))]


def test_what_needs_no_other_rank_shrinks_to_one() -> None:
    small = minimise(case_of(decode(1, 4, 2)), lambda case: len(case.steps) > 0)
    assert small.config.dp_size == 1 and not small.steps[0].other_ranks


def test_a_table_of_the_case_shows_the_other_ranks() -> None:
    header, line = case_table(case_of(decode(1, 4, 0)))
    assert line.split() == ["0", "decode", "graph", "1/4", "0:3", "other", "ranks", "4,0"]
    assert header.split()[:3] == ["step", "mode", "via"]


def test_decodes_beside_prompts_are_drawn_where_a_target_has_them() -> None:
    can = Capabilities(
        max_dp_size=8, recurrent_state=True, idle_alone=False, prefilling_ranks=True,
        even_ranks=True, dtypes=("float32", "float16"), modes=("decode", "idle"),
    )  # fmt: skip
    found = drawn(can)
    steps = [(case.config, step) for case in found for step in case.steps if step.others_prefill]
    assert len(steps) > 20
    assert any(step.mode == "idle" for _, step in steps)
    assert any(0 in step.other_ranks and step.rows for _, step in steps)
    assert any(config.even_ranks for config, _ in steps)
    assert not any(config.even_ranks and config.dtype == "float32" for config, _ in steps)
