"""DSV4's verify of released sglang: outputs, what stays in the compressor, the late upgrade."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers

_TARGET = "sglang-dsv4-verify"
_MUTANTS = "tests.targets.sglang.compressed_verify_mutants"
_STEPS = ((262, 402), (263, 403), (267,))
"""One token stays of each row, then all; drafts end groups, and one row is padded in the end."""


def verified(kind: str = "c4", batches: Any = _STEPS, drafts: int = 4, **settings: Any) -> Case:
    """Steps of requests with these lengths, drafts included: what a length grows by has stayed."""
    steps = tuple(
        ReplayStep(
            mode="target_verify",
            rows=tuple(
                BatchRow(request=row, seq_len=length, new_tokens=drafts)
                for row, length in enumerate(lengths)
            ),
            finish=tuple(range(len(lengths), len(before))),
        )
        for before, lengths in zip(((), *batches), batches, strict=False)
    )
    config = EngineConfig(
        **{
            "modes": ("target_verify",), "page_size": 256, "max_context_len": 512,
            "capture_bs": (2,), "req_pool_size": 3, "kv_pool_pages": 16, "attention": "mla",
            "head_dim": 8, "v_head_dim": 8, "num_q_heads": 2, "kv_compression": kind,
            "draft_tokens": drafts, **settings,
        }
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.sglang
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_drafts_of_the_newest_release_see_their_window_and_compressed_keys(
    workers: Workers, kind: str
) -> None:
    assert workers.findings("0.5.23", verified(kind, row_mixing="nan"), _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.14", "0.5.16", "0.5.18", "0.5.20"])
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_drafts_of_every_release_see_their_window_and_compressed_keys(
    workers: Workers, version: str, kind: str
) -> None:
    assert workers.findings(version, verified(kind), _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_drafts_are_right_in_0_5_12_where_no_row_is_padded(workers: Workers, kind: str) -> None:
    assert workers.findings("0.5.12", verified(kind, ((262, 400), (263, 403))), _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.parametrize("topk_kernel", ["planned", "unplanned"])
def test_an_indexer_selects_the_best_keys_of_several_compressed_pages_for_each_draft(
    workers: Workers, topk_kernel: str
) -> None:
    case = verified(
        batches=((1027, 514), (1028, 515), (1032,)), index_topk=64, topk_kernel=topk_kernel,
        max_context_len=1300, kv_pool_pages=24,
    )  # fmt: skip
    assert workers.findings("0.5.23", case, _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("version", "drafts", "found"),
    [("0.5.13", 4, False), ("0.5.13", 5, True), ("0.5.23", 5, False), ("0.5.23", 8, False)],
)
@pytest.mark.parametrize(("kind", "past"), [("c4", 259), ("c128", 254)])
def test_states_of_more_than_four_drafts_stay_from_0_5_18_on(
    workers: Workers, kind: str, past: int, version: str, drafts: int, found: bool
) -> None:
    case = verified(kind, ((past + drafts,), (past + drafts + 1,)), drafts)
    buffers = {each.buffer for each in workers.findings(version, case, _TARGET)}
    assert ("compressor_states" in buffers) if found else not buffers


@pytest.mark.sglang
@pytest.mark.slow
def test_padded_rows_that_name_a_live_request_write_over_its_states(workers: Workers) -> None:
    case = verified(batches=((264, 400), (265,)))
    found = {(each.oracle, each.buffer) for each in workers.findings("0.5.12", case, _TARGET)}
    assert {("contract", "req_pool_indices"), ("reference", "compressor_strays")} <= found


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "oracle", "buffer"),
    [
        ("upgraded_before_the_capture", "reference", "attention"),
        ("metadata_of_the_graph_before", "reference", "attention"),
        ("slots_of_the_graph_before", "reference", "attention"),
        ("drafts_end_a_place_early", "contract", "seq_lens_casual"),
        ("windows_of_the_first_row", "contract", "page_table"),
        ("states_of_the_last_draft_alone", "reference", "compressor_states"),
        ("rings_as_without_drafts", "reference", "compressor_states"),
        ("plans_without_the_drafts", "noninterference", "backend.req_to_token"),
    ],
)
def test_a_verify_with_one_line_changed_is_found(
    workers: Workers, mutant: str, oracle: str, buffer: str
) -> None:
    found = workers.findings("0.5.23", verified(), f"{_MUTANTS}:{mutant}")
    assert (oracle, buffer) in {(each.oracle, each.buffer) for each in found}


@pytest.mark.sglang
def test_states_that_a_verify_does_not_keep_show_behind_it_alone(workers: Workers) -> None:
    mutant = f"{_MUTANTS}:states_of_the_last_draft_alone"
    found = workers.findings("0.5.23", verified("c128"), mutant)
    assert {each.buffer for each in found} == {"compressor_states"}


def test_drafts_with_branches_are_not_driven() -> None:
    config = verified(spec_topk=2, spec_steps=3).config
    assert "spec_topk" in str(open_target(_TARGET).unsupported(config))
