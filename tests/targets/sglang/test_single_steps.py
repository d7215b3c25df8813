"""Drafts whose model attends at one step alone, as with `--speculative-num-steps 2`: what holds
backends of all steps holds one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.strategies import CI
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import but_slots, draft_case, seen
from tests.targets.sglang.test_stepwise_drafts import drafts

RELEASED = [pytest.mark.sglang, pytest.mark.slow]
_MUTANTS = "tests.targets.sglang.single_step_mutants:"
_BRANCHES: dict[str, Any] = {
    "spec_topk": 2, "draft_branches": "chosen", "draft_tokens": 3, "page_size": 1,
}  # fmt: skip
_DRAWN = ("flashinfer", "flashmla", "nsa", "triton", "trtllm-mla")


class TestReleased:
    pytestmark = RELEASED

    @pytest.mark.parametrize("target", ["eagle", "flashinfer", "triton"])
    @pytest.mark.parametrize("version", ["0.5.13", "0.5.16", "0.5.20", "0.5.23"])
    def test_a_step_sees_its_past_and_its_own_token(
        self, workers: Workers, version: str, target: str
    ) -> None:
        case = draft_case((5, 6, 9, 4), (7, 3, 2))
        found = but_slots(seen(workers, version, case, f"sglang-{target}-draft"))
        early = {("contract", "seq_lens_sum")} if version == "0.5.13" else set()
        assert found - early == set()

    @pytest.mark.parametrize("backend", ["flashinfer", "triton"])
    @pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
    def test_a_step_of_several_branches_sees_what_each_has_drafted(
        self, workers: Workers, version: str, backend: str
    ) -> None:
        case = draft_case((5, 6, 9), (7, 3), **_BRANCHES)
        assert seen(workers, version, case, f"sglang-{backend}-draft") == set()

    @pytest.mark.parametrize(
        "target",
        [
            "sglang-flashmla-draft",
            "tests.targets.sglang.stepwise_draft_mutants:nsa_mended",
            "tests.targets.sglang.stepwise_draft_mutants:trtllm_mla_mended",
        ],
    )
    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_a_step_that_is_prepared_as_a_decode_sees_the_past(
        self, workers: Workers, version: str, target: str
    ) -> None:
        case = drafts(spec_steps=1, draft_tokens=2)
        assert seen(workers, version, case, target) == set()

    @pytest.mark.parametrize("backend", ["nsa", "trtllm-mla"])
    def test_the_store_of_latent_rows_misreads_the_slots_of_one_step_too(
        self, workers: Workers, backend: str
    ) -> None:
        """Open in 0.5.23; see reports/findings/sglang-mla-draft-slots.md."""
        case = drafts(spec_steps=1, draft_tokens=2)
        found = seen(workers, "0.5.23", case, f"sglang-{backend}-draft")
        assert ("noninterference", "buffers.out_cache_loc") in found

    @pytest.mark.parametrize(
        ("bug", "oracle"),
        [
            ("triton_step_forgotten", "survival"),
            ("triton_offsets_of_the_next_step", "reference"),
            ("triton_step_without_its_own_token", "reference"),
            ("flashinfer_offsets_of_the_next_step", "contract"),
        ],
    )
    def test_what_the_step_reads_is_judged(self, workers: Workers, bug: str, oracle: str) -> None:
        found = seen(workers, "0.5.23", draft_case((5, 6, 9, 4), (7, 3, 2)), _MUTANTS + bug)
        assert oracle in {each for each, _ in found}

    def test_what_a_step_of_sparse_attention_reads_is_judged(self, workers: Workers) -> None:
        case = drafts((20,), (100,), (9,), spec_steps=1, draft_tokens=2, capture_bs=(1,))
        found = seen(workers, "0.5.23", case, f"{_MUTANTS}nsa_single_step_forgotten")
        assert ("contract", "step0_cache_seqlens") in found


@pytest.mark.parametrize("backend", _DRAWN)
def test_some_drafts_have_one_step_and_most_have_several(backend: str) -> None:
    capabilities = open_target(f"sglang-{backend}-draft").capabilities
    steps = Counter(swarm_config(capabilities, CI, number).spec_steps for number in range(100))
    assert set(steps) == {1, 2, 3} and 10 < steps[1] < 50


@pytest.mark.parametrize("target", ["eagle", "flashinfer", "triton"])
def test_a_server_whose_model_runs_at_no_step_has_no_graph(target: str) -> None:
    config = EngineConfig(modes=("draft",), spec_topk=2, draft_tokens=3)
    assert open_target(f"sglang-{target}-draft").unsupported(config) == (
        "spec_topk=2 with spec_steps=1: eagle_worker_v2.py captures no drafts with "
        "--speculative-num-steps 1"
    )
