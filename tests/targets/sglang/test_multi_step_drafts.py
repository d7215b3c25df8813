"""EAGLE's drafts on AITER, and on FlashInfer with latent attention."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.strategies import CI
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import draft_case, seen

NEWEST = "0.5.23"
_MUTANTS = "tests.targets.sglang.multi_step_mutants:"
_AITER = "sglang-aiter-draft"
_FLASHINFER = "sglang-flashinfer-mla-draft"
_ROOM: dict[str, Any] = {"max_context_len": 64, "kv_pool_pages": 300, "req_pool_size": 16}
_LATENT: dict[str, Any] = {
    "attention": "mla", "num_q_heads": 16, "num_kv_heads": 1, "head_dim": 16, "v_head_dim": 8,
}  # fmt: skip
_TABLE: dict[str, Any] = {"page_map": "page_table", "draft_reach": "past", "page_size": 16}
_PAST: dict[str, Any] = {**_LATENT, "num_q_heads": 4, "draft_reach": "past"}
_BRANCHES: dict[str, Any] = {"spec_topk": 2, "draft_branches": "chosen", "draft_tokens": 4}

# A graph is full, then padded; rows end in other pages.
BATCHES = ((5, 6, 20, 4), (33, 3, 2), (2,))


def drafts(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Rows whose drafts attend at two steps."""
    return draft_case(*(batches or BATCHES), **{**_ROOM, "spec_steps": 2, **settings})


class TestAiter:
    pytestmark = [pytest.mark.sglang, pytest.mark.slow]

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.16", "0.5.19", NEWEST])
    @pytest.mark.parametrize(
        "settings",
        [{}, {"page_size": 16}, _LATENT, {**_LATENT, "num_q_heads": 32}, _BRANCHES],
        ids=["tokens", "pages", "latent", "planned latent", "branches"],
    )
    def test_steps_by_a_list_see_the_drafts_before_them(
        self, workers: Workers, version: str, settings: dict[str, Any]
    ) -> None:
        assert seen(workers, version, drafts(**settings), _AITER) == set()

    def test_steps_by_a_table_of_pages_see_the_past(self, workers: Workers) -> None:
        assert seen(workers, NEWEST, drafts(**_TABLE), _AITER) == set()

    def test_a_padded_row_reads_pages_of_a_batch_before(self, workers: Workers) -> None:
        """Open in 0.5.23; see reports/findings/sglang-aiter-draft-padded-pages.md."""
        found = seen(workers, NEWEST, drafts(**{**_TABLE, "page_size": 1}), _AITER)
        assert found == {("history", "step0_page_table"), ("history", "step1_page_table")}

    @pytest.mark.parametrize("topk", [2, 4])
    def test_the_workspace_has_room_for_two_branches_of_each_request_of_the_pool(
        self, workers: Workers, topk: int
    ) -> None:
        """Open in 0.5.23; see reports/findings/sglang-aiter-draft-branches.md."""
        case = drafts(**{**_BRANCHES, "spec_topk": topk, "req_pool_size": 4})
        found = seen(workers, NEWEST, case, _AITER)
        assert found == ({("survival", "")} if topk == 4 else set())

    @pytest.mark.parametrize("settings", [_LATENT, {**_TABLE, "page_size": 1}])
    def test_graphs_of_other_kernels_attend_for_one_branch_of_each_request(
        self, workers: Workers, settings: dict[str, Any]
    ) -> None:
        """The same page."""
        case = drafts(**settings, **_BRANCHES)
        assert seen(workers, NEWEST, case, f"{_MUTANTS}aiter_any_branches") == {("survival", "")}

    @pytest.mark.parametrize(
        ("bug", "settings", "found"),
        [
            ("offsets_of_the_next_step", {}, ("contract", "step0_kv_indptr")),
            ("list_of_the_first_step", {}, ("reference", "attention")),
            ("list_of_the_first_step", _LATENT, ("reference", "attention")),
            ("list_cut_short", {}, ("eager", "attention")),
            ("lists_without_room_for_drafts", {}, ("reference", "attention")),
            ("last_row_without_pages", _TABLE, ("contract", "step0_page_table")),
        ],
    )
    def test_what_a_step_reads_is_judged(
        self, workers: Workers, bug: str, settings: dict[str, Any], found: tuple[str, str]
    ) -> None:
        shown = seen(workers, NEWEST, drafts(**settings), f"{_MUTANTS}aiter_{bug}")
        assert found in shown


class TestFlashInferMla:
    pytestmark = [pytest.mark.sglang, pytest.mark.slow]

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.16", "0.5.19", NEWEST])
    def test_each_step_of_one_row_sees_the_past(self, workers: Workers, version: str) -> None:
        case = drafts((20,), (33,), (2,), **_PAST, capture_bs=(1,))
        assert seen(workers, version, case, _FLASHINFER) == set()

    @pytest.mark.parametrize("version", ["0.5.16", "0.5.19", NEWEST])
    def test_each_step_of_several_rows_sees_the_past(self, workers: Workers, version: str) -> None:
        case = drafts(**_PAST)
        assert seen(workers, version, case, f"{_MUTANTS}flashinfer_mla_mended") == set()

    @pytest.mark.parametrize("version", ["0.5.16", NEWEST])
    def test_rows_behind_the_first_see_drafts_of_other_rows(
        self, workers: Workers, version: str
    ) -> None:
        """Open in 0.5.23; see reports/findings/sglang-flashinfer-mla-draft-plan.md."""
        found = seen(workers, version, drafts(**_PAST), _FLASHINFER)
        assert found >= {("contract", "step0_kv_indices"), ("reference", "attention")}

    @pytest.mark.parametrize(
        ("bug", "found"),
        [
            ("offsets_of_the_next_row", ("contract", "step0_kv_indptr")),
            ("one_key_less", ("reference", "attention")),
            ("second_step_forgotten", ("contract", "step1_kv_indptr")),
        ],
    )
    def test_what_a_step_is_planned_by_is_judged(
        self, workers: Workers, bug: str, found: tuple[str, str]
    ) -> None:
        shown = seen(workers, NEWEST, drafts(**_PAST), f"{_MUTANTS}flashinfer_mla_{bug}")
        assert found in shown

    def test_what_a_step_reads_is_judged(self, workers: Workers) -> None:
        case = drafts((20,), (33,), (2,), **_PAST, capture_bs=(1,))
        found = seen(workers, NEWEST, case, f"{_MUTANTS}flashinfer_mla_lists_from_the_second_token")
        assert ("reference", "attention") in found


def test_steps_by_a_table_of_pages_are_drawn_with_the_past_and_others_with_drafts() -> None:
    target = open_target(_AITER)
    drawn = [swarm_config(target.capabilities, CI, number) for number in range(100)]
    seen_by = {(config.page_map, config.draft_reach) for config in drawn}
    assert seen_by == {("csr", "drafts"), ("page_table", "past")}
    wrong = EngineConfig(modes=("draft",), draft_reach="past")
    assert "see drafts" in (target.unsupported(wrong) or "")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"page_size": 16}, "page_size=16 is not driven"),
        (_LATENT, "attends for one branch of each request"),
        ({**_TABLE, "page_size": 1}, "attends for one branch of each request"),
    ],
)
def test_several_branches_are_drawn_by_lists_of_tokens_alone(
    settings: dict[str, Any], why: str
) -> None:
    case = drafts(**settings, **{**_BRANCHES, "draft_branches": "apart"})
    assert why in (open_target(_AITER).unsupported(case.config) or "")


def test_lists_of_tokens_ask_for_values_as_wide_as_keys() -> None:
    config = EngineConfig(modes=("draft",), head_dim=8, v_head_dim=4)
    assert "walks values" in (open_target(_AITER).unsupported(config) or "")


def test_contexts_shorter_than_what_graphs_are_captured_for_are_not_driven() -> None:
    target = open_target(_AITER)
    given: dict[str, Any] = {"modes": ("draft",), "spec_steps": 2, "draft_tokens": 3}
    said = target.unsupported(EngineConfig(**given, max_context_len=3))
    assert said == (
        "max_context_len=3 is not driven, only 4 and more: graphs are captured for rows of so many "
        "tokens"
    )
    assert target.unsupported(EngineConfig(**given, max_context_len=4)) is None
