"""EAGLE's draft-extend of released sglang on one attention backend each."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import extend_case

_NEWEST = "0.5.23"
_LATENT: dict[str, Any] = {"attention": "mla", "num_kv_heads": 1, "head_dim": 16, "v_head_dim": 8}
_PAGES: dict[str, Any] = {"max_context_len": 64, "kv_pool_pages": 80}
_ON: dict[str, dict[str, Any]] = {
    "triton": {"page_size": 4},
    "flashinfer": {"page_size": 16},
    "trtllm-mha": {"page_size": 16},
    "aiter": {"page_size": 2},
    "trtllm-mla": {"page_size": 32, **_LATENT},
    "flashmla": {"page_size": 64, **_LATENT},
    "fa3-mla": {"page_size": 16, **_LATENT},
    "nsa": {"page_size": 64, "index_topk": 3, **_LATENT},
}
_BATCHES = ((1, 3), (2, 1, 3))
_WINDOW: dict[str, Any] = {"swa_window": 3, "draft_tokens": 3, **_PAGES}

released = [pytest.mark.sglang, pytest.mark.slow]


class TestReleases:
    pytestmark = released

    @pytest.mark.parametrize("backend", _ON)
    def test_accepted_tokens_see_the_past_and_each_other(
        self, workers: Workers, backend: str
    ) -> None:
        case = extend_case(*_BATCHES, draft_tokens=3, **_PAGES, **_ON[backend])
        assert workers.findings(_NEWEST, case, f"sglang-{backend}-draft-extend") == ()

    @pytest.mark.parametrize("backend", ["triton", "trtllm-mha"])
    def test_a_layer_behind_a_window_sees_the_last_keys(
        self, workers: Workers, backend: str
    ) -> None:
        case = extend_case(*_BATCHES, **_WINDOW, **_ON[backend])
        assert workers.findings(_NEWEST, case, f"sglang-{backend}-draft-extend") == ()

    def test_flash_attention_3_sees_the_last_keys_behind_a_window(self, workers: Workers) -> None:
        case = extend_case(*_BATCHES, **_WINDOW)
        assert workers.findings(_NEWEST, case, "sglang-eagle-draft-extend") == ()

    def test_flashinfer_reads_the_first_keys_of_a_row_for_its_last(self, workers: Workers) -> None:
        """Open in 0.5.23; see reports/findings/sglang-verify-window.md."""
        case = extend_case(*_BATCHES, **_WINDOW)
        found = workers.findings(_NEWEST, case, "sglang-flashinfer-draft-extend")
        assert "swa_attention" in {each.buffer for each in found}

    @pytest.mark.parametrize(
        ("bug", "backend", "buffer"),
        [
            ("last_key_of_no_row", "trtllm-mla", "attention"),
            ("rows_of_one_place_less", "triton", "attention"),
            ("window_of_the_first_pool", "trtllm-mha", "swa_attention"),
            ("plans_of_the_capture", "nsa", "attention"),
            ("selects_one_place_late", "nsa", "metadata"),
            ("rows_by_accepted_tokens", "nsa", "attention"),
        ],
    )
    def test_what_a_backend_prepares_for_a_draft_extend_is_judged(
        self, workers: Workers, bug: str, backend: str, buffer: str
    ) -> None:
        settings = _WINDOW if buffer == "swa_attention" else {"draft_tokens": 3, **_PAGES}
        case = extend_case(*_BATCHES, **settings, **_ON[backend])
        target = f"tests.targets.sglang.extend_mutants:{bug}"
        assert buffer in {each.buffer for each in workers.findings(_NEWEST, case, target)}


@pytest.mark.parametrize("backend", _ON)
def test_branches_are_not_driven(backend: str) -> None:
    config = EngineConfig(modes=("draft_extend",), spec_topk=2, **_ON[backend])
    target = open_target(f"sglang-{backend}-draft-extend")
    assert "spec_topk=2" in (target.unsupported(config) or "")


@pytest.mark.parametrize("backend", ["triton", "flashinfer", "trtllm-mha"])
def test_pages_with_virtual_numbers_are_not_driven(backend: str) -> None:
    """Places of drafts would have none."""
    given = {**_ON.get(backend, {}), "swa_window": 2, "virtual_pages": True, "spec_steps": 2}
    config = EngineConfig(modes=("draft_extend",), draft_tokens=3, **given)
    said = open_target(f"sglang-{backend}-draft-extend").unsupported(config)
    assert said == "virtual_pages=True is not driven"
