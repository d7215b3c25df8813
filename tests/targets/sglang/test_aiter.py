"""The AITER metadata of released sglang: condemned where it was wrong, acquitted where fixed."""

from __future__ import annotations

import pytest

from tests.targets.sglang.released import Workers, decode_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

_DECODE = "sglang-aiter"
_VERIFY = "sglang-aiter-verify"


_FULL = (64, 64, 64, 64)


@pytest.mark.parametrize("version", ["0.5.10", "0.5.11", "0.5.12"])
def test_pages_for_tokens_overrun_kv_indices(workers: Workers, version: str) -> None:
    first = workers.findings(version, decode_case(_FULL, page_size=16), _DECODE)[0]
    assert (first.oracle, first.buffer) == ("footprint", "backend.cuda_graph_kv_indices")
    assert (first.detail["payload"], first.detail["elements"]) == (16, 240)
    assert "aiter_backend.py" in str(first.detail["allocated_at"])
    assert "init_cuda_graph_state" in str(first.detail["allocated_at"])


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
    case = decode_case((5, 6), capture_bs=(2, 8), req_pool_size=5)
    (finding,) = workers.findings("0.5.10", case, _DECODE)
    assert (finding.oracle, finding.stage) == ("survival", "capture")
    assert "aiter_backend.py" in finding.message


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_a_capture_beyond_the_pool_works_where_they_are_not(workers: Workers, version: str) -> None:
    case = decode_case((5, 6), capture_bs=(2, 8), req_pool_size=5)
    assert workers.findings(version, case, _DECODE) == ()


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
@pytest.mark.parametrize("attention", ["mha", "mla"])
def test_a_full_batch_of_one_token_pages_is_healthy(
    workers: Workers, version: str, attention: str
) -> None:
    case = decode_case((5, 6, 7, 8), attention=attention, v_head_dim=2)
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
