"""vLLM's V1 runner on one of several data-parallel ranks: acquitted, and found where changed."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.released import Workers

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

FLASH_MLA: dict[str, Any] = {
    "page_size": 64, "attention": "mla", "head_dim": 8, "v_head_dim": 4,
}  # fmt: skip


def beside(*others: int) -> Case:
    """A decode of one row after a decode of two, which two other ranks are alike in."""
    steps = (
        ReplayStep(rows=(row(0, 5), row(1, 7))),
        ReplayStep(rows=(row(0, 6),), finish=(1,), other_ranks=others),
    )
    return with_ranks(steps)


def row(request: int, length: int) -> BatchRow:
    return BatchRow(request=request, seq_len=length)


def with_ranks(steps: tuple[ReplayStep, ...], **settings: Any) -> Case:
    sizes = {"capture_bs": (1, 2, 4), "page_size": 16, "max_context_len": 32, **settings}
    config = EngineConfig(dp_size=3, dp_rank=1, **sizes)
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.parametrize("version", ["0.17.1", "0.33.0"])
@pytest.mark.parametrize("others", [(0, 0), (4, 0), (3, 2), (8, 0)], ids=str)
def test_a_rank_replays_the_graph_of_the_largest_one(
    vllm: Workers, version: str, others: tuple[int, int]
) -> None:
    assert vllm.findings(version, beside(*others), "vllm-fa") == ()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("own_size", ("contract", "graph")),
        ("own_counts", ("contract", "num_tokens_across_dp")),
    ],
)
def test_a_changed_exchange_is_found(vllm: Workers, name: str, found: tuple[str, str]) -> None:
    target = f"tests.targets.vllm.rank_mutants:{name}"
    seen = vllm.findings("0.33.0", beside(4, 0), target)
    assert found in {(each.oracle, each.buffer) for each in seen}


@pytest.mark.parametrize(("version", "refused"), [("0.16.0", True), ("0.17.1", False)])
def test_the_dummy_batch_of_an_idle_rank_is_padded_from_0_17_on(
    vllm: Workers, version: str, refused: bool
) -> None:
    steps = (ReplayStep(mode="idle", other_ranks=(3, 0)),)
    seen = vllm.findings(version, with_ranks(steps, **FLASH_MLA), "vllm-flashmla")
    said = " ".join(each.message for each in seen)
    assert ("tokens not padded correctly" in said) == refused
