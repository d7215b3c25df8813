"""Selection of keys by a plan, on released sglang: condemned where wrong, acquitted where right."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, Mode
from tests.targets.sglang.released import Workers, decode_case

pytestmark = pytest.mark.sglang

_WRONG = "tests.targets.sglang.planned_topk_mutants"
_TARGETS: dict[Mode, str] = {"decode": "sglang-nsa", "target_verify": "sglang-nsa-verify"}


def _sparse_case(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Rows with more keys than are selected, over several pages."""
    return decode_case(
        *batches, page_size=64, attention="mla", v_head_dim=2, max_context_len=200,
        **{"index_topk": 3, **settings},
    )  # fmt: skip


def _oracles(workers: Workers, version: str, case: Case, target: str) -> set[str]:
    return {found.oracle for found in workers.findings(version, case, target)}


@pytest.mark.parametrize("topk_kernel", ["planned", "unplanned"])
@pytest.mark.parametrize("mode", ["decode", "target_verify"])
def test_either_selection_of_the_newest_release_is_right(
    workers: Workers, mode: Mode, topk_kernel: str
) -> None:
    case = _sparse_case((5, 66, 130), (131, 7), mode=mode, topk_kernel=topk_kernel)
    assert workers.findings("0.5.23", case, _TARGETS[mode]) == ()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["decode", "target_verify"])
@pytest.mark.parametrize("version", ["0.5.15", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21"])
def test_the_planned_selection_of_any_release_is_right(
    workers: Workers, version: str, mode: Mode
) -> None:
    case = _sparse_case((5, 66, 130), (131, 7), mode=mode)
    assert workers.findings(version, case, _TARGETS[mode]) == ()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.9", "0.5.14"])
def test_a_release_without_a_plan_selects_as_it_did(workers: Workers, version: str) -> None:
    assert workers.findings(version, _sparse_case((5, 66, 130), (131, 7)), "sglang-nsa") == ()


@pytest.mark.parametrize("version", ["0.5.15", "0.5.23"])
@pytest.mark.parametrize("mutant", ["plan_of_the_capture", "plan_without_the_last_row"])
def test_a_plan_that_leaves_rows_out_shows_in_outputs(
    workers: Workers, version: str, mutant: str
) -> None:
    case = _sparse_case((66, 130), (131, 7))
    found = workers.findings(version, case, f"{_WRONG}:{mutant}")
    assert "reference" in {each.oracle for each in found}
    assert "metadata must be planned for these lengths" in " ".join(f.message for f in found)


def test_a_plan_that_leaves_a_draft_out_shows_in_outputs(workers: Workers) -> None:
    case = _sparse_case((66, 130), (131, 70), mode="target_verify")
    target = f"{_WRONG}:verify_with_the_plan_of_the_capture"
    assert "reference" in _oracles(workers, "0.5.23", case, target)


def test_a_plan_of_the_batch_before_is_found_though_it_lists_every_row(workers: Workers) -> None:
    case = _sparse_case((66, 130), (131, 180), capture_bs=(2,))
    (first, *_) = workers.findings("0.5.23", case, f"{_WRONG}:plan_of_the_batch_before")
    assert (first.oracle, first.buffer) == ("contract", "metadata")


@pytest.mark.parametrize(
    "mutant", ["pages_of_another_size", "tables_of_other_rows", "lengths_of_the_table"]
)
def test_keys_that_are_selected_by_wrong_metadata_show_in_outputs(
    workers: Workers, mutant: str
) -> None:
    case = _sparse_case((66, 130), (131, 180), capture_bs=(2,))
    assert "reference" in _oracles(workers, "0.5.23", case, f"{_WRONG}:{mutant}")


@pytest.mark.parametrize(
    ("mutant", "method"),
    [
        ("packed_selection_everywhere", "transform_packed"),
        ("misspelt_export", "transform_pooled_ragged"),
    ],
)
def test_an_export_that_no_source_has_on_the_platform_is_no_build(
    workers: Workers, mutant: str, method: str
) -> None:
    case = _sparse_case((66, 130), capture_bs=(2,))
    findings = workers.findings("0.5.23", case, f"{_WRONG}:{mutant}")
    assert any(f"TopKKernel has no {method} on this platform" in one.message for one in findings)


def test_mutants_of_the_plan_are_healthy_where_nothing_follows_it(workers: Workers) -> None:
    case = _sparse_case((66, 130), (131, 7), topk_kernel="unplanned")
    assert workers.findings("0.5.23", case, f"{_WRONG}:plan_of_the_capture") == ()
