"""EAGLE's drafts on a backend for each step whose lengths grow with them, by a table of pages."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import draft_case, seen

_LATENT: dict[str, Any] = {"attention": "mla", "num_kv_heads": 1, "head_dim": 16, "v_head_dim": 8}
_MUTANTS = "tests.targets.sglang.growing_draft_mutants:"
_PAGES: dict[str, Any] = {"page_size": 16, "max_context_len": 128, "kv_pool_pages": 60}


def drafts(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Rows whose drafts of two steps begin inside of a page, and in one of their own."""
    given = {**_PAGES, "spec_steps": 2, "draft_tokens": 3, **settings}
    return draft_case(*(batches or ((20, 15, 32, 63), (16, 3, 47), (1,))), **given)


class TestReleased:
    pytestmark = [pytest.mark.sglang, pytest.mark.slow]

    @pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
    def test_each_step_sees_the_drafts_before_it(self, workers: Workers, version: str) -> None:
        assert seen(workers, version, drafts(), "sglang-trtllm-mha-draft") == set()
        latent = drafts(**_LATENT)
        assert seen(workers, version, latent, f"{_MUTANTS}fa3_mla_mended") == set()

    @pytest.mark.parametrize("kernel", ["trtllm_gen", "xqa"])
    def test_each_step_sees_the_drafts_before_it_in_fp8(
        self, workers: Workers, kernel: str
    ) -> None:
        stored = {"dtype": "bfloat16", "kv_dtype": "float8_e4m3fn", "trtllm_kernel": kernel}
        assert seen(workers, "0.5.23", drafts(**stored), "sglang-trtllm-mha-draft") == set()

    def test_sessions_of_different_kernels_keep_their_own(self, workers: Workers) -> None:
        first, second = drafts(), drafts(trtllm_kernel="xqa")
        for case in (first, second, first):
            assert seen(workers, "0.5.23", case, "sglang-trtllm-mha-draft") == set()

    @pytest.mark.parametrize(
        ("bug", "oracle", "buffer"),
        [
            ("length_without_the_step", "contract", "step1_cache_seqlens"),
            ("last_step_forgotten", "contract", "step1_cache_seqlens"),
            ("backend_of_the_first_step", "reference", "attention"),
            ("last_page_of_a_row_stale", "contract", "step0_page_table"),
            ("lengths_of_padded_rows_stale", "contract", "step0_cache_seqlens"),
        ],
    )
    def test_what_a_step_reads_is_judged(
        self, workers: Workers, bug: str, oracle: str, buffer: str
    ) -> None:
        assert (oracle, buffer) in seen(workers, "0.5.23", drafts(), _MUTANTS + bug)

    @pytest.mark.parametrize(
        ("bug", "buffer"),
        [
            ("fa3_mla_length_without_the_step", "step1_cache_seqlens"),
            ("fa3_mla_pages_of_other_rows", "step0_page_table"),
        ],
    )
    def test_what_a_step_reads_over_latent_rows_is_judged(
        self, workers: Workers, bug: str, buffer: str
    ) -> None:
        found = seen(workers, "0.5.23", drafts(**_LATENT), _MUTANTS + bug)
        assert ("contract", buffer) in found

    def test_one_row_of_latent_drafts_is_clean(self, workers: Workers) -> None:
        alone = drafts((20,), (31,), (9,), capture_bs=(1,), **_LATENT)
        assert seen(workers, "0.5.23", alone, "sglang-fa3-mla-draft") == set()

    def test_steps_over_latent_rows_read_keys_of_other_slots(self, workers: Workers) -> None:
        """Open in 0.5.23; see reports/findings/sglang-mla-draft-slots.md."""
        found = seen(workers, "0.5.23", drafts(**_LATENT), "sglang-fa3-mla-draft")
        assert ("noninterference", "buffers.out_cache_loc") in found


def test_drafts_that_see_the_past_alone_are_not_driven() -> None:
    config = EngineConfig(
        modes=("draft",), spec_steps=2, draft_tokens=3, draft_reach="past", **_PAGES
    )
    assert "draft_reach" in (open_target("sglang-trtllm-mha-draft").unsupported(config) or "")


def test_branches_are_not_driven() -> None:
    config = EngineConfig(modes=("draft",), spec_topk=2, draft_tokens=4, **_PAGES)
    assert "spec_topk" in (open_target("sglang-trtllm-mha-draft").unsupported(config) or "")
