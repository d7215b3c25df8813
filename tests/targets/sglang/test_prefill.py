"""Prefill graphs of released sglang: silent where they are right, found out where changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.targets import open_target
from fuzzgraph.targets.sglang.stubs.piecewise_compiler import SplitForward
from tests.targets.sglang.released import Workers

_MUTANTS = "tests.targets.sglang.prefill_mutants"

RELEASES = [
    ("piecewise", "0.5.12"),
    ("piecewise", "0.5.13"),
    ("breakable", "0.5.12"),
    ("breakable", "0.5.13"),
    ("breakable", "0.5.23"),
]

Rows = tuple[tuple[int, int, int], ...]
"""(request, cached tokens, new tokens) of each row."""


def prefill_case(kind: str, *batches: Rows, **settings: Any) -> Case:
    """Steps with these rows; a request that a step leaves out is finished."""
    steps, live = [], set[int]()
    for rows in batches:
        here = {request for request, _, _ in rows}
        steps.append(
            ReplayStep(
                mode="prefill",
                rows=tuple(
                    BatchRow(request=request, seq_len=cached + new, new_tokens=new)
                    for request, cached, new in rows
                ),
                finish=tuple(sorted(live - here)),
            )
        )
        live = here
    config = EngineConfig(
        **{
            "modes": ("prefill",), "capture_bs": (), "capture_tokens": (4, 8),
            "req_pool_size": 4, "prefill_runner": kind, **settings,
        }
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=tuple(steps)))


HEALTHY: dict[str, tuple[tuple[Rows, ...], dict[str, Any]]] = {
    "longer, then shorter": ((((0, 0, 8),), ((1, 0, 3),)), {}),
    "ragged rows with a past": ((((0, 0, 2), (1, 5, 1), (2, 3, 4)), ((0, 2, 3), (2, 7, 2))), {}),
    "above the ladder between two graphs": ((((0, 0, 4),), ((1, 0, 9),), ((2, 0, 3),)), {}),
    "pages of 16": ((((0, 15, 3), (1, 16, 2)), ((0, 18, 3),)), {"page_size": 16,
        "max_context_len": 32}),
    "heads and values of their own widths": ((((0, 1, 3),), ((1, 2, 5), (2, 0, 1))),
        {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 4}),
    "half precision": ((((0, 0, 5),), ((0, 5, 3), (1, 0, 2))), {"dtype": "float16"}),
}  # fmt: skip


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "version"), RELEASES)
def test_a_healthy_engine_is_silent(workers: Workers, kind: str, version: str) -> None:
    target = f"sglang-{kind}-prefill"
    found = {
        name: workers.findings(version, prefill_case(kind, *batches, **settings), target)
        for name, (batches, settings) in HEALTHY.items()
    }
    assert found == dict.fromkeys(HEALTHY, ())


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "version"), RELEASES)
def test_the_engine_itself_pads_and_replays_what_it_captured(
    workers: Workers, kind: str, version: str
) -> None:
    case = prefill_case(kind, ((0, 0, 8),), ((1, 0, 3),))
    assert workers.findings(version, case, f"{_MUTANTS}:{kind}_watched") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "version"), RELEASES)
@pytest.mark.parametrize(
    ("mutant", "finding"),
    [
        ("keeps_slots", ("contract", "out_cache_loc")),
        ("moves_positions", ("reference", "attention")),
        ("plans_once", ("contract", "qo_indptr")),
        # What only the watch over the backend sees.
        ("doubles_start_locs", ("handover", "extend_start_loc")),
    ],
)
def test_an_engine_that_forgets_something_is_found_out(
    workers: Workers, kind: str, version: str, mutant: str, finding: tuple[str, str]
) -> None:
    case = prefill_case(kind, ((0, 0, 6),), ((1, 2, 4), (2, 0, 1)))
    found = workers.findings(version, case, f"{_MUTANTS}:{kind}_{mutant}")
    assert finding in {(one.oracle, one.buffer.rpartition(".")[2]) for one in found}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_bucket_of_more_than_twice_the_tokens_goes_eager_and_is_no_finding(
    workers: Workers,
) -> None:
    case = prefill_case("breakable", ((0, 0, 3),), capture_tokens=(8,))
    assert workers.findings("0.5.23", case, "sglang-breakable-prefill") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "version"), RELEASES)
def test_ranks_share_the_tokens_of_a_full_bucket(workers: Workers, kind: str, version: str) -> None:
    case = prefill_case(kind, ((0, 0, 8),), ((1, 3, 2), (2, 0, 2)), attn_tp_size=2, attn_tp_rank=1)
    assert workers.findings(version, case, f"sglang-{kind}-prefill") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "version"), RELEASES)
def test_rows_that_pad_a_batch_for_its_ranks_are_never_written(
    workers: Workers, kind: str, version: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-prefill-rows-of-ranks.md."""
    case = prefill_case(kind, ((0, 0, 5),), attn_tp_size=2)
    found = workers.findings(version, case, f"sglang-{kind}-prefill")
    assert [(one.oracle, one.buffer) for one in found] == [("noninterference", "attention")]


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("version", "miscounts"), [("0.5.21", True), ("0.5.22", False)])
def test_a_bucket_that_the_ranks_cannot_share_miscounts_its_live_tokens(
    workers: Workers, version: str, miscounts: bool
) -> None:
    case = prefill_case(
        "breakable", ((0, 0, 2),), capture_tokens=(3, 4), attn_tp_size=2, max_context_len=2
    )
    found = workers.findings(version, case, "sglang-breakable-prefill")
    told = [one.message for one in found if one.buffer == "num_token_non_padded"]
    assert len(told) == (2 if miscounts else 0)
    if miscounts:
        assert "2 ranks cannot share 3 tokens evenly" in told[0] and "at capture" in told[1]


@pytest.mark.sglang
@pytest.mark.slow
def test_a_step_without_requests_is_not_driven(workers: Workers) -> None:
    case = prefill_case("breakable", ((0, 0, 5),), ((1, 0, 3),))
    first, second = case.steps
    steps = (
        first,
        ReplayStep(mode="idle", finish=(0,)),
        msgspec.structs.replace(second, finish=()),
    )
    case = validate(msgspec.structs.replace(case, steps=steps))
    said = workers.skipped("0.5.23", case, "sglang-breakable-prefill")
    assert said == "steps[1] without rows on any rank is not driven"


def test_decode_beside_prefills_is_not_driven() -> None:
    said = open_target("sglang-breakable-prefill").unsupported(
        EngineConfig(modes=("prefill", "decode"), capture_tokens=(4,))
    )
    assert said == "captures prefill graphs only, not ['prefill', 'decode']"


def test_the_other_kind_of_graph_is_not_driven() -> None:
    config = EngineConfig(modes=("prefill",), capture_tokens=(4,), prefill_runner="breakable")
    assert open_target("sglang-breakable-prefill").unsupported(config) is None
    said = open_target("sglang-piecewise-prefill").unsupported(config)
    assert said == "prefill_runner='breakable' is not driven, only piecewise"


def test_more_tokens_than_the_pool_can_hold_are_not_driven() -> None:
    config = EngineConfig(
        modes=("prefill",), capture_tokens=(33,), req_pool_size=2, max_context_len=16,
        prefill_runner="breakable",
    )  # fmt: skip
    said = open_target("sglang-breakable-prefill").unsupported(config)
    assert said == "no batch has 33 tokens: the pool ends at 32"


def test_a_ladder_that_ends_with_tokens_the_ranks_cannot_share_is_not_driven() -> None:
    config = EngineConfig(
        modes=("prefill",), capture_tokens=(4, 6), attn_tp_size=4, prefill_runner="breakable"
    )
    assert (
        open_target("sglang-breakable-prefill").unsupported(config)
        == "4 ranks cannot share 6 tokens"
    )


def test_a_count_without_a_graph_runs_as_it_is() -> None:
    split = SplitForward(lambda ids: sum(ids), (4,), segments=None, on_capture=print)  # type: ignore[arg-type]
    assert split([1, 2]) == 3


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["piecewise", "breakable"])
def test_rows_that_pad_a_prompt_to_its_bucket_reach_live_rows_up_to_0_5_13(
    workers: Workers, kind: str
) -> None:
    """See reports/findings/sglang-prefill-padded-rows.md; the runner cuts these rows off."""
    target = f"sglang-{kind}-prefill"
    for row_mixing in ("none", "fp8_scale", "nan"):
        case = prefill_case(kind, ((0, 0, 3),), row_mixing=row_mixing)
        found = {(one.oracle, one.buffer) for one in workers.findings("0.5.13", case, target)}
        assert ("noninterference", "mixed") in found or row_mixing == "none"
        assert (("reference", "mixed") in found) == (row_mixing == "nan")
        assert workers.findings("0.5.16", case, target) == ()
