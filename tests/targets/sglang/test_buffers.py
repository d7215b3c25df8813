"""Input buffers of released runners: condemned where they were wrong, acquitted where fixed."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

_DECODE = "sglang-buffers"
_CPU = "sglang-cpu-graph"


def seen(
    workers: Workers, version: str, target: str, *batches: tuple[int, ...], **settings: Any
) -> set[tuple[str, str]]:
    """(oracle, buffer) of each finding."""
    found = workers.findings(version, decode_case(*batches, **settings), target)
    return {(finding.oracle, finding.buffer) for finding in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
def test_padded_rows_are_stale_up_to_0_5_12_only(workers: Workers, version: str) -> None:
    found = seen(workers, version, _DECODE, (5, 6, 7, 8), (5, 6, 7))
    stale = {("contract", "req_pool_indices"), ("history", "req_pool_indices")}
    assert found == (stale if version == "0.5.12" else set())


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
def test_padded_rows_of_the_cpu_runner_are_stale_up_to_0_5_12_only(
    workers: Workers, version: str
) -> None:
    found = seen(workers, version, _CPU, (5, 6, 7), (5, 6), capture_bs=(4,))
    assert (("contract", "req_pool_indices") in found) == (version == "0.5.12")
    assert bool(found) == (version == "0.5.12")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_a_batch_above_the_sizes_of_the_cpu_runner_is_computed_as_it_is(
    workers: Workers, version: str
) -> None:
    assert seen(workers, version, _CPU, (5, 6), (5, 6, 7), capture_bs=(1, 2)) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("planted", ["padded_batches_declined", "largest_batch_declined"])
def test_a_cpu_runner_that_declines_what_fits_its_sizes_is_found(
    workers: Workers, planted: str
) -> None:
    target = f"tests.targets.sglang.size_mutants:{planted}"
    found = seen(workers, "0.5.23", target, (5, 6, 7), (5, 6, 7, 8), capture_bs=(1, 4))
    assert ("contract", "graph") in found


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
@pytest.mark.parametrize("rank", [0, 3])
def test_one_of_four_ranks_counts_its_own_tokens(workers: Workers, version: str, rank: int) -> None:
    found = seen(
        workers, version, _DECODE, (5, 6, 7, 8), capture_bs=(4, 8), attn_tp_size=4,
        attn_tp_rank=rank,
    )  # fmt: skip
    assert found == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_graph_that_is_not_told_what_its_ranks_share_is_found(workers: Workers) -> None:
    target = "tests.targets.sglang.size_mutants:uncounted"
    found = seen(workers, "0.5.23", target, (5, 6, 7, 8), capture_bs=(4, 8), attn_tp_size=4)
    counts = "global_num_tokens_gpu", "global_num_tokens_for_logprob_gpu"
    assert found == {("contract", name) for name in counts}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_a_row_without_encoder_goes_eager_and_is_no_finding(workers: Workers, version: str) -> None:
    assert seen(workers, version, _DECODE, (5, 6), max_encoder_len=4) == set()


@pytest.mark.parametrize("target", ["sglang-buffers", "sglang-cpu-graph"])
def test_what_is_not_driven_is_said(target: str) -> None:
    said = open_target(target).unsupported(EngineConfig(page_size=16))
    assert said == "page_size=16 is not driven, only 1"


@pytest.mark.parametrize(
    ("ranks", "ladder", "pool", "driven"),
    [(2, (2, 4), 4, True), (2, (3,), 8, False), (4, (8,), 5, True), (4, (8,), 4, False)],
)
def test_a_ladder_that_the_ranks_cannot_share_is_not_driven(
    ranks: int, ladder: tuple[int, ...], pool: int, driven: bool
) -> None:
    config = EngineConfig(attn_tp_size=ranks, capture_bs=ladder, req_pool_size=pool)
    assert (open_target("sglang-buffers").unsupported(config) is None) == driven


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "expected"),
    [(_DECODE, set()), ("tests.targets.sglang.size_mutants:unsliced", {("contract", "seq_lens")})],
    ids=["as released", "unsliced"],
)
def test_tensors_of_another_size_than_the_graph_are_found(
    workers: Workers, target: str, expected: set[tuple[str, str]]
) -> None:
    found = seen(workers, "0.5.23", target, (5, 6), capture_bs=(2, 4))
    assert expected <= found and bool(found) == bool(expected)
