"""Backends of latent attention in released sglang: what their layers compute and write."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.backends.attention_backend import BackendTarget
from tests.targets.sglang.released import Workers, decode_case, release_path

released = [pytest.mark.sglang, pytest.mark.slow]

_JOINED = {"flashmla"}
"""Backends whose targets hand queries and keys over with the rotary part joined."""


def latent_case(page_size: int, *batches: tuple[int, ...], **settings: Any) -> Case:
    return decode_case(
        *batches, page_size=page_size, attention="mla", num_q_heads=2, head_dim=8, v_head_dim=4,
        max_context_len=200, **settings,
    )  # fmt: skip


def seen(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    """(oracle, buffer) of each finding."""
    return {(one.oracle, one.buffer) for one in workers.findings(version, case, target)}


class TestReleases:
    pytestmark = released

    def test_cutlass_decodes_cleanly_in_0_5_13(self, workers: Workers) -> None:
        case = latent_case(128, (5, 66, 7, 150), (130, 6, 7))
        assert seen(workers, "0.5.13", case, "sglang-cutlass-mla") == set()

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("sglang-flashmla", set()),
            (
                "tests.targets.sglang.latent_mutants:tiles_of_the_capture",
                {("eager", "attention"), ("reference", "attention")},
            ),
        ],
        ids=["as released", "planned once"],
    )
    def test_tiles_that_are_planned_once_leave_keys_out(
        self, workers: Workers, target: str, expected: set[tuple[str, str]]
    ) -> None:
        found = seen(workers, "0.5.23", latent_case(64, (5, 150), (130, 6)), target)
        assert expected <= found and bool(found) == bool(expected)

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("sglang-trtllm-mla", set()),
            ("sglang-fa3-mla", set()),
            *(
                (
                    f"tests.targets.sglang.latent_mutants:{mutant}",
                    {("reference", "attention"), ("reference", "kv_pool.kv_buffer[0]")},
                )
                for mutant in ("unwritten_rope", "unwritten_rope_fa3")
            ),
        ],
        ids=["trtllm", "fa3", "trtllm, not written", "fa3, not written"],
    )
    def test_a_rotary_part_that_is_not_written_shows_in_outputs_and_pool(
        self, workers: Workers, target: str, expected: set[tuple[str, str]]
    ) -> None:
        page_size = 16 if "fa3" in target else 32
        found = seen(workers, "0.5.23", latent_case(page_size, (5, 150), (130, 6)), target)
        assert expected <= found and bool(found) == bool(expected)

    @pytest.mark.parametrize(
        ("target", "later", "expected"),
        [
            ("sglang-trtllm-mla", True, set()),
            ("tests.targets.sglang.latent_mutants:stages_added_up", False, set()),
            ("tests.targets.sglang.latent_mutants:stages_added_up", True, {("survival", "")}),
        ],
    )
    def test_layers_of_a_later_stage_are_counted_from_its_first_one(
        self, workers: Workers, target: str, later: bool, expected: set[tuple[str, str]]
    ) -> None:
        case = latent_case(64, (5, 66), (7,), later_stage=later)
        assert seen(workers, "0.5.23", case, target) == expected

    @pytest.mark.parametrize(("version", "opens"), [("0.5.17", False), ("0.5.18", True)])
    def test_triton_attention_asked_for_layer_0_of_a_later_stage(
        self, workers: Workers, version: str, opens: bool
    ) -> None:
        """See reports/findings/sglang-triton-later-stage.md."""
        case = decode_case((5, 6), max_context_len=16, later_stage=True)
        expected = set() if opens else {("survival", "")}
        assert seen(workers, version, case, "sglang-triton") == expected

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    @pytest.mark.parametrize(("page_size", "topk"), [(1, 1), (16, 1), (1, 2)])
    def test_flash_attention_verifies_latent_rows(
        self, workers: Workers, version: str, page_size: int, topk: int
    ) -> None:
        case = latent_case(page_size, (5, 66), (17, 3, 9), mode="target_verify", spec_topk=topk)
        assert seen(workers, version, case, "sglang-fa3-mla-verify") == set()

    @pytest.mark.parametrize("target", ["sglang-fa3-mla", "sglang-trtllm-mla"])
    def test_an_eager_step_without_a_request_computes_nothing(
        self, workers: Workers, target: str
    ) -> None:
        idle = ReplayStep(mode="idle", via="eager", other_ranks=(1,))
        case = latent_case(16 if "fa3" in target else 32, (5, 66), dp_size=2)
        case = msgspec.structs.replace(case, steps=(*case.steps, idle))
        assert seen(workers, "0.5.23", case, target) == set()

    def test_slots_of_branches_are_taken_for_pages_of_latent_rows(self, workers: Workers) -> None:
        """In 0.5.13 to 0.5.23; of a model's own heads the second pass has pages of one token."""
        case = latent_case(16, (8, 9), mode="target_verify", spec_topk=2)
        found = seen(workers, "0.5.23", case, "sglang-fa3-mla-verify")
        assert {("reference", "attention"), ("handover", "flash_attn_with_kvcache")} <= found

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    def test_a_model_hands_the_rotary_part_over_as_the_release_says(self, version: str) -> None:
        path = release_path(version) / "sglang/srt/models/deepseek_common/utils.py"
        [apart] = [
            ast.literal_eval(node.value)
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "FORWARD_ABSORB_CORE_ATTENTION_BACKENDS"
        ]
        assert {"fa3", "flashinfer", "trtllm_mla"} <= set(apart)
        assert not _JOINED & set(apart)


def test_a_latent_row_without_a_rotary_part_is_not_driven() -> None:
    config = EngineConfig(attention="mla", page_size=64, head_dim=4, v_head_dim=4)
    reason = open_target("sglang-flashmla").unsupported(config)
    assert reason == "v_head_dim=4 leaves a latent row without a rotary part"


@pytest.mark.parametrize("name", ["sglang-flashmla", "sglang-trtllm-mla", "sglang-cutlass-mla"])
def test_latent_backends_promise_outputs(name: str) -> None:
    target = open_target(name)
    assert isinstance(target, BackendTarget) and target.outputs_judged == {"decode": ""}
