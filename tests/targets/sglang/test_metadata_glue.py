"""Preparations of metadata that a server has captured, on released sglang."""

from __future__ import annotations

from functools import partial

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import NEWEST, found, step
from tests.targets.sglang.released import Workers

MUTANTS = "tests.targets.sglang.metadata_glue_mutants"
NGRAM = "tests.targets.sglang.ngram_mutants"

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


three = partial(step, new=3, mode="target_verify")

# Trees of a root and two drafts, in full graphs and a padded one.
TREES = (
    three((0, 5), (1, 20)),
    three((1, 22)),
    three((0, 6), (1, 24), (2, 17)),
    three((2, 19), (0, 31)),
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


def case_of(target: str, *steps: ReplayStep, **settings: int) -> Case:
    """With the attention of the target and its smallest pages."""
    if open_target(target).capabilities.attentions[0] == "mla":
        settings |= {"attention": "mla", "head_dim": 16, "v_head_dim": 8}  # type: ignore[dict-item]
    return case(*steps, page_size=least_page(target), **settings)


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
    assert found(workers, NEWEST, case_of(target, *steps), target) == set()


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


def trees(*steps: ReplayStep, **settings: int) -> Case:
    branches = {"spec_topk": 2, "spec_steps": 2, "draft_tokens": 3}
    return case(*(steps or TREES), **{"ngram_drafts": True, **branches, **settings})  # type: ignore[arg-type]


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "flashmla", "nsa", "trtllm-mha", "trtllm-mla"])
def test_a_backend_that_reads_no_mask_verifies_chains_of_ngram_drafts(
    workers: Workers, backend: str
) -> None:
    target = f"sglang-{backend}-glue-verify"
    of = case_of(target, *VERIFIES, ngram_drafts=True)
    assert found(workers, NEWEST, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_the_mask_of_an_ngram_verify_stays_that_of_the_captured_batch_on_triton(
    workers: Workers, version: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-glue-frozen-inputs.md."""
    target = "sglang-triton-glue-verify"
    seen = found(workers, version, trees(), target)
    freed = {each for each in seen if each[0] == "reads" and each[1].endswith(" in _tree_mask")}
    assert len(freed) == 1
    assert seen - freed == {("computes", "attention")}
    assert found(workers, version, trees(ngram_drafts=False), target) == set()
    without = f"{NGRAM}:triton_without_captured_preparations"
    assert found(workers, version, trees(), without) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_fa3_reads_behind_the_captured_mask_of_an_ngram_verify(
    workers: Workers, version: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-glue-frozen-inputs.md."""
    target = "sglang-fa3-glue-verify"
    assert found(workers, version, trees(), target) == {("survives", "")}
    assert found(workers, version, trees(ngram_drafts=False), target) == set()
    assert found(workers, version, trees(), f"{NGRAM}:fa3_without_captured_preparations") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "triton"])
def test_ngram_masks_written_in_place_are_those_of_each_batch(
    workers: Workers, backend: str
) -> None:
    assert found(workers, NEWEST, trees(), f"{NGRAM}:{backend}_repaired") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("offsets_of_masks_without_drafts", ("metadata", "mask_indptr")),
        ("mask_of_the_first_cells_alone", ("computes", "attention")),
        ("captured_without_a_mask", ("computes", "attention")),
        ("one_query_for_each_branch", ("metadata", "qo_indptr")),
        ("each_draft_sees_all", ("computes", "attention")),
        ("cells_of_padding_begin_too_early", ("computes", "attention")),
        ("drafts_in_the_order_of_their_slots", ("metadata", "page_table")),
    ],
)
def test_a_planted_bug_of_an_ngram_verify_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, trees(), f"{NGRAM}:{planted}")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"page_size": 16}, "_handle_ngram, refuses spec_topk=2 with page_size=16"),
        ({"swa_window": 4, "virtual_pages": True, "spec_topk": 1}, "virtual_pages"),
    ],
)
def test_what_no_server_with_ngram_speculation_has_is_refused(
    settings: dict[str, int], reason: str
) -> None:
    config = trees(**settings).config
    assert reason in (open_target("sglang-fa3-glue-verify").unsupported(config) or "")


def test_only_verifies_behind_captured_preparations_draw_ngram_drafts() -> None:
    assert open_target("sglang-aiter-glue-verify").capabilities.ngram_drafts
    assert not open_target("sglang-aiter-glue").capabilities.ngram_drafts
    assert not open_target("sglang-aiter-verify").capabilities.ngram_drafts


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
def test_a_captured_preparation_of_the_batchs_own_rows_reads_freed_memory(workers: Workers) -> None:
    seen = found(workers, NEWEST, case(*DECODES), f"{MUTANTS}:rows_of_the_batch_itself")
    assert "reads" in {clause for clause, _ in seen}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_such_graphs_is_refused_in_one_line(workers: Workers) -> None:
    from fuzzgraph.errors import FuzzGraphError

    with pytest.raises(FuzzGraphError, match=r"0\.5\.13 captures no preparation of metadata"):
        workers.findings("0.5.13", case(*DECODES), "sglang-fa3-glue")
