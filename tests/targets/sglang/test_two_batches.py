"""sglang's two-batch overlap: halves computed by themselves, and found where they are changed."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, generated

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

MUTANTS = "tests.targets.sglang.two_batch_mutants:"
FOUND = (
    "one_backend", "old_halves", "cut_elsewhere", "rows_of_the_first", "host_lengths_of_the_first",
    "mask_of_the_first", "eagerly_uncut",
)  # fmt: skip


def cut_case(mode: Mode = "decode", **settings: Any) -> Case:
    """Odd and even numbers of rows, few of them live, beside a larger rank; two without a graph."""
    drafts: dict[str, Any] = {"draft_tokens": 3, "spec_steps": 2} if mode != "decode" else {}
    config = EngineConfig(
        modes=(mode,), capture_bs=(2, 4), max_context_len=32, dp_size=2, two_batch_overlap=True,
        **drafts, **settings,
    )  # fmt: skip
    steps = (
        _step(mode, (5, 9, 2, 7), 0),
        _step(mode, (6,), 0),
        _step(mode, (3, 8, 4), 1),
        _step(mode, (9,), 4),
        _step(mode, (6, 11, 3), 0, via="eager"),
        _step(mode, (4, 7, 9, 6), 0, via="eager"),
        _step(mode, (), 3),
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


def _step(mode: Mode, lengths: tuple[int, ...], others: int, via: Any = "graph") -> ReplayStep:
    new = 1 if mode == "decode" else 3
    rows = tuple(
        BatchRow(request=name, seq_len=length + new, new_tokens=new)
        for name, length in enumerate(lengths)
    )
    return ReplayStep(mode=mode if rows else "idle", rows=rows, other_ranks=(others,), via=via)


def branches(mode: Mode) -> dict[str, Any]:
    """Drafts with two branches: their mask tells which tokens see each other."""
    return {"spec_topk": 2} if mode == "target_verify" else {}


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-fa3-verify", "sglang-triton-verify"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_both_halves_of_a_batch_are_computed(workers: Workers, version: str, target: str) -> None:
    mode = open_target(target).capabilities.modes[0]
    assert workers.findings(version, cut_case(mode), target) == ()


@pytest.mark.parametrize("name", FOUND)
def test_a_changed_half_is_found(workers: Workers, name: str) -> None:
    planted = f"{MUTANTS}{name}"
    target: Any = open_target(planted)
    mode = target.capabilities.modes[0]
    case = cut_case(mode, **branches(mode))
    assert workers.findings("0.5.23", case, planted)
    healthy = target.backend.name + ("" if mode == "decode" else "-verify")
    assert workers.findings("0.5.23", case, f"sglang-{healthy}") == ()


@pytest.mark.parametrize(
    "target",
    ["sglang-aiter", "sglang-fa3", "sglang-flashinfer-mla", "sglang-nsa", "sglang-trtllm-mha"],
)
def test_generated_cases_of_two_halves_are_silent(workers: Workers, target: str) -> None:
    def shared(config: EngineConfig) -> bool:
        """Where ranks cannot share the pool, AITER fails (findings/sglang-triton-kv-indptr.md)."""
        return config.two_batch_overlap and config.req_pool_size % config.attn_tp_size == 0

    drawn = generated(target, shared, blocks=8, each=150, enough=12)
    assert len(drawn) >= 12
    assert [case for case in drawn if workers.findings("0.5.23", case, target)] == []


def test_a_half_is_padded_with_rows_where_ranks_share_its_tokens_from_0_5_23_on(
    workers: Workers,
) -> None:
    case = cut_case(attn_tp_size=2)
    assert workers.findings("0.5.23", case, "sglang-triton") == ()
    found = workers.findings("0.5.22", case, "sglang-triton")
    assert {(each.oracle, each.symptom) for each in found} == {("survival", "exception")}


def test_flashinfer_cannot_check_half_a_verify_whose_tokens_ranks_share(workers: Workers) -> None:
    target = "sglang-flashinfer-verify"
    found = workers.findings("0.5.23", cut_case("target_verify", attn_tp_size=2), target)
    assert {(each.oracle, each.symptom) for each in found} == {("survival", "exception")}
    assert "q must have the 3 queries that were planned; got 4" in found[0].message


def test_a_case_that_runs_behind_one_with_halves_is_computed_whole(workers: Workers) -> None:
    """Sessions share the process, and with it what experts are set to."""
    workers.findings("0.5.23", cut_case(), "sglang-fa3")
    config = EngineConfig(modes=("decode",), capture_bs=(1, 3), max_context_len=32)
    alone = Case(schema_version=1, config=config, steps=(_alone(1), _alone(3)))
    assert workers.findings("0.5.23", validate(alone), "sglang-fa3") == ()


def _alone(rows: int) -> ReplayStep:
    each = (BatchRow(request=name, seq_len=5 + name, new_tokens=1) for name in range(rows))
    return ReplayStep(mode="decode", rows=tuple(each))
