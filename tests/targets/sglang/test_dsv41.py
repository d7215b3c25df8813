"""DeepSeek V4.1 of released sglang: layers with a key of each token or of each two."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from msgspec.structs import replace

from fuzzgraph.case import Case, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_dsv4 import paged_case
from tests.targets.sglang.test_dsv4_verify import verified

_LONG = ((264, 400), (265,), (300, 402))


def decoded(kind: str, **settings: Any) -> Case:
    return paged_case(kind, _LONG, **settings)


@pytest.mark.sglang
@pytest.mark.parametrize("kind", ["c1", "c2"])
@pytest.mark.parametrize("index_topk", [0, 64])
def test_a_layer_attends_to_its_window_and_the_best_of_its_keys(
    workers: Workers, kind: str, index_topk: int
) -> None:
    case = decoded(kind, index_topk=index_topk)
    assert workers.findings("0.5.23", case, "sglang-dsv41") == ()


@pytest.mark.sglang
@pytest.mark.parametrize("kind", ["c1", "c2"])
@pytest.mark.parametrize("index_topk", [0, 64])
def test_drafts_attend_to_their_windows_and_the_best_of_their_keys(
    workers: Workers, kind: str, index_topk: int
) -> None:
    case = verified(kind, index_topk=index_topk)
    assert workers.findings("0.5.23", case, "sglang-dsv41-verify") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22"])
@pytest.mark.parametrize("kind", ["c1", "c2"])
def test_layers_of_every_release_attend_to_the_best_of_their_keys(
    workers: Workers, version: str, kind: str
) -> None:
    assert workers.findings(version, decoded(kind, index_topk=64), "sglang-dsv41") == ()
    assert workers.findings(version, verified(kind, index_topk=64), "sglang-dsv41-verify") == ()


def test_a_layer_whose_keys_do_not_tell_tokens_apart_is_not_driven() -> None:
    config = replace(paged_case("c1").config, head_dim=2, v_head_dim=2, num_q_heads=4)
    assert "two tokens have one key" in str(open_target("sglang-dsv41").unsupported(config))


def test_rows_of_one_token_and_layers_of_deepseek_v4_are_not_driven() -> None:
    assert open_target("sglang-dsv41").capabilities.min_seq_len == 2
    config = paged_case("c4").config
    assert "kv_compression" in str(open_target("sglang-dsv41").unsupported(config))


_MUTANTS = "tests.targets.sglang.low_ratio_mutants"


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "kind", "found"),
    [
        ("lengths_of_the_step_before", "c1", "attention"),
        ("lengths_of_the_step_before", "c2", "attention"),
        ("index_lengths_of_the_other_ratio", "c2", "attention"),
        ("another_ratio_in_the_pages", "c2", "attention"),
        ("slots_of_the_next_block", "c1", "attention"),
        ("slots_of_the_next_block", "c2", "attention"),
        ("index_keys_by_slots_of_tokens", "c2", "compressor_strays"),
        ("keys_of_the_padding", "c1", "attention"),
        ("requests_of_other_rows", "c2", "attention"),
    ],
)
def test_a_decode_with_one_line_changed_is_found(
    workers: Workers, mutant: str, kind: str, found: str
) -> None:
    case = decoded(kind, index_topk=64)
    findings = workers.findings("0.5.23", case, f"{_MUTANTS}:{mutant}")
    assert found in {each.buffer for each in findings if each.oracle == "reference"}


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "kind", "found"),
    [
        ("lengths_of_the_first_drafts", "c1", "attention"),
        ("pages_of_the_first_rows", "c1", "attention"),
        ("pages_of_the_first_rows", "c2", "attention"),
        ("requests_in_another_order", "c2", "compressor_states"),
        ("drafts_of_the_ring", "c2", "attention"),
    ],
)
def test_a_verify_with_one_line_changed_is_found(
    workers: Workers, mutant: str, kind: str, found: str
) -> None:
    case = verified(kind, index_topk=64)
    findings = workers.findings("0.5.23", case, f"{_MUTANTS}:{mutant}")
    assert found in {each.buffer for each in findings if each.oracle == "reference"}


@pytest.mark.sglang
@pytest.mark.parametrize("kind", ["c1", "c2"])
def test_lengths_of_drafts_that_do_not_come_by_requests_end_a_capture(
    workers: Workers, kind: str
) -> None:
    mutant = f"{_MUTANTS}:lengths_without_a_dimension"
    (finding,) = workers.findings("0.5.23", verified(kind), mutant)
    assert finding.oracle == "survival"
    assert "1 query rows do not group by 4" in finding.message


# ---- several graphs of a size, and layers that read those before

_SHORT_AND_LONG = ((45, 33), (100, 264), (30,), (264, 400), (120,), (60, 2), (300, 402))
"""Requests for which each graph of a size is replayed, in turn."""
_DRAFTED = ((40, 45), (49, 300), (53, 304), (125,), (130,))


def candidates(kind: str, layer: str, **settings: Any) -> Case:
    settings = {"candidate_blocks": 16, "index_topk": 64, **settings}
    return paged_case(kind, _SHORT_AND_LONG, index_layer=layer, **settings)


def drafted_candidates(kind: str, layer: str, **settings: Any) -> Case:
    settings = {"candidate_blocks": 16, "index_topk": 64, **settings}
    return verified(kind, _DRAFTED, index_layer=layer, **settings)


_LAYERS = ("own", "source", "candidates", "shared")


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("layer", "kind"), [("source", "c2"), ("candidates", "c1"), ("candidates", "c2"), ("own", "c1")]
)
def test_each_graph_of_a_size_selects_the_best_keys_of_its_requests(
    workers: Workers, layer: str, kind: str
) -> None:
    assert workers.findings("0.5.23", candidates(kind, layer), "sglang-dsv41") == ()


@pytest.mark.sglang
@pytest.mark.parametrize(("layer", "kind"), [("candidates", "c1"), ("shared", "c2")])
def test_each_graph_of_a_size_verifies_drafts_over_the_best_keys(
    workers: Workers, layer: str, kind: str
) -> None:
    case = drafted_candidates(kind, layer)
    assert workers.findings("0.5.23", case, "sglang-dsv41-verify") == ()


@pytest.mark.sglang
def test_a_layer_attends_to_keys_and_selection_of_the_one_before_it(workers: Workers) -> None:
    case = decoded("c1", index_topk=64, index_layer="shared")
    assert workers.findings("0.5.23", case, "sglang-dsv41") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", "0.5.23"])
@pytest.mark.parametrize("kind", ["c1", "c2"])
@pytest.mark.parametrize("layer", _LAYERS)
def test_layers_of_every_release_leave_and_take_candidates(
    workers: Workers, version: str, kind: str, layer: str
) -> None:
    decodes, verifies = candidates(kind, layer), drafted_candidates(kind, layer)
    assert workers.findings(version, decodes, "sglang-dsv41") == ()
    assert workers.findings(version, verifies, "sglang-dsv41-verify") == ()


def test_candidates_are_not_driven_beyond_what_bfloat16_tells_apart() -> None:
    config = replace(candidates("c1", "candidates").config, max_context_len=513)
    said = str(open_target("sglang-dsv41").unsupported(config))
    assert said == "max_context_len=513: scores in bfloat16 tell fewer apart"


def test_candidates_are_not_driven_without_a_plan() -> None:
    config = candidates("c1", "source", topk_kernel="unplanned").config
    assert "selects by a plan" in str(open_target("sglang-dsv41").unsupported(config))


_OUTPUTS = ("reference", "eager")
_CANDIDATE_MUTANTS = "tests.targets.sglang.candidate_mutants"


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "kind", "layer"),
    [
        ("one_graph_for_all", "c1", "own"),
        ("every_key_up_to_twice_the_limit", "c1", "own"),
        ("pages_of_the_other_ratio", "c2", "own"),
        ("one_block_too_few", "c1", "candidates"),
        ("blocks_by_the_length_before", "c1", "candidates"),
        ("newest_block_as_any_other", "c1", "candidates"),
        ("slots_of_blocks_for_their_numbers", "c2", "candidates"),
    ],
)
def test_a_change_of_one_line_shows_in_what_a_graph_of_several_attends_to(
    workers: Workers, mutant: str, kind: str, layer: str
) -> None:
    findings = workers.findings("0.5.23", candidates(kind, layer), f"{_CANDIDATE_MUTANTS}:{mutant}")
    assert "attention" in {each.buffer for each in findings if each.oracle in _OUTPUTS}


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "layer"),
    [
        ("drafts_left_out_of_the_limit", "candidates"),
        ("blocks_of_the_first_rows", "candidates"),
    ],
)
def test_a_change_of_one_line_shows_in_what_drafts_of_several_graphs_attend_to(
    workers: Workers, mutant: str, layer: str
) -> None:
    case = drafted_candidates("c1", layer)
    findings = workers.findings("0.5.23", case, f"{_CANDIDATE_MUTANTS}:{mutant}")
    assert "attention" in {each.buffer for each in findings if each.oracle in _OUTPUTS}


@pytest.mark.sglang
def test_a_second_graph_of_a_size_reads_the_metadata_that_the_first_has_left(
    workers: Workers,
) -> None:
    mutant = f"{_CANDIDATE_MUTANTS}:lengths_on_the_host_for_those_on_the_device"
    (finding,) = workers.findings("0.5.23", drafted_candidates("c1", "own"), mutant)
    assert (finding.oracle, finding.stage) == ("survival", "capture")


@pytest.mark.sglang
def test_a_graph_over_metadata_that_its_size_has_left_behind_reads_another_address(
    workers: Workers,
) -> None:
    mutant = f"{_CANDIDATE_MUTANTS}:capture_of_the_newest_metadata"
    (finding,) = workers.findings("0.5.23", candidates("c1", "own"), mutant)
    assert finding.oracle == "handover"
    assert "lies at another address than the tensor that the graph was captured with" in (
        finding.message
    )


@pytest.mark.sglang
def test_rows_of_several_requests_that_are_scored_as_one_are_a_misuse(workers: Workers) -> None:
    mutant = f"{_CANDIDATE_MUTANTS}:one_request_for_all_rows"
    findings = workers.findings("0.5.23", candidates("c1", "candidates"), mutant)
    assert any("rows of one request that follow" in each.message for each in findings)


# ---- data-parallel ranks


def beside_a_larger_rank(kind: str, via: Literal["graph", "eager"]) -> Case:
    """A verify of one row on a rank beside one with two, and then one without any."""
    case = drafted_candidates(kind, "own", dp_size=2, candidate_blocks=0)
    rows = tuple(replace(row, seq_len=40) for row in case.steps[0].rows[:1])
    steps = (
        ReplayStep(mode="target_verify", rows=rows, via=via, other_ranks=(2,)),
        ReplayStep(mode="idle", finish=(0,), other_ranks=(1,)),
    )
    return validate(replace(case, steps=steps))


@pytest.mark.sglang
@pytest.mark.parametrize("via", ["graph", "eager"])
def test_a_rank_verifies_beside_a_larger_one_and_without_requests(
    workers: Workers, via: Literal["graph", "eager"]
) -> None:
    case = beside_a_larger_rank("c1", via)
    assert workers.findings("0.5.23", case, "sglang-dsv41-verify") == ()


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", "0.5.23"])
def test_a_rank_without_requests_that_takes_no_graph_makes_no_metadata(
    workers: Workers, version: str
) -> None:
    case = beside_a_larger_rank("c1", "graph")
    idle = ReplayStep(mode="idle", finish=(0,), other_ranks=(3,))
    case = validate(replace(case, steps=(case.steps[0], idle)))
    assert workers.findings(version, case, "sglang-dsv41-verify") == ()


@pytest.mark.sglang
def test_a_verify_that_is_not_planned_again_for_other_ranks_is_refused(workers: Workers) -> None:
    mutant = f"{_CANDIDATE_MUTANTS}:planned_before_it_is_padded"
    (finding,) = workers.findings("0.5.23", beside_a_larger_rank("c1", "eager"), mutant)
    assert finding.oracle == "survival"
    assert "out_loc must be [8]; got [4]" in finding.message
