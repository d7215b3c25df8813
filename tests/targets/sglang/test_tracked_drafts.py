"""States that the prefix cache keeps beside drafts, on released sglang: behind verifies, and where
draft models are told of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.hybrid_cases import NEWEST, found, verifies, verify
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_drafts import extend_case

GDN = "sglang-gdn-verify"
EXTENDS, LAYERS = "sglang-triton-draft-extend", "sglang-triton-multi-layer"
_MUTANTS = "tests.targets.sglang.tracked_mutants:"

# Behind 16 tokens rows cross a boundary with their last token, in the middle, and not at all; in
# the second step one whose drafts reached it does not, because the model rejects them.
CROSSED = (
    verify((0, 16), (1, 18), (2, 9), (3, 16)),
    verify((0, 19), (1, 20), (2, 12), (3, 17)),
    verify((0, 22), (1, 21), (2, 15), (3, 18)),
    verify((2, 17), (3, 20), (1, 23), (0, 25)),
)


def kept(**settings: Any) -> Case:
    return verifies(*CROSSED, **{"state_track_interval": 16, "capture_bs": (4,), **settings})


def told(**settings: Any) -> Case:
    """Full graphs, then one with a padded row."""
    given = {"draft_tokens": 3, "max_context_len": 64, "kv_pool_pages": 400, "capture_bs": (2,)}
    return extend_case((1, 3), (2, 3), (2,), **{**given, "state_track_interval": 4, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.10", "0.5.13", "0.5.19", NEWEST])
def test_a_verify_keeps_the_state_behind_the_boundary_that_it_crosses(
    workers: Workers, version: str
) -> None:
    assert found(workers, version, kept(), GDN) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "target", ["sglang-kda-verify", "sglang-lightning-verify", "sglang-mamba-verify"]
)
def test_so_do_verifies_of_other_layers(workers: Workers, target: str) -> None:
    assert found(workers, NEWEST, kept(), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_before_0_5_10_no_commit_of_kept_states_is_driven(workers: Workers) -> None:
    said = workers.skipped("0.5.9", kept(), GDN)
    assert "state_track_interval must be 0" in said


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("step_before_the_boundary", ("computes", "temporal")),
        ("step_of_the_last_token", ("computes", "temporal")),
        ("every_row_is_kept", ("writes", "temporal")),
        ("kept_where_a_neighbour_is", ("writes", "temporal")),
        ("nothing_is_kept", ("computes", "temporal")),
    ],
)
def test_a_wrong_state_that_is_kept_behind_a_verify_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, kept(), f"{_MUTANTS}{planted}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "stale"),
    [
        (EXTENDS, set()),
        ("sglang-eagle-draft-extend", set()),
        (LAYERS, {"req_pool_indices"}),  # reports/findings/sglang-multi-layer-req-pool-indices.md
    ],
)
def test_a_draft_model_is_told_where_states_are_kept(
    workers: Workers, target: str, stale: set[str]
) -> None:
    seen = found(workers, NEWEST, told(), target)
    assert {buffer for _, buffer in seen} == stale


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    ["rows_of_requests_for_slots", "slots_stay", "padded_rows_keep_slots"],
)
@pytest.mark.parametrize("suffix", ["", "_of_layers"])
def test_wrong_slots_that_a_draft_model_is_told_are_found(
    workers: Workers, planted: str, suffix: str
) -> None:
    seen = found(workers, NEWEST, told(), f"{_MUTANTS}{planted}{suffix}")
    assert ("metadata", "mamba_track_indices") in seen


@pytest.mark.sglang
@pytest.mark.slow
def test_up_to_0_5_21_it_is_not_told(workers: Workers) -> None:
    assert "state_track_interval must be 0" in workers.skipped("0.5.13", told(), EXTENDS)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("target", "of"), [(GDN, kept()), (EXTENDS, told())])
def test_intervals_shorter_than_drafts_have_no_server(
    workers: Workers, target: str, of: Case
) -> None:
    config = msgspec.structs.replace(of.config, draft_tokens=4, state_track_interval=2, page_size=1)
    said = workers.unserved(NEWEST, config, target)
    assert said == "server_args.py refuses mamba_track_interval=2 below 4 drafts"
