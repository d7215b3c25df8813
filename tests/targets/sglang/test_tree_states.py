"""Layers with a state verify trees of drafts: the state of each draft goes on from its parent's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import verifies, verify
from tests.targets.sglang.released import Workers

_MUTANTS = "tests.targets.sglang.tree_state_mutants:"


def trees(*, seed: int = 0, **settings: Any) -> Case:
    """Two rows in a full graph, then others; each step has trees of its own."""
    steps = (
        verify((0, 9), (1, 20), new=5),
        verify((0, 14), (1, 24), new=5),
        verify((1, 27), (0, 16), new=5),
    )
    shape = {"capture_bs": (2,), "spec_topk": 2, "spec_steps": 3, "draft_tokens": 5, "page_size": 1}
    case = verifies(*steps, **{**shape, "kv_pool_pages": 100, **settings})
    return msgspec.structs.replace(case, seed=seed)


def oracles(workers: Workers, version: str, case: Case, target: str) -> set[tuple[str, str]]:
    return {
        (one.oracle, one.buffer.rpartition(".")[2])
        for one in workers.findings(version, case, target)
    }


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "version"),
    [
        *(("gdn", version) for version in ("0.5.13", "0.5.16", "0.5.20", "0.5.23")),
        *(("mamba", version) for version in ("0.5.13", "0.5.16", "0.5.20", "0.5.23")),
        *(("kda", version) for version in ("0.5.17", "0.5.20", "0.5.23")),
    ],
)
def test_each_draft_goes_on_from_its_parent(workers: Workers, layer: str, version: str) -> None:
    for seed in (1, 2):
        case = trees(seed=seed)
        assert oracles(workers, version, case, f"sglang-{layer}-verify") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "seen"),
    [
        ("gdn_siblings_as_children", ("reference", "gated_delta")),
        ("kda_tokens_before_for_parents", ("reference", "channel_delta")),
        ("mamba_windows_the_other_way_round", ("reference", "conv[0]")),
        ("gdn_states_of_the_token_before", ("reference", "gated_delta")),
        ("mamba_states_of_a_chain", ("reference", "recurrent")),
        ("gdn_trees_without_siblings", ("reference", "gated_delta")),
        ("kda_commits_as_of_a_chain", ("reference", "temporal")),
    ],
)
def test_one_changed_line_is_found_out(
    workers: Workers, mutant: str, seen: tuple[str, str]
) -> None:
    assert seen in oracles(workers, "0.5.23", trees(seed=1), _MUTANTS + mutant)


@pytest.mark.sglang
@pytest.mark.slow
def test_rows_that_pad_for_other_ranks_are_written_behind_the_table(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-padded-for-ranks.md."""
    step = verify((0, 8), new=4)
    step = msgspec.structs.replace(step, via="eager", other_ranks=(2,))
    case = verifies(step, spec_topk=2, spec_steps=2, draft_tokens=4, capture_bs=(1,), dp_size=2)
    found = oracles(workers, "0.5.23", case, "sglang-gdn-verify")
    assert ("footprint", "retrieve_parent_token_ptr") in found


@pytest.mark.sglang
@pytest.mark.parametrize("target", ["sglang-gdn-verify", "sglang-kda-verify"])
def test_a_rank_without_requests_has_no_trees(workers: Workers, target: str) -> None:
    """What pads it is the latent finding of reports/findings/sglang-gdn-padded-rows.md."""
    idle = ReplayStep(mode="idle", other_ranks=(1,))
    shape = {"spec_topk": 2, "spec_steps": 2, "draft_tokens": 4, "capture_bs": (1, 2)}
    case = verifies(
        verify((0, 8), new=4), idle, verify((0, 9), new=4), dp_size=2, kv_pool_pages=80, **shape
    )
    assert {oracle for oracle, _ in oracles(workers, "0.5.23", case, target)} <= {"noninterference"}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_whose_worker_takes_chains_alone_skips_the_case(workers: Workers) -> None:
    said = workers.skipped("0.5.12", trees(), "sglang-gdn-verify")
    assert (
        said == "sglang 0.5.12 commits states behind trees in another worker: spec_topk must be 1"
    )


@pytest.mark.parametrize(
    "target", ["sglang-lightning-verify", "sglang-short-conv-verify", "vllm-gdn-verify"]
)
def test_trees_of_other_layers_are_not_driven(target: str) -> None:
    config = EngineConfig(modes=("target_verify",), recurrent_state=True, spec_topk=2, page_size=16)
    assert "spec_topk=2" in (open_target(target).unsupported(config) or "")
