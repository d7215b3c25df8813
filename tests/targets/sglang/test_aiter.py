"""AITER on released sglang, and sparse attention: condemned where wrong, acquitted where fixed."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Mode
from tests.targets.sglang.released import Workers, decode_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

_DECODE = "sglang-aiter"
_VERIFY = "sglang-aiter-verify"


_FULL = (64, 64, 64, 64)
_SPARSE: dict[str, Any] = {
    "page_size": 64, "attention": "mla", "v_head_dim": 2, "max_context_len": 200,
}  # fmt: skip


@pytest.mark.parametrize("version", ["0.5.10", "0.5.11", "0.5.12"])
def test_pages_for_tokens_overrun_kv_indices(workers: Workers, version: str) -> None:
    first = workers.findings(version, decode_case(_FULL, page_size=16), _DECODE)[0]
    assert (first.oracle, first.buffer) == ("footprint", "backend.cuda_graph_kv_indices")
    assert (first.detail["payload"], first.detail["elements"]) == (16, 240)
    assert "aiter_backend.py" in str(first.detail["allocated_at"])
    assert "init_cuda_graph_state" in str(first.detail["allocated_at"])


def test_the_lines_of_an_overrun_are_the_launch_and_the_buffer(workers: Workers) -> None:
    assert workers.lines("0.5.12", decode_case(_FULL, page_size=16), _DECODE) == (
        ("written", "create_flashinfer_kv_indices_triton[(bs,)]("),
        ("allocated", "self.cuda_graph_kv_indices = torch.zeros("),
    )


@pytest.mark.parametrize(
    ("version", "page_size"), [("0.5.12", 1), ("0.5.13", 1), ("0.5.13", 16), ("0.5.13", 64)]
)
def test_enough_room_for_kv_indices_is_no_finding(
    workers: Workers, version: str, page_size: int
) -> None:
    assert workers.findings(version, decode_case(_FULL, page_size=page_size), _DECODE) == ()


@pytest.mark.parametrize("version", ["0.5.10", "0.5.11", "0.5.12"])
def test_padded_rows_that_follow_an_old_request_are_found(workers: Workers, version: str) -> None:
    found = workers.findings(version, decode_case((5, 6, 7, 8), (5, 6, 7)), _DECODE)
    seen = {(finding.oracle, finding.buffer) for finding in found}
    assert ("contract", "req_pool_indices") in seen
    assert ("history", "kv_indices") in seen


def test_padded_rows_on_the_padding_row_are_no_finding(workers: Workers) -> None:
    assert workers.findings("0.5.13", decode_case((5, 6, 7, 8), (5, 6, 7)), _DECODE) == ()


def test_a_capture_beyond_the_pool_fails_where_buffers_were_sized_by_the_pool(
    workers: Workers,
) -> None:
    case = decode_case((5, 6), capture_bs=(4, 8), req_pool_size=5, attn_tp_size=4)
    (finding,) = workers.findings("0.5.10", case, _DECODE)
    assert (finding.oracle, finding.stage) == ("survival", "capture")
    assert "aiter_backend.py" in finding.message


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_a_capture_beyond_the_pool_works_where_they_are_not(workers: Workers, version: str) -> None:
    case = decode_case((5, 6), capture_bs=(4, 8), req_pool_size=5, attn_tp_size=4)
    assert workers.findings(version, case, _DECODE) == ()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
@pytest.mark.parametrize("attention", ["mha", "mla"])
def test_a_full_batch_of_one_token_pages_is_healthy(
    workers: Workers, version: str, attention: str
) -> None:
    latent: dict[str, Any] = {"v_head_dim": 2, "num_q_heads": 16} if attention == "mla" else {}
    case = decode_case((5, 6, 7, 8), attention=attention, **latent)
    assert workers.findings(version, case, _DECODE) == ()


def test_page_tables_of_unified_attention_are_healthy(workers: Workers) -> None:
    case = decode_case((5, 6, 7, 8), (17, 3), page_map="page_table", page_size=4)
    assert workers.findings("0.5.13", case, _DECODE) == ()


def test_one_token_pages_never_reach_the_unified_page_table(workers: Workers) -> None:
    """Open in every release looked at: only the branch for larger pages copies (PR 34833)."""
    found = workers.findings("0.5.13", decode_case((5, 6), page_map="page_table"), _DECODE)
    assert ("contract", "page_table") in {(entry.oracle, entry.buffer) for entry in found}


@pytest.mark.parametrize("page_map", ["csr", "page_table"])
def test_target_verify_is_healthy_with_padded_rows(workers: Workers, page_map: str) -> None:
    case = decode_case(
        (5, 6, 7, 8), (5, 6, 7), mode="target_verify", page_map=page_map, page_size=4
    )
    assert workers.findings("0.5.13", case, _VERIFY) == ()


def test_a_batch_above_the_ladder_goes_eager(workers: Workers) -> None:
    case = decode_case((5, 6, 7, 8), capture_bs=(1, 2))
    assert workers.findings("0.5.13", case, _DECODE) == ()


_WRONG = "tests.targets.sglang.kernel_mutants"


@pytest.mark.parametrize(
    ("target", "settings", "oracle"),
    [
        (f"{_WRONG}:lone_rows_unwritten", {}, ("noninterference", "attention")),
        (
            f"{_WRONG}:lone_rows_unwritten",
            {"page_map": "page_table", "page_size": 4},
            ("noninterference", "attention"),
        ),
        (
            f"{_WRONG}:lone_rows_unwritten",
            {"attention": "mla", "v_head_dim": 2, "num_q_heads": 16},
            ("noninterference", "attention"),
        ),
        (f"{_WRONG}:wrong_scale", {}, ("reference", "attention")),
        (
            f"{_WRONG}:wrong_scale",
            {"page_map": "page_table", "page_size": 4},
            ("reference", "attention"),
        ),
        (
            f"{_WRONG}:wrong_scale",
            {"attention": "mla", "v_head_dim": 2, "num_q_heads": 4},
            ("reference", "attention"),
        ),
    ],
)
def test_outputs_show_what_no_metadata_shows(
    workers: Workers, target: str, settings: dict[str, Any], oracle: tuple[str, str]
) -> None:
    mode: Mode = "target_verify" if target.endswith("scale") else "decode"
    case = decode_case((5,), capture_bs=(1,), mode=mode, **settings)
    found = {(one.oracle, one.buffer) for one in workers.findings("0.5.23", case, target)}
    assert oracle in found
    healthy = _VERIFY if mode == "target_verify" else _DECODE
    assert workers.findings("0.5.23", case, healthy) == ()


@pytest.mark.parametrize("heads", [16, 32, 4])
@pytest.mark.parametrize("target", [_DECODE, _VERIFY])
def test_latent_heads_are_native_or_padded(workers: Workers, heads: int, target: str) -> None:
    mode: Mode = "target_verify" if target == _VERIFY else "decode"
    case = decode_case(
        (5, 6, 7, 8), (17, 40), mode=mode, attention="mla", v_head_dim=2, num_q_heads=heads
    )
    assert workers.findings("0.5.23", case, target) == ()


@pytest.mark.parametrize("version", ["0.5.13", "0.5.20"])
@pytest.mark.parametrize("target", [_DECODE, _VERIFY])
def test_persistent_plans_are_healthy(workers: Workers, version: str, target: str) -> None:
    mode: Mode = "target_verify" if target == _VERIFY else "decode"
    case = decode_case(
        (5, 60), (33, 4, 9), mode=mode, attention="mla", v_head_dim=2, num_q_heads=32
    )
    assert workers.findings(version, case, target) == ()


def test_a_replay_by_the_plan_of_its_capture_is_found(workers: Workers) -> None:
    case = decode_case((5, 60), attention="mla", v_head_dim=2, num_q_heads=32)
    found = workers.findings("0.5.23", case, f"{_WRONG}:plan_of_the_capture")
    assert ("reference", "attention") in {(finding.oracle, finding.buffer) for finding in found}
    assert workers.findings("0.5.23", case, _DECODE) == ()


def test_kv_last_page_len_on_the_host_is_found(workers: Workers) -> None:
    case = decode_case((5,), attention="mla", v_head_dim=2, num_q_heads=16)
    (finding,) = workers.findings("0.5.9", case, _DECODE)
    assert finding.buffer == "mla_decode_fwd.kv_last_page_lens"
    assert "lies in the host's memory" in finding.message


def test_heads_that_a_release_hands_on_unpadded_are_not_run(workers: Workers) -> None:
    case = decode_case((5,), attention="mla", v_head_dim=2, num_q_heads=4)
    assert "0.5.10 hands latent kernels 4 heads as they are" in workers.skipped(
        "0.5.10", case, _DECODE
    )


@pytest.mark.parametrize("topk", [0, 3, 16])
@pytest.mark.parametrize("mode", ["decode", "target_verify"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.15", "0.5.23"])
def test_sparse_attention_sees_what_scores_select(
    workers: Workers, version: str, mode: Mode, topk: int
) -> None:
    target = "sglang-nsa-verify" if mode == "target_verify" else "sglang-nsa"
    case = decode_case((5, 66, 7, 150), (130, 6, 7), mode=mode, index_topk=topk, **_SPARSE)
    assert workers.findings(version, case, target) == ()


@pytest.mark.parametrize("mode", ["decode", "target_verify"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_sparse_flash_mla_attends_to_what_scores_select(
    workers: Workers, version: str, mode: Mode
) -> None:
    target = "sglang-nsa-verify" if mode == "target_verify" else "sglang-nsa"
    chosen = {"index_topk": 3, "sparse_kernel": "flashmla_sparse"}
    case = decode_case((5, 66, 7), (130, 6), mode=mode, **chosen, **_SPARSE)
    assert workers.findings(version, case, target) == ()


def test_a_slot_after_the_selected_one_is_found_in_sparse_flash_mla(workers: Workers) -> None:
    case = decode_case((5, 66), index_topk=3, sparse_kernel="flashmla_sparse", **_SPARSE)
    found = workers.findings("0.5.23", case, f"{_WRONG}:next_slots")
    assert "reference" in {each.oracle for each in found}


def test_heads_that_cannot_be_padded_are_not_run_by_sparse_flash_mla(workers: Workers) -> None:
    heads = {**_SPARSE, "num_q_heads": 3}
    case = decode_case((5,), sparse_kernel="flashmla_sparse", **heads)
    assert "3 query heads cannot be padded to 64" in workers.skipped("0.5.23", case, "sglang-nsa")


def test_a_selection_that_leaves_the_newest_key_out_is_found(workers: Workers) -> None:
    case = decode_case((5, 66), index_topk=100, **_SPARSE)
    found = workers.findings("0.5.23", case, f"{_WRONG}:newest_key_unselected")
    # The last of the selected is then -1, and what lies there is read as a key.
    assert ("noninterference", "kv_pool.kv_buffer[0]") in {(f.oracle, f.buffer) for f in found}
    assert workers.findings("0.5.23", case, "sglang-nsa") == ()


@pytest.mark.parametrize("mutant", ["index_keys_not_stored", "index_pages_of_the_padding"])
def test_an_indexer_that_reads_other_keys_is_found(workers: Workers, mutant: str) -> None:
    case = decode_case((5, 130), (6, 131), index_topk=3, **_SPARSE)
    found = workers.findings("0.5.23", case, f"{_WRONG}:{mutant}")
    assert "reference" in {each.oracle for each in found}


def test_a_list_that_metadata_holds_is_that_of_the_eager_run(workers: Workers) -> None:
    case = decode_case((5, 66), index_topk=3, **_SPARSE)
    found = workers.findings("0.5.23", case, f"{_WRONG}:longer_extends")
    assert "handover" in {f.oracle for f in found if f.buffer.endswith("extend_seq_lens_list")}
