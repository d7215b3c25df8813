"""Graphs of released sglang's vision encoders."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.released import Workers, generated

TARGET = "sglang-vit"
MUTANTS = "tests.targets.sglang.vit_mutants"
NEWEST = "0.5.23"
MENDED = ["0.5.19", "0.5.20", "0.5.21", "0.5.22", NEWEST]
"""Releases whose graphs are told apart by where images begin."""
BEFORE = ["0.5.12", "0.5.16", "0.5.18"]


def images(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Batches of images of so many patches, each with requests of its own."""
    steps = tuple(
        ReplayStep(
            mode="prefill",
            rows=tuple(
                BatchRow(request=100 * at + row, seq_len=patches, new_tokens=patches)
                for row, patches in enumerate(lens)
            ),
            finish=tuple(100 * (at - 1) + row for row in range(len(batches[at - 1]))) if at else (),
        )
        for at, lens in enumerate(batches)
    )
    given: dict[str, Any] = {
        "modes": ("prefill",), "capture_bs": (), "capture_tokens": (4, 8, 70),
        "max_context_len": 80, "kv_pool_pages": 200, "num_q_heads": 2, "num_kv_heads": 2,
        "head_dim": 16, "v_head_dim": 16, "image_encoder": True,
    }  # fmt: skip
    config = EngineConfig(**{**given, **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


SEEN = images((8,), (4, 4), (70,), (35, 35), (4,), (2, 2), (8,))
OTHER_BOUNDARIES = images((3, 5), (8,))
SMALL_AGAIN = images((70,), (4,))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", MENDED)
def test_a_cached_image_gets_the_features_of_the_next_one(workers: Workers, version: str) -> None:
    """Open in 0.5.23; see reports/findings/sglang-vit-cached-features.md."""
    found = workers.findings(version, images((8,), (8,)), TARGET)
    assert [(each.oracle, each.buffer) for each in found] == [("history", "embedding_cache[0]")]
    assert workers.findings(version, SEEN, f"{MUTANTS}:mended") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", [*BEFORE, *MENDED])
def test_graphs_are_shared_by_images_with_other_boundaries_up_to_0_5_18(
    workers: Workers, version: str
) -> None:
    """sglang PR 37043."""
    found = {each.buffer for each in workers.findings(version, OTHER_BOUNDARIES, TARGET)}
    assert ("cu_seqlens" in found) == (version in BEFORE)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", [*BEFORE, *MENDED])
def test_positions_are_written_where_no_graph_reads_them_up_to_0_5_18(
    workers: Workers, version: str
) -> None:
    """sglang issue 29216."""
    found = workers.findings(version, SMALL_AGAIN, f"{MUTANTS}:mended")
    freed = [each for each in found if "sin_cos_ws" in each.message]
    assert bool(freed) == (version in BEFORE)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("patches_of_the_capture", "attention"),
        ("positions_of_the_capture", "attention"),
        ("sines_of_the_capture", "attention"),
        ("layouts_share_a_graph", "cu_seqlens"),
        ("longest_image_cut", "attention"),
        ("layers_by_windows", "attention"),
        ("bounds_without_the_longest", "max_seqlen_q"),
        ("layouts_share_a_graph_of_fa3", "cu_seqlens"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, output: str) -> None:
    found = workers.findings(NEWEST, SEEN, f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, "sglang-vit-fa3"])
@pytest.mark.parametrize("version", MENDED)
def test_a_layer_sees_windows_of_images(workers: Workers, version: str, target: str) -> None:
    """As Qwen2.5-VL's do; features are put back into the order of the patches, in new memory."""
    case = images((8,), (4, 4), (70,), (8,), attention_chunk_size=5)
    assert workers.findings(version, case, target) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "planted", ["windows_are_whole_images", "features_in_the_order_of_windows"]
)
def test_a_planted_bug_of_windows_is_found(workers: Workers, planted: str) -> None:
    case = images((8,), (4, 4), (70,), (8,), attention_chunk_size=5)
    found = workers.findings(NEWEST, case, f"{MUTANTS}:{planted}")
    assert "attention" in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("mended", ["mended", "mended_fa3"])
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_generated_images_are_silent_where_the_cache_owns_its_features(
    workers: Workers, version: str, mended: str
) -> None:
    for case in generated(TARGET, lambda config: True, blocks=4, each=20):
        assert workers.findings(version, case, f"{MUTANTS}:{mended}") == ()
