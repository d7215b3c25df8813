"""Uno's drafts, which have an adapter, and its verifies, which have none, on released sglang."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, ReplayStep
from fuzzgraph.errors import FuzzGraphError
from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_dflash import BLOCKS, block, case

TARGET = "sglang-uno"
MUTANTS = "tests.targets.sglang.uno_mutants"

# Graphs of both sizes, full and padded, one after the other.
BOTH_SIZES = (*BLOCKS, block((0, 27)), block((2, 24), (0, 30)), block((0, 31)))


def uno(*steps: ReplayStep, drafts: bool = True, **settings: Any) -> Case:
    blocks = "causal" if drafts else "none"
    given = {"capture_bs": (1, 4), "draft_adapter": True, "cpu_seq_lens": False, **settings}
    return case(*steps, blocks=blocks, **given)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", NEWEST])
@pytest.mark.parametrize("drafts", [True, False])
def test_drafts_have_the_adapter_and_verifies_have_none(
    workers: Workers, version: str, drafts: bool
) -> None:
    assert found(workers, version, uno(*BOTH_SIZES, drafts=drafts), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "drafts", "named"),
    [
        ("drafts_without_the_adapter", True, ("computes", "lora")),
        ("verifies_with_the_adapter", False, ("computes", "lora")),
        ("the_first_token_has_the_adapter_too", True, ("computes", "lora")),
        ("routing_of_the_largest_graph", True, ("computes", "lora")),
    ],
)
def test_a_planted_bug_of_unos_graphs_is_found(
    workers: Workers, planted: str, drafts: bool, named: tuple[str, str]
) -> None:
    shown = found(workers, NEWEST, uno(*BOTH_SIZES, drafts=drafts), f"{MUTANTS}:{planted}")
    assert named in shown


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_uno_is_refused_in_one_line(workers: Workers) -> None:
    with pytest.raises(FuzzGraphError, match=r"0\.5\.19 has no UnoDecodeCudaGraphRunner"):
        workers.findings("0.5.19", uno(*BLOCKS), TARGET)
