"""Released sglang on one pool for all kinds of layers, whose pages have virtual numbers."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers

_NEWEST = "0.5.23"
_BACKENDS = ("fa3", "flashinfer", "trtllm-mha", "triton")


def _decode(*rows: tuple[int, int], finish: tuple[int, ...] = (), **more: Any) -> ReplayStep:
    made = tuple(BatchRow(request=request, seq_len=length) for request, length in rows)
    return ReplayStep(rows=made, finish=finish, **more)


# Pages of 16. The first request waits, then leaves, the other two have pages moved into its place,
# and a fourth one takes numbers that were the first one's.
MOVED = (
    _decode((0, 33), (1, 20), (2, 5)),
    _decode((1, 21), (2, 6)),
    _decode((1, 22), (2, 7), finish=(0,)),
    _decode((1, 23), (3, 18), (2, 8)),
    _decode((1, 24), (3, 19), via="eager"),
)


def _case(*steps: ReplayStep, **settings: Any) -> Case:
    given = {"capture_bs": (1, 4), "max_context_len": 48, "page_size": 16, "swa_window": 30}
    config = EngineConfig(**{**given, "virtual_pages": True, **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


def _verify(*rows: tuple[int, int], **settings: Any) -> Case:
    """One verify of rows of these lengths, of four drafts each, that are included."""
    made = tuple(BatchRow(request=request, seq_len=n, new_tokens=4) for request, n in rows)
    step = ReplayStep(mode="target_verify", rows=made)
    return _case(step, modes=("target_verify",), draft_tokens=4, **settings)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", _BACKENDS)
@pytest.mark.parametrize("version", ["0.5.22", _NEWEST])
def test_both_layers_find_their_pages_by_virtual_numbers_while_these_move(
    workers: Workers, version: str, backend: str
) -> None:
    # Decodes of Triton see one key of a window too few (see test_sliding_window.py).
    window = 48 if backend == "triton" else 30
    assert workers.findings(version, _case(*MOVED, swa_window=window), f"sglang-{backend}") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha", "triton"])
def test_a_window_that_has_passed_a_page_leaves_its_virtual_number(
    workers: Workers, backend: str
) -> None:
    case = _verify((0, 37), (1, 9), swa_window=3)
    assert workers.findings(_NEWEST, case, f"sglang-{backend}-verify") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", _BACKENDS)
def test_drafts_of_a_verify_are_found_by_virtual_numbers(workers: Workers, backend: str) -> None:
    case = _verify((0, 18), (1, 9))
    assert workers.findings(_NEWEST, case, f"sglang-{backend}-verify") == ()


_PLANTED = {
    "raw_reads": "attention",
    "raw_reads_of_lists": "kv_indices",
    "raw_writes": "out_cache_loc",
    "window_reads_by_the_other_table": "swa_attention",
    "window_lists_by_the_other_table": "window_kv_indices",
    "window_writes_by_the_other_table": "swa_out_cache_loc",
    "kept_plan": "page_table",
    "no_offsets": "out_cache_loc",
    "pages_of_the_next": "page_table",
}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("name", "buffer"), _PLANTED.items())
def test_a_planted_bug_of_the_translation_is_found(
    workers: Workers, name: str, buffer: str
) -> None:
    target = f"tests.targets.sglang.unified_mutants:{name}"
    found = {one.buffer for one in workers.findings(_NEWEST, _case(*MOVED), target)}
    assert buffer in found


@pytest.mark.sglang
@pytest.mark.slow
def test_a_verify_whose_tables_end_with_its_past_is_found(workers: Workers) -> None:
    target = "tests.targets.sglang.unified_mutants:short_extent"
    case = _verify((0, 18), (1, 9))
    found = {(one.oracle, one.buffer) for one in workers.findings(_NEWEST, case, target)}
    assert ("contract", "page_table") in found


@pytest.mark.sglang
@pytest.mark.slow
def test_what_servers_refuse_with_such_a_pool_is_not_driven(workers: Workers) -> None:
    one_kind = _case(*MOVED, swa_window=0)
    assert "layers of two kinds" in workers.skipped(_NEWEST, one_kind, "sglang-fa3")
    narrow = _case(*MOVED, dtype="float16")
    assert "rows of 8 bytes" in workers.skipped(_NEWEST, narrow, "sglang-fa3")
    assert "0.5.22" in workers.skipped("0.5.21", _case(*MOVED), "sglang-fa3")
    branches = _verify((0, 18), spec_topk=2, page_size=1)
    assert "spec_topk=2" in workers.skipped(_NEWEST, branches, "sglang-fa3-verify")


def test_aiter_has_no_such_pool() -> None:
    """sglang kv_cache_hook.py handle_page_major_kv_layout lists the backends that have it."""
    assert not open_target("sglang-aiter-window").capabilities.virtual_pages
