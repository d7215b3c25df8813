"""Triton attention of released sglang: its real kernels, judged by their outputs."""

from __future__ import annotations

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

_TARGET = "sglang-triton"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_attention_of_a_padded_batch_is_right_and_reads_its_own(
    workers: Workers, version: str
) -> None:
    case = decode_case((3, 7), (5,), capture_bs=(2,), max_context_len=8, kv_pool_pages=64)
    assert workers.findings(version, case, _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_attention_as_amds_gpus_launch_it_is_right(workers: Workers, version: str) -> None:
    case = decode_case((3, 70), (5,), capture_bs=(2,), max_context_len=80, platform="rocm")
    assert workers.findings(version, case, _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("platform", "found"), [("rocm", {"attention"}), ("cuda", set())])
def test_a_launch_of_too_few_rows_on_amds_gpus_alone_shows_there(
    workers: Workers, platform: str, found: set[str]
) -> None:
    case = decode_case((3, 7), capture_bs=(2,), max_context_len=8, platform=platform)
    target = "tests.targets.sglang.kernel_mutants:rotated_rows_left_out"
    assert {one.buffer for one in workers.findings("0.5.23", case, target)} == found


def test_backends_of_cuda_alone_are_not_beside_triton_on_rocm() -> None:
    config = EngineConfig(platform="rocm", backend_beside="fa3")
    reason = "platform='rocm' has no fa3 beside Triton attention"
    assert open_target("sglang-triton").unsupported(config) == reason


@pytest.mark.sglang
@pytest.mark.slow
def test_padded_rows_of_0_5_12_attend_to_a_request_that_has_left(workers: Workers) -> None:
    case = decode_case((3, 7), (5,), capture_bs=(2,), max_context_len=8, kv_pool_pages=64)
    found = workers.findings("0.5.12", case, _TARGET)
    seen = {(finding.oracle, finding.buffer) for finding in found}
    assert {("contract", "req_pool_indices"), ("noninterference", "attention")} <= seen


@pytest.mark.sglang
@pytest.mark.slow
def test_padded_rows_of_0_5_12_reach_live_rows_through_one_scale_over_all(workers: Workers) -> None:
    case = decode_case((3, 7), (5,), capture_bs=(2,), max_context_len=8, kv_pool_pages=64,
                       row_mixing="fp8_scale")  # fmt: skip
    found = {one.buffer: one for one in workers.findings("0.5.12", case, _TARGET)}
    assert found["mixed"].detail["rows"] == "live" and found["attention"].detail["rows"] == "padded"
    assert workers.findings("0.5.23", case, _TARGET) == ()


def test_latent_attention_has_a_target_of_its_own() -> None:
    config = EngineConfig(attention="mla", v_head_dim=3)
    assert (
        open_target("sglang-triton").unsupported(config)
        == "attention='mla' is not driven, only mha"
    )
    assert open_target("sglang-triton-mla").unsupported(config) is None


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_a_mask_without_room_for_the_drafts_fails_where_the_backend_sized_it(
    workers: Workers, version: str
) -> None:
    case = decode_case((8,), mode="target_verify", capture_bs=(1,), max_context_len=8)
    found = workers.findings(version, case, "sglang-triton-verify")
    assert [one.oracle for one in found] == (["survival"] if version == "0.5.13" else [])


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_an_idle_rank_of_a_verify_replays_what_was_captured(workers: Workers, version: str) -> None:
    case = decode_case((4,), mode="target_verify", capture_bs=(2,), max_context_len=8, dp_size=2)
    idle = ReplayStep(mode="idle", other_ranks=(1,))
    case = msgspec.structs.replace(case, steps=(idle, *case.steps, idle))
    assert workers.findings(version, case, "tests.targets.sglang.steady:steady_verify") == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_capture_rounded_up_to_the_ranks_finds_the_sums_at_pool_size(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-triton-kv-indptr.md."""
    case = decode_case((3,), capture_bs=(2,), req_pool_size=1, attn_tp_size=2, max_context_len=4)
    (finding,) = workers.findings("0.5.23", case, _TARGET)
    assert (finding.oracle, finding.stage) == ("survival", "capture")
    assert "in _fill_kv_indptr_and_indices" in finding.message


@pytest.mark.sglang
@pytest.mark.slow
def test_an_eager_step_without_requests_hands_out_no_rows(workers: Workers) -> None:
    assert workers.findings("0.5.23", idle_without_a_graph("decode"), _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_an_idle_rank_of_a_verify_without_a_graph_has_no_plan(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-padded-for-ranks.md."""
    of = idle_without_a_graph("target_verify")
    (found,) = workers.findings("0.5.23", of, "sglang-triton-verify")
    assert "'EagleVerifyInput' object has no attribute 'kv_indptr'" in found.message


def idle_without_a_graph(mode: Mode) -> Case:
    case = decode_case((4,), mode=mode, capture_bs=(1,), max_context_len=5, dp_size=2)
    idle = ReplayStep(mode="idle", via="eager", other_ranks=(1,))
    return msgspec.structs.replace(case, steps=(idle,))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("version", "refused"), [("0.5.12", True), ("0.5.13", False)])
def test_branches_on_pages_are_no_servers_up_to_0_5_12(
    workers: Workers, version: str, refused: bool
) -> None:
    paged = EngineConfig(modes=("target_verify",), spec_topk=2, page_size=4)
    said = workers.unserved(version, paged, "sglang-triton-verify")
    assert ("server_args.py refuses spec_topk=2 with page_size=4" in said) is refused
    single = msgspec.structs.replace(paged, page_size=1)
    assert workers.unserved(version, single, "sglang-triton-verify") == ""
