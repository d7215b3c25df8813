"""A model of one Mamba2 layer on released vLLM's V1 runner: state slots, states and outputs."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
TARGET = "vllm-mamba"
PROMPTS = "vllm-mamba-prompt"
NEWEST = "0.33.0"
IDLE = ReplayStep(mode="idle")


def decode(*lengths: tuple[int, int], finish: tuple[int, ...] = ()) -> ReplayStep:
    """One step; a request and its length for each row."""
    rows = tuple(BatchRow(request=request, seq_len=length) for request, length in lengths)
    return ReplayStep(rows=rows, finish=finish)


def case(*steps: ReplayStep, **settings: Any) -> Case:
    named = {"capture_bs": (2, 4), "page_size": 16, "max_context_len": 48, **settings}
    config = EngineConfig(recurrent_state=True, **named)
    return validate(Case(schema_version=1, config=config, steps=steps))


def found(vllm: Workers, version: str, of: Case, target: str = TARGET) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding, buffers of the cache as `cache`."""
    return {
        (one.clause, "cache" if "kv_caches" in one.buffer else one.buffer)
        for one in vllm.findings(version, of, target)
    }


# Rows in the engine's order: the fourth request takes the place of the first, which has left.
MOVED = (
    decode((0, 5), (1, 16), (2, 31)),
    decode((1, 17), (2, 32), finish=(0,)),
    decode((2, 33), (3, 48), (1, 18)),
)
PADDED_TWICE = decode((0, 5), (1, 6), (2, 7)), decode((0, 6), (1, 7), (2, 8))
# The last row is left by a request that was new a step ago.
FULL_THEN_PADDED = (
    decode((0, 5), (1, 6), (2, 7), (3, 8)),
    decode((0, 6), (1, 7), (2, 8), finish=(3,)),
)
ONE_TOKEN = (decode((0, 1), (1, 6)),)
SERVED_THEN_IDLE = decode((0, 4), (1, 5)), decode((0, 5), (1, 6)), IDLE


@pytest.mark.parametrize("steps", [MOVED, PADDED_TWICE, SERVED_THEN_IDLE])
def test_states_follow_their_requests(vllm: Workers, steps: tuple[ReplayStep, ...]) -> None:
    assert found(vllm, NEWEST, case(*steps)) == set()


def test_a_preempted_request_resumes_with_another_slot(vllm: Workers) -> None:
    steps = (
        decode((0, 16), (1, 3)),
        decode((1, 4), finish=(0,)),
        decode((2, 30), (1, 5)),
        decode((0, 17), (1, 6)),
    )
    assert found(vllm, NEWEST, case(*steps)) == set()


@pytest.mark.parametrize(("version", "foreign"), [("0.17.1", True), (NEWEST, False)])
def test_an_idle_rank_of_0_17_1_advances_states_of_requests(
    vllm: Workers, version: str, foreign: bool
) -> None:
    assert (("writes", "cache") in found(vllm, version, case(*SERVED_THEN_IDLE))) == foreign


@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
def test_an_idle_rank_after_a_first_token_advances_states_of_requests(
    vllm: Workers, version: str
) -> None:
    """Open in 0.33.0; see reports/findings/vllm-idle-stale-prefilling.md."""
    seen = found(vllm, version, case(decode((0, 4), (1, 5)), IDLE))
    assert {("writes", "cache"), ("metadata", "state_indices")} <= seen


@pytest.mark.parametrize(("version", "left"), [("0.20.2", True), ("0.25.1", False)])
def test_the_last_token_of_a_prompt_of_0_20_2_misses_its_state(
    vllm: Workers, version: str, left: bool
) -> None:
    assert (("computes", "cache") in found(vllm, version, case(decode((0, 5), (1, 6))))) == left


@pytest.mark.parametrize(("version", "left"), [("0.17.1", False), (NEWEST, True)])
def test_slots_of_a_batch_with_a_prompt_of_one_token_are_not_written(
    vllm: Workers, version: str, left: bool
) -> None:
    """Open in 0.33.0; see reports/findings/vllm-one-token-prompt.md."""
    assert (
        ("metadata", "state_indices") in found(vllm, version, case(*ONE_TOKEN), PROMPTS)
    ) == left


def test_a_prompt_of_one_token_of_0_17_1_begins_with_a_state_of_another_request(
    vllm: Workers,
) -> None:
    assert ("reads", "recurrent") in found(vllm, "0.17.1", case(*ONE_TOKEN), PROMPTS)


def test_without_a_graph_a_prompt_of_one_token_begins_with_nothing(vllm: Workers) -> None:
    """Above the ladder the layer's kernels for prefill run."""
    alone = case(decode((0, 1), (1, 6), (2, 1)), capture_bs=(2,))
    assert found(vllm, NEWEST, alone, PROMPTS) == set()


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("stale_states", ("metadata", "state_indices")),
        ("states_elsewhere", ("computes", "cache")),
    ],
)
def test_a_planted_bug_of_the_builder_is_found(
    vllm: Workers, planted: str, named: tuple[str, str]
) -> None:
    target = f"tests.targets.vllm.recurrent_mutants:{planted}"
    assert named in found(vllm, NEWEST, case(*FULL_THEN_PADDED, decode((0, 7), (1, 8))), target)


def test_releases_before_0_17_stage_slots_otherwise(vllm: Workers) -> None:
    said = "vLLM 0.15.1 has no 'state_indices_tensor_d' in its Mamba2AttentionMetadata"
    with pytest.raises(AdapterUnavailable, match=said):
        vllm.findings("0.15.1", case(*PADDED_TWICE), TARGET)


def test_a_model_with_attention_is_not_driven() -> None:
    config = EngineConfig(page_size=16)
    refused = open_target(TARGET).unsupported(config)
    assert refused == "the model always has a recurrent layer: recurrent_state must be true"


MAMBA1 = "vllm-mamba1"


@pytest.mark.parametrize("steps", [MOVED, FULL_THEN_PADDED, SERVED_THEN_IDLE])
@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
def test_states_of_mamba1_follow_their_requests(
    vllm: Workers, version: str, steps: tuple[ReplayStep, ...]
) -> None:
    assert found(vllm, version, case(*steps), MAMBA1) == set()


def test_states_of_mamba1_follow_their_requests_in_0_17_1(vllm: Workers) -> None:
    assert found(vllm, "0.17.1", case(*MOVED), MAMBA1) == set()


def test_the_last_token_of_a_prompt_of_0_20_2_misses_its_state_of_mamba1(vllm: Workers) -> None:
    """PR 42430, as with Mamba2; the eager run computes a prompt, by the model of its kernel."""
    seen = found(vllm, "0.20.2", case(*FULL_THEN_PADDED), MAMBA1)
    assert {("metadata", "state_indices"), ("computes", "cache")} <= seen
    assert not {clause for clause, _ in seen} & {"survives"}


@pytest.mark.parametrize("planted", ["stale_states_of_mamba1", "states_one_late_of_mamba1"])
def test_a_planted_bug_of_mamba1_is_found(vllm: Workers, planted: str) -> None:
    target = f"tests.targets.vllm.recurrent_mutants:{planted}"
    seen = found(vllm, NEWEST, case(*FULL_THEN_PADDED), target)
    assert ("metadata", "state_indices") in seen
