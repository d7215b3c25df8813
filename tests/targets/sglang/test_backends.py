"""Backends of released sglang whose kernels need a GPU: what their graphs read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuzzgraph.case import Case, EngineConfig, Mode
from fuzzgraph.targets import open_target
from fuzzgraph.targets.offline.cuda_on_cpu import ClaimsCuda, CudaMeansCpu
from fuzzgraph.targets.offline.used import below_lengths, below_lengths_packed
from tests.targets.sglang.released import Workers, decode_case

released = [pytest.mark.sglang, pytest.mark.slow]

PAGE_SIZES = {
    "fa3": 2, "flashinfer": 1, "flashinfer-mla": 1, "flashmla": 64, "nsa": 64, "trtllm-mha": 16,
    "trtllm-mla": 32,
}  # fmt: skip
"""Target -> a page size it takes."""


def case_for(target: str, *batches: tuple[int, ...], **settings: Any) -> Case:
    latent = target.endswith("mla") or target == "nsa"
    return decode_case(
        *batches,
        page_size=PAGE_SIZES[target],
        attention="mla" if latent else "mha",
        v_head_dim=2 if latent else 4,
        max_context_len=200,
        **settings,
    )


def seen(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    """(oracle, buffer) of each finding."""
    return {(one.oracle, one.buffer) for one in workers.findings(version, case, target)}


class TestReleases:
    pytestmark = released

    @pytest.mark.parametrize("target", PAGE_SIZES)
    def test_padded_rows_of_0_5_23_lie_in_the_padding_row(
        self, workers: Workers, target: str
    ) -> None:
        case = case_for(target, (5, 66, 7, 150), (130, 6, 7))
        assert seen(workers, "0.5.23", case, f"sglang-{target}") == set()

    @pytest.mark.parametrize("target", PAGE_SIZES)
    def test_drafts_are_verified_cleanly_in_0_5_23(self, workers: Workers, target: str) -> None:
        case = case_for(target, (5, 66, 7, 150), (130, 6, 7), mode="target_verify")
        assert seen(workers, "0.5.23", case, f"sglang-{target}-verify") == set()

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_trees_of_two_branches_are_verified_cleanly_on_fa3(
        self, workers: Workers, version: str
    ) -> None:
        case = case_for("fa3", (5, 66, 7, 150), (130, 6, 7), mode="target_verify", spec_topk=2)
        assert seen(workers, version, case, "sglang-fa3-verify") == set()

    @pytest.mark.parametrize(
        ("mutant", "target", "settings"),
        [
            ("bidirectional_verify", "fa3", {"mode": "target_verify"}),
            ("unwritten_kv", "trtllm-mha", {}),
            ("wrong_scale", "trtllm-mha", {}),
        ],
        ids=["not causal", "KV not written", "no scale"],
    )
    def test_a_wrong_call_of_a_kernel_shows_in_the_outputs(
        self, workers: Workers, mutant: str, target: str, settings: dict[str, Any]
    ) -> None:
        case = case_for(target, (5,), (9,), **settings)
        found = seen(workers, "0.5.23", case, f"tests.targets.sglang.attention_mutants:{mutant}")
        assert ("reference", "attention") in found

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    @pytest.mark.parametrize("target", ["sglang-fa3", "sglang-triton"])
    def test_logits_are_capped(self, workers: Workers, version: str, target: str) -> None:
        case = decode_case((5,), (9,), logit_cap=1)
        assert seen(workers, version, case, target) == set()

    def test_a_cap_that_is_left_out_shows_in_the_outputs(self, workers: Workers) -> None:
        case = decode_case((5,), (9,), logit_cap=1)
        found = seen(workers, "0.5.23", case, "tests.targets.sglang.attention_mutants:uncapped")
        assert found == {("reference", "attention")}

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_flashinfers_backend_drops_a_cap(self, workers: Workers, version: str) -> None:
        case = decode_case((5,), (9,), logit_cap=1)
        assert ("reference", "attention") in seen(workers, version, case, "sglang-flashinfer")

    @pytest.mark.parametrize(("wide", "found"), [(128, {("survival", "")}), (64, set())])
    def test_heads_of_more_than_64_columns_show_a_plan_of_another_mask(
        self, workers: Workers, wide: int, found: set[tuple[str, str]]
    ) -> None:
        case = decode_case((5,), (9,), head_dim=wide, v_head_dim=wide)
        mutant = "tests.targets.sglang.attention_mutants:unmasked_decode"
        assert seen(workers, "0.5.23", case, mutant) == found
        assert seen(workers, "0.5.23", case, "sglang-fa3") == set()

    @pytest.mark.parametrize(
        ("mutant", "target", "settings"),
        [
            ("plan_by_fewer_keys", "flashinfer", {}),
            ("mask_of_the_next_key", "flashinfer", {"mode": "target_verify"}),
            ("latent_verify_bidirectional", "flashinfer-mla", {"mode": "target_verify"}),
            ("scales_swapped", "flashinfer", {"kv_dtype": "float8_e4m3fn"}),
        ],
        ids=["plan too short", "mask shifted", "latent verify not causal", "scales swapped"],
    )
    def test_a_wrong_call_of_flashinfer_shows_in_the_outputs(
        self, workers: Workers, mutant: str, target: str, settings: dict[str, Any]
    ) -> None:
        case = case_for(target, (5, 7), (9, 8), **settings)
        found = seen(workers, "0.5.23", case, f"tests.targets.sglang.flashinfer_mutants:{mutant}")
        assert ("reference", "attention") in found

    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    @pytest.mark.parametrize("mode", ["decode", "target_verify"])
    def test_keys_and_values_in_fp8_are_scaled_back(
        self, workers: Workers, version: str, mode: Mode
    ) -> None:
        case = case_for("flashinfer", (5, 7), (17, 3, 9), mode=mode, kv_dtype="float8_e4m3fn")
        target = "sglang-flashinfer-verify" if mode == "target_verify" else "sglang-flashinfer"
        assert seen(workers, version, case, target) == set()

    def test_a_tree_of_two_branches_is_one_mask_on_flashinfer(self, workers: Workers) -> None:
        case = case_for("flashinfer", (5, 66, 7), (130, 6, 7), mode="target_verify", spec_topk=2)
        assert seen(workers, "0.5.23", case, "sglang-flashinfer-verify") == set()

    @pytest.mark.parametrize(
        ("target", "buffer"),
        [("fa3", "page_table"), ("flashinfer", "kv_indices"), ("trtllm-mla", "page_table")],
    )
    def test_stale_rows_of_0_5_12_reach_what_kernels_read(
        self, workers: Workers, target: str, buffer: str
    ) -> None:
        found = seen(
            workers, "0.5.12", case_for(target, (5, 6, 7, 8), (5, 6, 7)), f"sglang-{target}"
        )
        assert {("contract", buffer), ("noninterference", buffer), ("history", buffer)} <= found

    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            ("sglang-flashinfer-mla", set()),
            ("tests.targets.sglang.mirror_mutants:stale_mirror", {("contract", "kv_indptr")}),
        ],
        ids=["as released", "made once"],
    )
    def test_a_plan_by_a_stale_host_mirror_is_found(
        self, workers: Workers, target: str, expected: set[tuple[str, str]]
    ) -> None:
        case = case_for("flashinfer-mla", (5, 66), (130, 6), capture_bs=(2,))
        found = seen(workers, "0.5.12", case, target)
        assert expected <= found and bool(found) == bool(expected)

    def test_a_verify_past_the_context_has_no_page_for_its_drafts(self, workers: Workers) -> None:
        case = decode_case((5,), mode="target_verify", max_context_len=5, capture_bs=(1,))
        found = workers.findings("0.5.23", case, "sglang-fa3-verify")
        told = {one.oracle: one.message.split(": ", 1)[1] for one in found}
        assert told["contract"] == "page_table has 4 pages for row 0, whose 5 tokens lie in 5"
        assert any("outside backend.forward_metadata.page_table" in one.message for one in found)
        assert told["reference"].startswith("attention[1, 0, 0]")

    def test_more_ranks_than_the_pool_divides_by_break_flashinfer_up_to_0_5_13(
        self, workers: Workers
    ) -> None:
        case = decode_case((5,), capture_bs=(2,), req_pool_size=1, attn_tp_size=2)
        assert [one.symptom for one in workers.findings("0.5.13", case, "sglang-flashinfer")]
        assert not workers.findings("0.5.23", case, "sglang-flashinfer")

    def test_a_model_counts_the_heads_of_all_ranks(self, workers: Workers) -> None:
        """fa3 plans its splits by a rank's share of them."""
        heads: dict[str, Any] = {"num_q_heads": 4, "num_kv_heads": 2, "attn_tp_size": 4}
        case = decode_case((5, 6, 7), capture_bs=(4,), **heads)
        assert not workers.findings("0.5.23", case, "sglang-fa3")


def test_a_page_size_that_a_backend_lacks_is_not_driven() -> None:
    reason = open_target("sglang-flashmla").unsupported(EngineConfig())
    assert reason == "page_size=1 is not driven, only 64"


def test_pages_beyond_a_rows_length_are_not_shown() -> None:
    table = torch.tensor([[4, 5, 9], [6, 9, 9]])
    assert below_lengths(table, torch.tensor([5, 2]), 4).tolist() == [[4, 5], [6, 0]]


def test_rows_of_one_request_stand_side_by_side() -> None:
    table = torch.tensor([[4, 5], [6, 7], [8, 9], [3, 2]])
    assert below_lengths(table, torch.tensor([2, 1]), 1, rows_each=2).tolist() == [
        [4, 5, 6, 7],
        [8, 0, 3, 0],
    ]


def test_a_table_of_slots_is_packed_below_each_rows_length() -> None:
    packed = below_lengths_packed(torch.tensor([[4, 5], [6, 7]]), torch.tensor([2, 1]))
    assert packed["token_indices"].tolist() == [4, 5, 6]
    assert packed["token_indptr"].tolist() == [0, 2, 3]


def test_memory_on_cuda_is_memory_here() -> None:
    with CudaMeansCpu():
        made = torch.zeros(2, device="cuda", pin_memory=False)
        moved = SimpleNamespace(tensor=made.to("cuda:0", non_blocking=True)).tensor
    assert (made.device.type, moved.device.type) == ("cpu", "cpu")


def test_a_tensor_that_must_lie_on_a_gpu_says_so_only_while_asked_to() -> None:
    tensor = torch.zeros(1)
    with ClaimsCuda():
        claimed = tensor.is_cuda
    assert (claimed, tensor.is_cuda) == (True, False)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_a_list_that_is_filled_up_to_a_kernels_first_block_is_found(
    workers: Workers, version: str
) -> None:
    planted = "tests.targets.sglang.kernel_mutants:first_blocks_filled"
    for longest, wrong in ((512, False), (515, True)):
        case = decode_case(
            (longest - 1, 3), (longest, 4), capture_bs=(2,), max_context_len=515, kv_pool_pages=1600
        )
        found = {one.buffer for one in workers.findings(version, case, planted)}
        assert ("kv_indices" in found) is wrong
        assert workers.findings(version, case, "sglang-flashinfer") == ()
