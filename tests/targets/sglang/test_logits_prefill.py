"""Logits, hidden states and logprobs of released sglang's own head, behind prefill graphs."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import Rows, prefill_case

NEWEST = "0.5.23"
BREAKABLE, FULL = "sglang-logits-prefill", "sglang-logits-full-prefill"
MUTANTS = "tests.targets.sglang.logits_prefill_mutants:"
PROMPTS: tuple[Rows, ...] = (((0, 0, 3), (1, 1, 4)), ((2, 2, 4), (4, 0, 2), (3, 0, 1)))
"""Of requests some of which ask for logprobs of all, some or none of their tokens."""
LATER: dict[str, dict[str, Any]] = {
    "hidden states": {"returned_hidden": "full", "dtype": "float16"},
    "of last tokens": {"returned_hidden": "last", "final_logit_cap": 2},
    "of several layers": {"returned_hidden": "aux"},
    "logprobs": {"prompt_logprobs": "whole", "final_logit_cap": 2, "dtype": "float16"},
    "logprobs in chunks": {"prompt_logprobs": "chunked", "returned_hidden": "last"},
}
FIRST = {name: LATER[name] for name in ("hidden states", "of several layers", "logprobs")}


def prompts(kind: str, **settings: Any) -> Case:
    slots = {"prefill_slots": 4} if kind == "full" else {}
    return prefill_case(kind, *PROMPTS, **{"num_q_heads": 2, **slots, **settings})


def found(workers: Workers, version: str, of: Case, target: str) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding."""
    return {(one.clause, one.buffer) for one in workers.findings(version, of, target)}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "settings"),
    [("0.5.12", FIRST), ("0.5.13", FIRST), ("0.5.19", LATER), (NEWEST, LATER)],
)
def test_a_prompt_has_the_logits_of_its_last_token(
    workers: Workers, version: str, settings: dict[str, dict[str, Any]]
) -> None:
    seen = {
        name: found(workers, version, prompts("breakable", **given), BREAKABLE)
        for name, given in settings.items()
    }
    assert seen == dict.fromkeys(settings, set())


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_a_full_graph_has_the_same_behind_it(workers: Workers, version: str) -> None:
    seen = {
        name: found(workers, version, prompts("full", **given), FULL)
        for name, given in LATER.items()
    }
    assert seen == dict.fromkeys(LATER, set())


ASKS = {"prompt_logprobs": "whole"}
IN_CHUNKS = {"prompt_logprobs": "chunked"}
OF_ALL, OF_LAYERS = {"returned_hidden": "full"}, {"returned_hidden": "aux"}


Planted = tuple[str, str, str, dict[str, Any], str]
"""Release, graphs, the changed line, what the config has, and the output that shows it."""
PLANTED: tuple[Planted, ...] = (
    (NEWEST, "breakable", "row_behind_the_last", {}, "logits"),
    (NEWEST, "breakable", "last_rows_by_lengths_of_one_row", {}, "logits"),
    (NEWEST, "breakable", "first_rows_of_layers", OF_LAYERS, "returned_hidden"),
    (NEWEST, "breakable", "sampled_rows_one_on", ASKS, "logits"),
    (NEWEST, "breakable", "logprobs_of_first_rows", ASKS, "prompt_logprobs"),
    (NEWEST, "breakable", "asked_rows_not_counted_on", ASKS, "prompt_logprobs"),
    (NEWEST, "breakable", "rows_of_a_chunk_backwards", IN_CHUNKS, "prompt_logprobs"),
    (NEWEST, "breakable", "samples_of_a_chunk_start", IN_CHUNKS, "logits"),
    (NEWEST, "breakable", "not_normalised", ASKS, "prompt_logprobs"),
    (NEWEST, "breakable", "top_values_not_split", IN_CHUNKS, "prompt_top_logprobs"),
    (NEWEST, "breakable", "logprobs_left_out", ASKS, "prompt_logprobs"),
    (NEWEST, "breakable", "wants_no_logprobs", ASKS, "prompt_logprobs"),
    (NEWEST, "breakable", "hidden_states_of_requests", OF_ALL, "returned_hidden"),
    (NEWEST, "breakable", "hidden_states_of_a_bucket", OF_ALL, "returned_hidden"),
    (NEWEST, "breakable", "hidden_states_not_asked_for", OF_ALL, "returned_hidden"),
    (NEWEST, "full", "logits_of_one_request", {}, "logits"),
    (NEWEST, "full", "runs_behind_the_static_batch", ASKS, "prompt_logprobs"),
    ("0.5.13", "breakable", "hidden_states_of_requests_in_old_runners", OF_ALL, "returned_hidden"),
    ("0.5.13", "breakable", "logits_of_one_request_in_old_runners", OF_ALL, "logits"),
)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: "-".join(planted[1:3]))
def test_one_changed_line_is_found_out(workers: Workers, planted: Planted) -> None:
    version, graphs, mutant, settings, output = planted
    seen = found(workers, version, prompts(graphs, **settings), f"{MUTANTS}{mutant}")
    assert output in {buffer for _, buffer in seen}, seen


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_older_releases_make_logprobs_of_prompts_without_a_graph(
    workers: Workers, version: str
) -> None:
    """A row that is cached too takes no graph either; what it is given is judged all the same."""
    asked = prompts("breakable", **ASKS, returned_hidden="full")
    assert found(workers, version, asked, BREAKABLE) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "graphs"),
    [("0.5.16", "breakable"), ("0.5.19", "breakable"), (NEWEST, "breakable"), (NEWEST, "full")],
)
@pytest.mark.parametrize("sizes", [(1, 2), (4,)], ids=["more rows", "fewer rows"])
def test_logits_lie_in_the_buffer_that_decodes_have_where_it_has_as_many_rows(
    workers: Workers, version: str, graphs: str, sizes: tuple[int, ...]
) -> None:
    """It has as many as the largest decode graph."""
    target = BREAKABLE if graphs == "breakable" else FULL
    for settings in ({}, {"prompt_logprobs": "whole"}):
        of = prompts(graphs, capture_bs=sizes, **settings)
        assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_more_logits_than_that_buffer_holds_are_found(workers: Workers) -> None:
    of = prompts("breakable", capture_bs=(1, 2))
    (one,) = workers.findings(NEWEST, of, f"{MUTANTS}shared_whatever_it_holds")
    assert one.clause == "survives" and "shared logits buffer holds 2 rows" in one.message
