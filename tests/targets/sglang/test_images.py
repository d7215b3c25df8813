"""Prefill graphs of models that take images: embeddings, and positions in three rows."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import Rows, prefill_case

_MUTANTS = "tests.targets.sglang.image_mutants"

RELEASES = [
    ("piecewise", "0.5.9"),
    ("piecewise", "0.5.21"),
    ("breakable", "0.5.16"),
    ("breakable", "0.5.23"),
    ("full", "0.5.23"),
]
# Requests with even names begin with an image.
BESIDE_TEXT: tuple[Rows, ...] = (((0, 0, 5), (1, 0, 3)), ((2, 0, 2), (3, 1, 1)), ((2, 2, 4),))
HEALTHY: dict[str, tuple[tuple[Rows, ...], dict[str, Any]]] = {
    "images beside text": (BESIDE_TEXT, {"image_len": 3}),
    "text behind an image": ((((0, 0, 4),), ((1, 0, 3),), ((2, 0, 7),)), {"image_len": 3}),
    "an image in several steps": ((((0, 0, 3),), ((0, 3, 2), (2, 0, 5)), ((0, 5, 3), (2, 5, 2))),
        {"image_len": 9}),
    "half precision": ((((0, 0, 5),), ((0, 5, 3), (1, 0, 2))), {"dtype": "float16",
        "image_len": 2}),
}  # fmt: skip


def image_case(kind: str, *batches: Rows, **settings: Any) -> Any:
    slots = {"prefill_slots": 3} if kind == "full" else {}
    return prefill_case(kind, *batches, **{"image_len": 3, **slots, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "version"), RELEASES)
def test_a_healthy_engine_is_silent(workers: Workers, kind: str, version: str) -> None:
    found = {
        name: workers.findings(
            version, image_case(kind, *batches, **settings), f"sglang-{kind}-prefill"
        )
        for name, (batches, settings) in HEALTHY.items()
    }
    assert found == dict.fromkeys(HEALTHY, ())


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mutant", "findings"),
    [
        ("full", "leaves_embeddings", {("contract", "input_embeds"), ("reference", "attention")}),
        (
            "breakable",
            "keeps_positions",
            {("contract", "mrope_positions.1"), ("contract", "mrope_positions.2")},
        ),
        ("breakable", "takes_text_positions", {("reference", "attention")}),
    ],
)
def test_a_changed_line_is_found_out(
    workers: Workers, kind: str, mutant: str, findings: set[tuple[str, str]]
) -> None:
    found = workers.findings("0.5.23", image_case(kind, *BESIDE_TEXT), f"{_MUTANTS}:{mutant}")
    assert findings <= {(one.oracle, one.buffer.removeprefix("buffers.")) for one in found}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_breakable_graph_of_0_5_15_reads_no_embeddings(workers: Workers) -> None:
    """sglang PR 30765."""
    case = image_case("breakable", *BESIDE_TEXT)
    found = workers.findings("0.5.15", case, "sglang-breakable-prefill")
    shown = {(one.oracle, one.buffer) for one in found}
    assert ("reference", "attention") in shown
    assert not {buffer for oracle, buffer in shown if oracle == "contract"}, "the buffer is right"


@pytest.mark.sglang
@pytest.mark.slow
def test_a_breakable_graph_of_0_5_13_raises_for_every_model_with_images(workers: Workers) -> None:
    found = workers.findings(
        "0.5.13", image_case("breakable", ((0, 0, 5),)), "sglang-breakable-prefill"
    )
    assert ["Boolean value of Tensor" in one.message for one in found] == [True]


def test_images_are_not_driven_beside_a_window() -> None:
    config = EngineConfig(modes=("prefill",), capture_tokens=(4,), prefill_runner="full")
    assert open_target("sglang-full-prefill").unsupported(config) is None
    assert (
        open_target("builtin").unsupported(
            EngineConfig(modes=("prefill",), capture_tokens=(4,), image_len=2)
        )
        == "image_len=2 is not driven"
    )
