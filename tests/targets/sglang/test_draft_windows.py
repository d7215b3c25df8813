"""EAGLE's drafts on Triton and FlashInfer, behind a window: acquitted, and found where changed."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.strategies import CI
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import draft_case, seen

BACKENDS = ("triton", "flashinfer")
MUTANTS = "tests.targets.sglang.draft_window_mutants:"
RELEASED = [pytest.mark.sglang, pytest.mark.slow]


def long_rows(**settings: Any) -> Case:
    """Rows longer and shorter than window and sink together, above and at captured sizes."""
    room = {"max_context_len": 32, "kv_pool_pages": 300, "spec_steps": 3}
    return draft_case((20, 3, 9), (6, 17, 5, 12), **{**room, **settings})


class TestReleased:
    pytestmark = RELEASED

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    def test_a_draft_without_a_window_sees_all(
        self, workers: Workers, version: str, backend: str
    ) -> None:
        assert seen(workers, version, long_rows(), f"sglang-{backend}-draft") == set()

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("version", ["0.5.21", "0.5.23"])
    @pytest.mark.parametrize("sink", [0, 2])
    @pytest.mark.parametrize("topk", [1, 2])
    def test_a_draft_sees_its_window_and_its_sink(
        self, workers: Workers, version: str, backend: str, sink: int, topk: int
    ) -> None:
        case = long_rows(draft_window_size=4, draft_sink_size=sink, spec_topk=topk)
        assert seen(workers, version, case, f"sglang-{backend}-draft") == set()

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_older_releases_have_no_window_for_drafts(self, workers: Workers, backend: str) -> None:
        case = long_rows(draft_window_size=4)
        reason = workers.skipped("0.5.20", case, f"sglang-{backend}-draft")
        assert reason.endswith("draft_window_size must be 0")

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("topk", [1, 2])
    @pytest.mark.parametrize(
        ("bug", "buffer"),
        [
            ("sink_forgotten", "indptr"),
            ("one_token_more", "indptr"),
            ("window_forgotten", "indptr"),
            ("oldest_tokens", "indices"),
        ],
    )
    def test_a_changed_window_is_found(
        self, workers: Workers, backend: str, topk: int, bug: str, buffer: str
    ) -> None:
        case = long_rows(draft_window_size=4, draft_sink_size=1, spec_topk=topk)
        found = seen(workers, "0.5.23", case, f"{MUTANTS}{backend}_{bug}")
        assert ("contract", f"step0_kv_{buffer}") in found


def test_a_part_of_the_drafts_has_a_window_and_some_of_them_a_sink() -> None:
    can = open_target("sglang-triton-draft").capabilities
    configs = [swarm_config(can, CI, number) for number in range(100)]
    assert 15 < sum(config.draft_window_size > 0 for config in configs) < 60
    assert 5 < sum(config.draft_sink_size > 0 for config in configs) < 40


def test_drafts_on_a_backend_without_windows_have_none() -> None:
    reason = open_target("sglang-eagle-draft").unsupported(
        EngineConfig(modes=("draft",), draft_window_size=3)
    )
    assert "draft_window_size" in (reason or "")
