"""What padded rows leave behind reaches live rows behind a layer that mixes rows, and is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.ports import Target
from fuzzgraph.repro import export_script
from fuzzgraph.run.events import Setup
from fuzzgraph.strategies import CI, cases, generation
from fuzzgraph.targets import open_target
from fuzzgraph.targets.builtin import BuiltinTarget
from tests.unit.repro.running import run_scripts

EMPTY_ROWS = "vllm-pr-37442-empty-rows-unwritten"
SOFTMAX = "vllm-pr-38436-softmax-of-nothing"
BREAK = "tokenspeed-pr-741-break-leaves-tail"


def case_of(*lengths: int, mode: str = "decode", **config: object) -> Case:
    """One padded step, a row per length."""
    rows = tuple(
        BatchRow(request=i, seq_len=length, new_tokens=length if mode == "prefill" else 1)
        for i, length in enumerate(lengths)
    )
    modes = {"modes": (mode,), "capture_bs": (4,), "capture_tokens": (8,), "max_context_len": 8}
    settings = {**modes, "seq_len_fill_value": 0, "page_size": 1, **config}
    return Case(
        schema_version=1,
        config=EngineConfig(**settings),  # type: ignore[arg-type]
        steps=(ReplayStep(mode=mode, rows=rows),),  # type: ignore[arg-type]
    )


def shown(target: Target, case: Case) -> dict[tuple[str, str], Finding]:
    """(oracle, buffer) -> finding."""
    return {(one.oracle, one.buffer): one for one in Execution(target).run_case(case).findings}


def test_unwritten_rows_are_nobodys_result_without_a_layer_that_mixes_rows() -> None:
    found = shown(open_fault(EMPTY_ROWS), case_of(3))
    assert set(found) == {("noninterference", "attention")}
    finding = found["noninterference", "attention"]
    assert finding.detail["rows"] == "padded" and "padded rows alone" in finding.message


def test_one_scale_over_all_rows_hands_unwritten_rows_on_to_live_ones() -> None:
    found = shown(open_fault(EMPTY_ROWS), case_of(3, row_mixing="fp8_scale"))
    assert found["noninterference", "mixed"].detail["rows"] == "live"


def test_nan_in_unwritten_rows_is_kept_alive_and_live_rows_are_wrong() -> None:
    found = shown(open_fault(EMPTY_ROWS), case_of(3, row_mixing="nan"))
    wrong = found["reference", "mixed"]
    assert wrong.severity == "high" and wrong.detail["got"] == "nan"
    assert ("eager", "mixed") in found and ("reference", "attention") not in found
    # NaN that was computed is not taken for memory that the graph did not write.
    assert ("contract", "graph") not in found


@pytest.mark.parametrize("name", [SOFTMAX, "vllm-pr-57094-zero-by-zero"])
@pytest.mark.parametrize("kind", ["fp8_scale", "nan"])
def test_a_row_of_nothing_that_is_nan_is_found_by_the_layer_alone(name: str, kind: str) -> None:
    assert shown(open_fault(name), case_of(3)) == {}
    found = shown(open_fault(name), case_of(3, row_mixing=kind))
    assert ("reference", "mixed") in found and ("reference", "attention") not in found


def test_rows_that_a_break_leaves_undefined_reach_the_next_piece_of_the_graph() -> None:
    case = case_of(3, mode="prefill", prefill_runner="breakable", row_mixing="nan")
    assert ("reference", "mixed") in shown(open_fault(BREAK), case)


def test_a_router_hands_a_wrong_count_on_to_live_rows() -> None:
    name = "sglang-pr-9107-whole-rank-count"
    ranks: dict[str, Any] = {"attn_tp_size": 2, "attn_tp_rank": 1, "capture_bs": (8,)}
    ranks["seq_len_fill_value"] = 1
    assert ("reference", "moe") not in shown(open_fault(name), case_of(*[3] * 7, **ranks))
    found = [
        shown(open_fault(name), msgspec.structs.replace(case, seed=seed))
        for case in [case_of(*[3] * 7, row_mixing="router", **ranks)]
        for seed in range(8)
    ]
    assert any(("reference", "moe") in one for one in found)


@pytest.mark.parametrize("kind", ["fp8_scale", "nan", "router"])
def test_the_healthy_engine_is_silent_behind_every_layer(kind: str) -> None:
    can = BuiltinTarget().capabilities.replace(row_mixings=(kind,))
    execution = Execution(open_target("builtin"))
    accused: list[Case] = []
    seen: list[str] = []

    def run(case: Case) -> None:
        seen.append(case.config.row_mixing)
        if execution.run_case(case).findings:
            accused.append(case)

    generation.draw(cases(can, CI), 5, 25, run)
    execution.close()
    assert not accused and seen.count(kind) == len(seen) == 25


def test_padded_rows_that_an_earlier_batch_left_may_coarsen_the_scale() -> None:
    """The tail of free inputs keeps the past: a healthy engine once differed by it."""
    row = [BatchRow(request=i, seq_len=4) for i in range(4)]
    later = (BatchRow(request=3, seq_len=3), BatchRow(request=0, seq_len=4))
    case = Case(
        schema_version=1,
        config=EngineConfig(
            capture_bs=(1, 4), max_context_len=8, runner="cpu_graph", row_mixing="fp8_scale"
        ),
        steps=(
            ReplayStep(rows=tuple(row)),
            ReplayStep(rows=(*later, BatchRow(request=1, seq_len=5))),
        ),
        seed=74,
    )
    assert shown(open_target("builtin"), case) == {}


def test_a_script_measures_what_the_layer_gave_as_its_oracle_does(tmp_path: Path) -> None:
    told = {
        "noninterference": (EMPTY_ROWS, case_of(3, row_mixing="fp8_scale")),
        "reference": (EMPTY_ROWS, case_of(3, row_mixing="nan")),
        "eager": (SOFTMAX, case_of(3, row_mixing="fp8_scale")),
    }
    scripts = {
        oracle: export_script(
            case,
            shown(open_fault(name), case)[oracle, "mixed"],
            Setup(target="builtin", fault=name),
            proven=False,
        )
        for oracle, (name, case) in told.items()
    }
    assert "relative, absolute = " in scripts["eager"]
    assert {code for code, _ in run_scripts(tmp_path, scripts).values()} == {1}
