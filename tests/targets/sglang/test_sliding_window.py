"""Released sglang with a second layer behind a sliding window, on a KV pool of its own."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.capabilities import unsupported_case
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers

_NEWEST = "0.5.23"


def _decode(*rows: tuple[int, int], finish: tuple[int, ...] = ()) -> ReplayStep:
    made = tuple(BatchRow(request=request, seq_len=length) for request, length in rows)
    return ReplayStep(rows=made, finish=finish)


# A window of 4 tokens, the query's own included; pages of 16. The first request's first page leaves
# the window with its token 21, and the third request may get it at once.
LEAVING = (
    _decode((0, 19), (1, 5)),
    _decode((0, 20), (1, 6)),
    _decode((0, 21), (1, 7), (2, 3)),
    _decode((0, 22), (2, 4), finish=(1,)),
)
# The third and the fourth request leave, and the fifth one takes their slots.
TAKEN_OVER = (
    _decode((0, 2), (1, 4), (2, 4), (3, 4)),
    _decode((0, 3), (1, 5), (4, 7), finish=(2, 3)),
)


def _windowed(*steps: ReplayStep, **settings: Any) -> Case:
    given = {"capture_bs": (1, 4), "max_context_len": 32, "page_size": 16, "swa_window": 3}
    config = EngineConfig(**{**given, **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-flashinfer", "sglang-trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.13", _NEWEST])
def test_both_layers_attend_to_their_own_pages_while_pages_leave_the_window(
    workers: Workers, version: str, target: str
) -> None:
    assert workers.findings(version, _windowed(*LEAVING), target) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_batch_above_the_ladder_runs_eagerly(workers: Workers) -> None:
    case = _windowed(*TAKEN_OVER, page_size=1, capture_bs=(2,))
    assert workers.findings(_NEWEST, case, "sglang-fa3") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.11", "0.5.12"])
def test_padded_tokens_of_0_5_11_write_into_the_window_pool_of_others(
    workers: Workers, version: str
) -> None:
    case = _windowed(*TAKEN_OVER, page_size=1, max_context_len=16, swa_window=12)
    found = {(one.oracle, one.buffer) for one in workers.findings(version, case, "sglang-fa3")}
    overrun = {("footprint", "kv_pool.swa_kv_pool.k_buffer[0]"), ("reference", "swa_attention")}
    assert (overrun <= found) is (version == "0.5.11")


@pytest.mark.sglang
@pytest.mark.slow
def test_decodes_of_the_triton_backend_see_one_key_too_few(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-triton-decode-window.md."""
    case = _windowed(_decode((0, 4)), page_size=1)
    assert workers.findings(_NEWEST, case, "sglang-fa3") == ()
    found = {(one.oracle, one.buffer) for one in workers.findings(_NEWEST, case, "sglang-triton")}
    assert {("contract", "window_kv_indptr"), ("reference", "swa_attention")} <= found
    within = _windowed(_decode((0, 3)), page_size=1)
    assert workers.findings(_NEWEST, within, "sglang-triton") == ()


def _verify(*rows: tuple[int, int], **settings: Any) -> Case:
    """One verify of rows of these lengths, the drafts included."""
    drafts = settings.get("draft_tokens", 2)
    made = tuple(BatchRow(request=request, seq_len=n, new_tokens=drafts) for request, n in rows)
    step = ReplayStep(mode="target_verify", rows=made)
    given = {"modes": ("target_verify",), "draft_tokens": drafts, "capture_bs": (2,), **settings}
    return _windowed(step, **given)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["sglang-fa3-verify", "sglang-triton-verify", "sglang-trtllm-mha-verify"]
)
@pytest.mark.parametrize("version", ["0.5.13", _NEWEST])
def test_each_draft_of_a_verify_has_a_window_of_its_own(
    workers: Workers, version: str, target: str
) -> None:
    case = _verify((0, 9), (1, 21), draft_tokens=4)
    assert workers.findings(version, case, target) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_branches_of_drafts_see_their_own_part_of_a_window(workers: Workers) -> None:
    case = _verify((0, 9), page_size=1, draft_tokens=4, spec_topk=2)
    assert workers.findings(_NEWEST, case, "sglang-fa3-verify") == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_branches_behind_a_window_are_not_driven_on_larger_pages(workers: Workers) -> None:
    """sglang flashattention_backend.py asserts pages of one token."""
    case = _verify((0, 9), draft_tokens=4, spec_topk=2)
    assert "branches" in workers.skipped(_NEWEST, case, "sglang-fa3-verify")
    single = _verify((0, 9), draft_tokens=4)
    assert workers.skipped(_NEWEST, single, "sglang-fa3-verify") == ""


@pytest.mark.sglang
@pytest.mark.slow
def test_verifies_of_flashinfer_read_the_first_keys_of_a_row_for_its_last(
    workers: Workers,
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-window.md."""
    beyond = _verify((0, 9), page_size=1)
    found = {each.buffer for each in workers.findings(_NEWEST, beyond, "sglang-flashinfer-verify")}
    assert {"swa_attention", "window_kv_indices"} <= found
    within = _verify((0, 4), page_size=1)
    assert workers.findings(_NEWEST, within, "sglang-flashinfer-verify") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "buffer"),
    [
        ("stale_slots", "swa_out_cache_loc"),
        ("one_pool", "swa_attention"),
        ("untranslated_table", "swa_page_table"),
    ],
)
def test_a_planted_bug_of_a_verifys_second_pool_is_found(
    workers: Workers, planted: str, buffer: str
) -> None:
    first = _verify((0, 9), (1, 7), page_size=1)
    row = BatchRow(request=2, seq_len=9, new_tokens=2)
    last = ReplayStep(mode="target_verify", rows=(row,), finish=(0, 1))
    case = validate(Case(schema_version=1, config=first.config, steps=(*first.steps, last)))
    target = f"tests.targets.sglang.sliding_mutants:{planted}_of_a_verify"
    assert buffer in {one.buffer for one in workers.findings(_NEWEST, case, target)}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "buffer"),
    [
        ("stale_slots", "swa_out_cache_loc"),
        ("one_pool", "swa_attention"),
        ("short_list", "window_kv_indptr"),
        ("short_window", "swa_attention"),
    ],
)
def test_a_planted_bug_of_the_second_pool_is_found(
    workers: Workers, planted: str, buffer: str
) -> None:
    case = _windowed(*TAKEN_OVER, page_size=1, max_context_len=16)
    target = f"tests.targets.sglang.sliding_mutants:{planted}"
    assert buffer in {one.buffer for one in workers.findings(_NEWEST, case, target)}


def test_requests_that_share_a_prefix_are_not_driven_with_a_window() -> None:
    case = _windowed(*LEAVING)
    shared = Case(schema_version=1, config=case.config, steps=case.steps, shared_prefix_pages=1)
    can = open_target("sglang-fa3").capabilities
    assert unsupported_case(can, case) is None
    said = unsupported_case(can, shared)
    assert said == "shared_prefix_pages=1 with swa_window is not driven"
