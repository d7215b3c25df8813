"""AITER's backend of released sglang with a layer behind a sliding window."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import found, step
from tests.targets.sglang.released import Workers

TARGET, VERIFIES, NEWEST = "sglang-aiter-window", "sglang-aiter-window-verify", "0.5.23"
MUTANTS = "tests.targets.sglang.aiter_window_mutants"
# A window of 4 tokens, the query's own included; pages of 16. The first request's first page leaves
# the window with its token 21, and the third request may get it at once.
LEAVING = (
    step((0, 19), (1, 5)),
    step((0, 20), (1, 6)),
    step((0, 21), (1, 7), (2, 3)),
    step((0, 22), (2, 4), finish=(1,)),
)
# Others take the slots of those that left, and rows change places.
TAKEN_OVER = (step((0, 9), (1, 7)), step((2, 9), (3, 12), finish=(0, 1)), step((3, 13), (2, 10)))


BESIDE_ANOTHER_RANK = ReplayStep(mode="idle", other_ranks=(1,))


def windowed(*steps: ReplayStep, **settings: Any) -> Case:
    given = {"capture_bs": (1, 4), "max_context_len": 32, "page_size": 16, "swa_window": 3}
    config = EngineConfig(**{**given, "page_map": "page_table", **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


def verified(*rows: tuple[int, int], **settings: Any) -> Case:
    """One verify of rows of these lengths, the drafts included."""
    given = {"modes": ("target_verify",), "draft_tokens": 4, **settings}
    return windowed(step(*rows, new=given["draft_tokens"], mode="target_verify"), **given)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.10", "0.5.13", NEWEST])
def test_decodes_see_one_key_too_few(workers: Workers, version: str) -> None:
    """Open in 0.5.23; see reports/findings/sglang-aiter-decode-window.md."""
    beyond = windowed(step((0, 4)), page_size=1, capture_bs=(1,))
    assert found(workers, version, beyond, TARGET) == {
        ("computes", "swa_attention"),
        ("metadata", "unified_attention"),
    }
    within = windowed(step((0, 3)), page_size=1, capture_bs=(1,))
    assert found(workers, version, within, TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", NEWEST])
def test_drafts_see_one_key_too_few_as_well(workers: Workers, version: str) -> None:
    beyond = verified((0, 9), (1, 21), capture_bs=(2,))
    assert ("computes", "swa_attention") in found(workers, version, beyond, VERIFIES)
    assert found(workers, version, beyond, f"{MUTANTS}:mended_verify") == set()
    padded = verified((0, 9), capture_bs=(2,))
    assert found(workers, version, padded, f"{MUTANTS}:mended_verify") == set()
    within = verified((0, 3), page_size=1, draft_tokens=3)
    assert found(workers, version, within, VERIFIES) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_table_of_a_verify_that_names_the_other_pool_is_found(workers: Workers) -> None:
    seen = found(workers, NEWEST, verified((0, 9), (1, 7)), f"{MUTANTS}:untranslated_verify")
    assert ("metadata", "swa_page_table") in seen


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", NEWEST])
@pytest.mark.parametrize(
    "case",
    [
        windowed(*LEAVING),
        windowed(*TAKEN_OVER, page_size=1),
        windowed(BESIDE_ANOTHER_RANK, page_size=1, capture_bs=(1,), dp_size=2),
    ],
    ids=["leaving", "taken over", "idle"],
)
def test_with_the_window_mended_both_layers_attend_to_their_own_pages(
    workers: Workers, version: str, case: Case
) -> None:
    assert found(workers, version, case, f"{MUTANTS}:mended") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("window_of_all_keys", ("computes", "swa_attention")),
        ("one_pool", ("writes", "k_buffer[0]")),
        ("untranslated_table", ("metadata", "swa_page_table")),
        ("first_table", ("metadata", "swa_page_table")),
    ],
)
def test_a_planted_bug_of_the_windows_pool_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    case = windowed(*TAKEN_OVER, page_size=1)
    assert named in found(workers, NEWEST, case, f"{MUTANTS}:{planted}")


def test_a_config_without_a_window_is_the_other_targets() -> None:
    config = EngineConfig(page_map="page_table")
    assert "swa_window must be positive" in str(open_target(TARGET).unsupported(config))
    assert open_target("sglang-aiter").unsupported(config) is None
