"""Latent attention behind a window on released sglang: condemned where wrong, acquitted if not."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case, generated

DECODE, VERIFY = "sglang-dots", "sglang-dots-verify"
MUTANTS = "tests.targets.sglang.dots_mutants"
SINCE, NEWEST = "0.5.19", "0.5.23"
MODEL: dict[str, Any] = {
    "page_size": 64, "max_context_len": 200, "attention": "mla", "head_dim": 16, "v_head_dim": 12,
    "num_q_heads": 2, "swa_window": 9, "kv_pool_pages": 24,
}  # fmt: skip
DECODES = decode_case((66, 90), (150, 7), (129, 64), (3,), **MODEL)
"""Rows with several pages, of which the window sees one or two, and rows within it."""

SEVERAL = decode_case(
    (66, 90), (150, 7), (129, 64), **MODEL,
    layer_types=("sliding_attention", "full_attention", "full_attention"),
)  # fmt: skip


def verify_case(*batches: tuple[int, ...]) -> Case:
    """Steps with rows of these lengths, whose last four tokens are drafts."""
    config = EngineConfig(
        modes=("target_verify",), capture_bs=(1, 2, 4), spec_steps=3, draft_tokens=4, **MODEL
    )
    steps = tuple(
        ReplayStep(
            mode="target_verify",
            rows=tuple(
                BatchRow(request=10 * index + row, seq_len=length, new_tokens=4)
                for row, length in enumerate(lengths)
            ),
            finish=tuple(10 * (index - 1) + row for row in range(2)) if index else (),
        )
        for index, lengths in enumerate(batches)
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


VERIFIES = verify_case((66, 90), (150, 7), (129, 64))


@pytest.mark.sglang
def test_both_layers_of_a_decode_are_right(workers: Workers) -> None:
    assert workers.findings(NEWEST, DECODES, DECODE) == ()


@pytest.mark.sglang
def test_several_layers_of_a_kind_are_right(workers: Workers) -> None:
    assert workers.findings(NEWEST, SEVERAL, DECODE) == ()


@pytest.mark.sglang
def test_a_layer_that_is_stored_where_the_first_of_its_kind_lies_is_found(workers: Workers) -> None:
    found = workers.findings(NEWEST, SEVERAL, f"{MUTANTS}:stored_in_the_first_layer_of_a_kind")
    assert "reference" in {each.oracle for each in found}


@pytest.mark.sglang
def test_both_layers_of_a_verify_are_right(workers: Workers) -> None:
    assert workers.findings(NEWEST, VERIFIES, VERIFY) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", [SINCE, "0.5.20", "0.5.21", "0.5.22"])
@pytest.mark.parametrize(("case", "target"), [(DECODES, DECODE), (VERIFIES, VERIFY)])
def test_every_release_that_has_them_is_right(
    workers: Workers, version: str, case: Case, target: str
) -> None:
    assert workers.findings(version, case, target) == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("planted", "oracle"),
    [
        ("window_of_one_token_less", "reference"),
        ("pages_of_the_other_layer", "reference"),
        ("rows_of_the_other_layer", "reference"),
        ("lengths_of_the_first_row", "noninterference"),
        ("stored_by_slots_of_the_other_pool", "noninterference"),
        ("stored_in_the_first_layers_pool", "reference"),
        ("prepares_the_capture_alone", "contract"),
        ("gathers_the_first_request", "reference"),
        ("gathers_one_page", "reference"),
        ("first_key_of_the_window_is_masked", "reference"),
    ],
)
def test_a_bug_planted_in_decodes_is_found(workers: Workers, planted: str, oracle: str) -> None:
    found = workers.findings(NEWEST, DECODES, f"{MUTANTS}:{planted}")
    assert oracle in {each.oracle for each in found}


@pytest.mark.sglang
@pytest.mark.parametrize(
    "planted", ["later_drafts_are_seen", "drafts_count_as_the_past", "heads_before_tokens"]
)
def test_a_bug_planted_in_verifies_is_found(workers: Workers, planted: str) -> None:
    found = workers.findings(NEWEST, VERIFIES, f"{MUTANTS}:{planted}")
    assert "reference" in {each.oracle for each in found}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"swa_window": 0}, "swa_window must be positive"),
        ({"page_size": 16}, "page_size=16"),
        ({"attention": "mha"}, "mha"),
        ({"modes": ("target_verify",), "draft_tokens": 3}, "have 4 tokens"),
    ],
)
def test_other_models_are_refused(changed: dict[str, Any], why: str) -> None:
    config = EngineConfig(**{**MODEL, **changed})
    target = VERIFY if "modes" in changed else DECODE
    assert why in str(open_target(target).unsupported(config))


EXTEND = "sglang-dots-draft-extend"


def extends(*, ranks: bool = False) -> list[Case]:
    """Drawn for the target: draft-extends of a rank alone, or of one beside others."""

    def wanted(config: EngineConfig) -> bool:
        return (config.dp_size > 1) == ranks

    return generated(EXTEND, wanted, blocks=20, each=60, enough=8)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", [SINCE, NEWEST])
@pytest.mark.parametrize("ranks", [False, True])
def test_both_layers_of_a_draft_extend_are_right(
    workers: Workers, version: str, ranks: bool
) -> None:
    drawn = extends(ranks=ranks)
    assert drawn
    assert [workers.findings(version, case, EXTEND) for case in drawn] == [()] * len(drawn)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    [
        "extends_by_pages_of_the_other_layer",
        "extends_see_later_tokens",
        "extends_keep_the_window_of_the_capture",
    ],
)
def test_a_bug_planted_in_draft_extends_is_found(workers: Workers, planted: str) -> None:
    target = f"{MUTANTS}:{planted}"
    assert any(workers.findings(NEWEST, case, target) for case in extends())
