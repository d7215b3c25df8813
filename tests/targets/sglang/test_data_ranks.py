"""sglang's runners on one of several data-parallel ranks: acquitted, and found where changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, generated

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.rank_mutants:"
FOUND = {
    "own_size": ("contract", "graph"),
    "raw_counts": ("contract", "global_num_tokens_gpu"),
    "stale_counts": ("contract", "global_num_tokens_gpu"),
    "count_of_another_rank": ("contract", "num_token_non_padded"),
    "idle_keeps_inputs": ("contract", "req_pool_indices"),
}
"""Planted bug -> the finding that names it."""


def step(mode: Mode, rows: int, tokens: int, length: int, *others: int) -> ReplayStep:
    """So many rows of one length, beside other ranks."""
    if not rows:
        return ReplayStep(mode="idle", other_ranks=others)
    each = [
        BatchRow(request=name, seq_len=length + name, new_tokens=tokens) for name in range(rows)
    ]
    return ReplayStep(mode=mode, rows=tuple(each), other_ranks=others)


def several_ranks(mode: Mode = "decode", rank: int = 2) -> Case:
    """A rank with few rows beside one at a captured size, one above the ladder, and idle ones."""
    tokens = {"target_verify": 3, "draft": 0}.get(mode, 1)
    sizes: dict[str, Any] = {"draft_tokens": 3, "spec_steps": 2} if mode != "decode" else {}
    config = EngineConfig(
        modes=(mode,), capture_bs=(1, 2, 4), max_context_len=32, dp_size=4, dp_rank=rank, **sizes
    )  # fmt: skip
    steps = (
        step(mode, 1, tokens, 5, 4, 0, 1),
        step(mode, 0, tokens, 0, 0, 3, 1),
        step(mode, 2, tokens, 6),
        step(mode, 1, tokens, 8, 8, 0, 0),
        step(mode, 1, tokens, 9, 0, 0, 0),
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.parametrize("mode", ["decode", "target_verify"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.17", "0.5.23"])
def test_a_rank_replays_the_graph_of_the_largest_one(
    workers: Workers, version: str, mode: Mode
) -> None:
    target = "sglang-buffers" if mode == "decode" else "sglang-buffers-verify"
    assert workers.findings(version, several_ranks(mode), target) == ()


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
@pytest.mark.parametrize("target", ["sglang-eagle-draft", "sglang-eagle-draft-extend"])
def test_a_draft_runner_replays_the_graph_of_the_largest_rank(
    workers: Workers, version: str, target: str
) -> None:
    mode = open_target(target).capabilities.modes[0]
    assert workers.findings(version, several_ranks(mode), target) == ()


def test_an_idle_rank_of_0_5_9_keeps_rows_of_the_pool_in_its_padding(workers: Workers) -> None:
    found = workers.findings("0.5.9", several_ranks(), "sglang-buffers")
    assert {(each.oracle, each.buffer) for each in found} == {
        ("contract", "req_pool_indices"),
        ("history", "req_pool_indices"),
    }


@pytest.mark.parametrize("name", FOUND)
def test_a_changed_runner_is_found(workers: Workers, name: str) -> None:
    found = workers.findings("0.5.23", several_ranks(), f"{MUTANTS}{name}")
    assert FOUND[name] in {(each.oracle, each.buffer) for each in found}


@pytest.mark.parametrize("version", ["0.5.17", "0.5.23"])
@pytest.mark.parametrize("target", ["sglang-buffers", "sglang-fa3-mla"])
def test_generated_cases_with_several_ranks_are_silent(
    workers: Workers, version: str, target: str
) -> None:
    drawn = generated(target, lambda config: config.dp_size > 1, blocks=3, each=100)
    assert len(drawn) > 60
    accused = [case for case in drawn if workers.findings(version, case, target)]
    assert accused == []


@pytest.mark.parametrize("target", ["sglang-triton", "sglang-fa3-verify", "sglang-dsv4"])
def test_an_attention_backend_replays_for_an_idle_rank(workers: Workers, target: str) -> None:
    driven = open_target(target)
    mode = driven.capabilities.modes[0]
    case = several_ranks(mode)
    if target == "sglang-dsv4":
        config = msgspec.structs.replace(
            case.config, page_size=256, attention="mla", kv_compression="c4", head_dim=8,
            index_topk=64,
        )  # fmt: skip
        case = validate(msgspec.structs.replace(case, config=config))
    assert workers.findings("0.5.23", case, target) == ()


UNPADDED = {
    "strangers_row": ("contract", "req_pool_indices"),
    "strangers_slot": ("contract", "out_cache_loc"),
    "prepared_unpadded": ("contract", "cu_seqlens_q"),
}
"""Planted bug of a batch that runs without a graph -> the finding that names it."""


def without_a_graph(mode: Mode) -> Case:
    """Eager steps beside ranks with more rows, with fewer, and with as many."""
    tokens = 3 if mode == "target_verify" else 1
    sizes: dict[str, Any] = {"draft_tokens": 3} if tokens > 1 else {}
    config = EngineConfig(
        modes=(mode,), capture_bs=(1, 2), max_context_len=32, dp_size=4, dp_rank=2, **sizes
    )
    steps = (
        step(mode, 1, tokens, 5, 4, 3, 4),
        step(mode, 4, tokens, 8, 0, 1, 0),
        step(mode, 2, tokens, 12, 3, 3, 3),
        step(mode, 0, tokens, 0, 3, 3, 3),
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-fa3-verify", "sglang-nsa"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_a_batch_without_a_graph_is_padded_for_the_other_ranks(
    workers: Workers, version: str, target: str
) -> None:
    case = without_a_graph(open_target(target).capabilities.modes[0])
    if target == "sglang-nsa":
        config = msgspec.structs.replace(
            case.config, page_size=64, attention="mla", head_dim=8, index_topk=64
        )
        case = validate(msgspec.structs.replace(case, config=config))
    assert workers.findings(version, case, target) == ()


@pytest.mark.parametrize("name", UNPADDED)
def test_a_batch_that_is_padded_wrongly_without_a_graph_is_found(
    workers: Workers, name: str
) -> None:
    found = workers.findings("0.5.23", without_a_graph("decode"), f"{MUTANTS}{name}")
    assert UNPADDED[name] in {(each.oracle, each.buffer) for each in found}


def test_what_an_idle_rank_attends_without_a_graph_is_not_judged(workers: Workers) -> None:
    case, target = without_a_graph("decode"), f"{MUTANTS}noise_for_an_idle_rank"
    assert workers.findings("0.5.23", case, target) == ()


def test_an_idle_rank_fails_beside_a_verify_of_branches_on_pages(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-padded-for-ranks.md."""
    sizes: dict[str, Any] = {"draft_tokens": 4, "spec_topk": 2, "spec_steps": 2}
    config = EngineConfig(
        modes=("target_verify",), capture_bs=(1,), page_size=2, dp_size=2, **sizes
    )
    case = validate(
        Case(
            schema_version=1,
            config=config,
            steps=(ReplayStep(mode="idle", other_ranks=(2,)),),
        )
    )
    (found,) = workers.findings("0.5.23", case, "sglang-fa3-verify")
    assert found.oracle == "survival"
    single = msgspec.structs.replace(config, page_size=1)
    case = validate(msgspec.structs.replace(case, config=single))
    assert workers.findings("0.5.23", case, "sglang-fa3-verify") == ()


def test_padded_rows_of_a_verify_on_triton_read_behind_the_mask(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-verify-padded-for-ranks.md."""
    found = workers.findings("0.5.23", without_a_graph("target_verify"), "sglang-triton-verify")
    assert {(each.oracle, each.buffer) for each in found} == {("noninterference", "mask_ptr")}
