"""What sglang keeps of exchanges between experts: right in releases, found where it is changed."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets.sglang.expert_exchange import DIRTY, LOW_LATENCY
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_two_batches import cut_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.exchange_mutants:"
NEWEST = "0.5.23"
FLAG = "dispatched_as_prompts"


def _beside_ranks() -> Case:
    """A step without a graph, whose batch is padded for the larger rank."""
    config = EngineConfig(capture_bs=(2, 4), max_context_len=32, dp_size=2)
    rows = [(BatchRow(request=0, seq_len=length),) for length in (5, 6)]
    steps = (
        ReplayStep(rows=rows[0], other_ranks=(3,)),
        ReplayStep(rows=rows[1], other_ranks=(3,), via="eager"),
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


def _named(workers: Workers, case: Case, target: str) -> set[tuple[str, str]]:
    return {(each.oracle, each.buffer) for each in workers.findings(NEWEST, case, target)}


@pytest.mark.parametrize("version", ["0.5.12", "0.5.17", NEWEST])
def test_the_flag_of_a_forward_without_a_graph_is_its_batchs(
    workers: Workers, version: str
) -> None:
    assert workers.findings(version, _beside_ranks(), "sglang-fa3") == ()


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("replay_without_its_mode", {LOW_LATENCY, DIRTY}),
        ("memory_of_prompts", {DIRTY}),
    ],
)
def test_a_replay_that_finds_what_prompts_have_left_is_found(
    workers: Workers, name: str, buffers: set[str]
) -> None:
    found = _named(workers, cut_case(), f"{MUTANTS}{name}")
    assert {("contract", buffer) for buffer in buffers} == found


def test_a_flag_that_an_earlier_batch_has_set_is_found(workers: Workers) -> None:
    target = f"{MUTANTS}flag_of_an_earlier_batch"
    assert ("contract", FLAG) in _named(workers, _beside_ranks(), target)


@pytest.mark.parametrize(
    ("name", "target", "ranks"),
    [
        ("drafts_without_their_mode", "sglang-eagle-draft", True),
        ("extended_drafts_without_their_mode", "sglang-eagle-draft-extend", True),
        ("layers_without_their_mode", "sglang-multi-layer-deepep", False),
    ],
)
def test_drawn_drafts_find_a_mode_that_is_not_set(
    workers: Workers, name: str, target: str, ranks: bool
) -> None:
    def wanted(config: EngineConfig) -> bool:
        return config.dp_size > 1 or not ranks

    drawn = generated(target, wanted, blocks=20, each=60, enough=6)
    found: set[Any] = set()
    for case in drawn:
        found |= _named(workers, case, f"{MUTANTS}{name}")
    assert ("contract", LOW_LATENCY) in found
