"""Preparations of metadata that a server has captured, on released sglang."""

from __future__ import annotations

from functools import partial

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import NEWEST, found, step
from tests.targets.sglang.released import Workers

MUTANTS = "tests.targets.sglang.metadata_glue_mutants"

verify = partial(step, new=2, mode="target_verify")

# Full graphs of two sizes with rows that grow and change places, and a padded one between them.
DECODES = (
    step((0, 3), (1, 20)),
    step((1, 21)),
    step((0, 4), (1, 22), (2, 17)),
    step((2, 18), (0, 31)),
)
VERIFIES = (
    verify((0, 4), (1, 20)),
    verify((1, 21)),
    verify((0, 6), (1, 23), (2, 17)),
    verify((2, 19), (0, 31)),
)


def case(*steps: ReplayStep, page_size: int = 1, **settings: int) -> Case:
    config = EngineConfig(
        modes=(steps[0].mode,),
        capture_bs=(1, 2, 4),
        page_size=page_size,
        max_context_len=max(32, page_size),
        kv_pool_pages=256 // page_size + 8,
        **settings,  # type: ignore[arg-type]
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


def least_page(target: str) -> int:
    return int(min(open_target(target).capabilities.page_sizes))


BACKENDS = ("aiter", "fa3", "flashmla", "nsa", "triton", "trtllm-mha", "trtllm-mla")
RUNS = [
    *((f"sglang-{backend}-glue", DECODES) for backend in BACKENDS),
    *((f"sglang-{backend}-glue-verify", VERIFIES) for backend in BACKENDS if backend != "aiter"),
]


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("target", "steps"), RUNS)
def test_a_captured_preparation_serves_every_batch_that_fills_its_graph(
    workers: Workers, target: str, steps: tuple[ReplayStep, ...]
) -> None:
    attention = open_target(target).capabilities.attentions[0]
    latent = {"attention": "mla", "head_dim": 16, "v_head_dim": 8} if attention == "mla" else {}
    of = case(*steps, page_size=least_page(target), **latent)  # type: ignore[arg-type]
    assert found(workers, NEWEST, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", "0.5.21"])
def test_older_releases_have_such_graphs_too(workers: Workers, version: str) -> None:
    assert found(workers, version, case(*DECODES), "sglang-fa3-glue") == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_the_mask_of_a_verify_stays_that_of_the_captured_batch_on_aiter(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-glue-frozen-inputs.md."""
    shown = found(workers, NEWEST, case(*VERIFIES), "sglang-aiter-glue-verify")
    assert ("metadata", "custom_mask") in shown
    assert found(workers, NEWEST, case(*VERIFIES), "sglang-aiter-verify") == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_verify_of_more_rows_than_graphs_have_gets_a_mask_of_its_own(workers: Workers) -> None:
    of = case(verify(*((request, 28) for request in range(5))), verify((0, 30), (5, 9)))
    assert found(workers, NEWEST, of, "sglang-triton-glue-verify") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "triton"])
def test_write_slots_of_a_window_stay_those_of_the_captured_batch(
    workers: Workers, backend: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-glue-frozen-inputs.md."""
    of = case(step((0, 2)), step((1, 5), finish=(0,)), swa_window=1)
    assert ("metadata", "swa_out_cache_loc") in found(workers, NEWEST, of, f"sglang-{backend}-glue")
    assert (
        found(workers, NEWEST, of, f"sglang-{backend}")
        - {
            ("metadata", "window_kv_indptr"),  # PR 32087, open too
            ("computes", "swa_attention"),
        }
        == set()
    )


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("pages_up_to_the_hosts_longest", ("metadata", "page_table")),
        ("rows_of_the_batch_itself", ("metadata", "page_table")),
        ("one_graph_for_all_sizes", ("metadata", "page_table")),
        ("a_captured_preparation_is_not_replayed", ("metadata", "page_table")),
    ],
)
def test_a_planted_bug_of_a_captured_preparation_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, case(*DECODES), f"{MUTANTS}:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_such_graphs_is_refused_in_one_line(workers: Workers) -> None:
    from fuzzgraph.errors import FuzzGraphError

    with pytest.raises(FuzzGraphError, match=r"0\.5\.13 captures no preparation of metadata"):
        workers.findings("0.5.13", case(*DECODES), "sglang-fa3-glue")
