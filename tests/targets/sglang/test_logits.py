"""Logits and hidden states of released sglang's own head, behind decodes and verifies."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, Mode, validate
from fuzzgraph.errors import InvalidCase
from tests.targets.sglang.released import Workers, decode_case
from tests.targets.sglang.test_data_ranks import step

NEWEST = "0.5.23"
VERSIONS = ("0.5.13", "0.5.19", NEWEST)
DECODES, VERIFIES = "sglang-logits", "sglang-logits-verify"
MUTANTS = "tests.targets.sglang.logits_mutants:"
LENGTHS = ((5, 9, 3), (4,), (6, 2))


def alone(mode: Mode = "decode", **settings: Any) -> Case:
    """A full graph, then one with padded rows."""
    drafts = {"draft_tokens": 2} if mode == "target_verify" else {}
    return decode_case(*LENGTHS, mode=mode, **{"num_q_heads": 2, **drafts, **settings})


def beside_ranks(mode: Mode = "decode", **settings: Any) -> Case:
    """A rank beside busier ones and idle ones, in graphs and above them."""
    tokens = 2 if mode == "target_verify" else 1
    given = {
        "modes": (mode,), "capture_bs": (1, 2, 4), "max_context_len": 32, "num_q_heads": 2,
        "dp_size": 4, "dp_rank": 2, "draft_tokens": tokens, "gathered_logits": True, **settings,
    }  # fmt: skip
    steps = (
        step(mode, 1, tokens, 5, 4, 0, 1),
        step(mode, 2, tokens, 6 + tokens),
        step(mode, 1, tokens, 8 + 2 * tokens, 8, 0, 0),
        step(mode, 1, tokens, 9 + 3 * tokens, 0, 0, 0),
    )
    return validate(Case(schema_version=1, config=EngineConfig(**given), steps=steps))


def found(workers: Workers, version: str, of: Case, target: str) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding."""
    return {(one.clause, one.buffer) for one in workers.findings(version, of, target)}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "settings",
    [
        {"returned_hidden": "full", "dtype": "float16"},
        {"final_logit_cap": 2},
        {"final_logit_cap": 2, "dtype": "float16"},
    ],
)
def test_a_decode_has_the_logits_of_its_rows(
    workers: Workers, version: str, settings: dict[str, Any]
) -> None:
    assert found(workers, version, alone(**settings), DECODES) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kept", ["none", "aux"])
def test_a_verify_has_the_logits_and_hidden_states_of_its_drafts(
    workers: Workers, version: str, kept: str
) -> None:
    of = alone("target_verify", returned_hidden=kept)
    assert found(workers, version, of, VERIFIES) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", NEWEST])
def test_a_server_may_return_hidden_states_of_last_tokens(workers: Workers, version: str) -> None:
    assert found(workers, version, alone(returned_hidden="last"), DECODES) == set()


@pytest.mark.sglang
def test_a_release_that_returns_those_of_all_tokens_alone_says_so(workers: Workers) -> None:
    of = alone(returned_hidden="last")
    assert "only none, full" in workers.skipped("0.5.13", of, DECODES)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("gathered", [True, False])
def test_a_rank_has_the_logits_of_its_own_rows(
    workers: Workers, version: str, gathered: bool
) -> None:
    of = beside_ranks(gathered_logits=gathered, final_logit_cap=2)
    assert found(workers, version, of, DECODES) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_an_idle_rank_computes_its_part_of_the_logits_of_the_others(workers: Workers) -> None:
    config = beside_ranks().config
    steps = (step("decode", 0, 1, 0, 0, 3, 1), step("decode", 0, 1, 0, 8, 0, 1))
    of = validate(Case(schema_version=1, config=config, steps=steps))
    assert found(workers, NEWEST, of, DECODES) == set()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"returned_hidden": "aux"}, "needs modes=['target_verify']"),
        ({"gathered_logits": True}, "needs 2 or more data-parallel ranks"),
        ({"gathered_logits": True, "dp_size": 3}, "a divisor of 64"),
    ],
)
def test_configs_that_no_server_has_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCase, match=said.replace("[", "\\[")):
        alone(**settings)


FULL = alone(returned_hidden="full")
CAPPED = alone(final_logit_cap=2)
HALF = alone(final_logit_cap=2, dtype="float16")
CHAINS = alone("target_verify")
SEVERAL = alone("target_verify", returned_hidden="aux")
RANKS = beside_ranks()
COMPUTES = ("computes", "logits")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("last_columns_of_the_vocabulary", FULL, COMPUTES),
        ("padding_not_cut", FULL, COMPUTES),
        ("logits_not_copied", FULL, COMPUTES),
        ("cap_of_float32_forgotten", CAPPED, COMPUTES),
        ("cap_of_a_cast_forgotten", HALF, COMPUTES),
        ("capped_twice", HALF, COMPUTES),
        ("hidden_states_not_asked_for", FULL, ("computes", "returned_hidden")),
        ("layers_in_another_order", SEVERAL, ("computes", "returned_hidden")),
        ("last_layer_alone", SEVERAL, ("computes", "returned_hidden")),
        ("a_logit_for_each_row", CHAINS, COMPUTES),
        ("hidden_states_of_padded_rows", CHAINS, ("computes", "returned_hidden")),
        ("last_rows_of_a_graph", FULL, COMPUTES),
        ("starts_behind_its_own_tokens", RANKS, COMPUTES),
        ("as_many_tokens_as_the_first_rank", RANKS, ("reads", "src_ptr")),
        ("logits_of_the_first_rank", RANKS, COMPUTES),
        ("parts_of_the_vocabulary_one_rank_on", RANKS, COMPUTES),
        ("cut_by_rows_beside_ranks", beside_ranks("target_verify"), COMPUTES),
    ],
)
def test_a_planted_bug_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, MUTANTS + planted)


@pytest.mark.sglang
@pytest.mark.slow
def test_a_planted_bug_of_the_runner_before_is_found(workers: Workers) -> None:
    planted = MUTANTS + "a_logit_for_each_row_in_old_runners"
    assert COMPUTES in found(workers, "0.5.13", CHAINS, planted)
