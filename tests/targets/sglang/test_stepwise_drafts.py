"""EAGLE's drafts on backends that prepare each step as a decode."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import draft_case, seen

_BACKENDS = ("flashmla", "nsa", "trtllm-mla")
RELEASED = [pytest.mark.sglang, pytest.mark.slow]
_MUTANTS = "tests.targets.sglang.stepwise_draft_mutants:"
_LATENT: dict[str, Any] = {
    "attention": "mla",
    "num_kv_heads": 1,
    "head_dim": 16,
    "v_head_dim": 8,
    "page_size": 64,
    "max_context_len": 128,
    "kv_pool_pages": 40,
}


def drafts(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Rows whose drafts see their past, on each of two steps."""
    given = {**_LATENT, "draft_reach": "past", "spec_steps": 2, "draft_tokens": 3, **settings}
    return draft_case(*(batches or ((20, 70, 9), (6, 17, 100, 12))), **given)


def far(**settings: Any) -> Case:
    """A row of three parts in a schedule, which the capture's has one of."""
    room = {"max_context_len": 1024, "kv_pool_pages": 80, "index_topk": 3}
    return drafts((700, 17), **{**room, "topk_kernel": "unplanned", **settings})


class TestReleased:
    pytestmark = RELEASED

    @pytest.mark.parametrize("backend", _BACKENDS)
    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_each_step_of_one_row_sees_the_past(
        self, workers: Workers, version: str, backend: str
    ) -> None:
        alone = drafts((20,), (100,), (9,), capture_bs=(1,))
        assert seen(workers, version, alone, f"sglang-{backend}-draft") == set()

    @pytest.mark.parametrize(
        "target", ["sglang-flashmla-draft", f"{_MUTANTS}nsa_mended", f"{_MUTANTS}trtllm_mla_mended"]
    )
    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_each_step_of_several_rows_sees_the_past(
        self, workers: Workers, version: str, target: str
    ) -> None:
        assert seen(workers, version, drafts(), target) == set()

    @pytest.mark.parametrize(
        ("bug", "buffer"),
        [
            ("nsa_plan_of_the_capture", "metadata"),
            ("nsa_second_step_forgotten", "step1_cache_seqlens"),
            ("nsa_tokens_of_other_rows", "step0_page_table"),
            ("nsa_copies_as_another_mode", "step0_page_table"),
            ("flashmla_pages_of_other_rows", "step1_page_table"),
            ("trtllm_mla_one_key_less", "step0_cache_seqlens"),
        ],
    )
    def test_what_a_step_reads_is_judged(self, workers: Workers, bug: str, buffer: str) -> None:
        found = seen(
            workers, "0.5.23", drafts(index_topk=3 * bug.startswith("nsa")), _MUTANTS + bug
        )
        assert buffer in {each for _, each in found}

    @pytest.mark.parametrize("backend", ["nsa", "trtllm-mla"])
    def test_the_store_of_latent_rows_takes_slots_of_a_step_for_a_list(
        self, workers: Workers, backend: str
    ) -> None:
        """Open in 0.5.23; see reports/findings/sglang-mla-draft-slots.md."""
        found = seen(workers, "0.5.23", drafts(), f"sglang-{backend}-draft")
        assert ("noninterference", "buffers.out_cache_loc") in found

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_three_steps_keep_the_schedule_of_their_capture(
        self, workers: Workers, version: str
    ) -> None:
        """Open in 0.5.23; see reports/findings/sglang-dsa-draft-plans.md."""
        case = far(spec_steps=3, draft_tokens=4)
        found = seen(workers, version, case, f"{_MUTANTS}nsa_mended")
        assert ("handover", "get_paged_mqa_logits_metadata") in found

    def test_three_steps_keep_the_plan_of_their_capture(self, workers: Workers) -> None:
        """The same of what keys are selected by."""
        case = drafts(spec_steps=3, draft_tokens=4, index_topk=3)
        assert ("contract", "metadata") in seen(workers, "0.5.23", case, f"{_MUTANTS}nsa_mended")

    def test_two_steps_keep_the_schedule_up_to_0_5_11(self, workers: Workers) -> None:
        found = seen(workers, "0.5.11", far(), f"{_MUTANTS}nsa_mended")
        assert ("handover", "get_paged_mqa_logits_metadata") in found
        assert seen(workers, "0.5.12", far(), f"{_MUTANTS}nsa_mended") == set()


@pytest.mark.parametrize("backend", _BACKENDS)
def test_drafts_that_see_each_other_are_not_driven(backend: str) -> None:
    config = EngineConfig(modes=("draft",), spec_steps=2, draft_tokens=3, **_LATENT)
    said = open_target(f"sglang-{backend}-draft").unsupported(config)
    assert "draft_reach" in (said or "")
