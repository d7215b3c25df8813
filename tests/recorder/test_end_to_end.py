"""The command and the public calls on the built-in engine, healthy and with a planted fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import fuzzgraph
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, encode_case
from fuzzgraph.cli.entry import run_command
from fuzzgraph.shipped import FAULTS as FAULT_CASES
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.faults import FAULTS

FAULT = "sglang-pr-22598-indptr-at-pool-size"


def small_case() -> Case:
    rows = (BatchRow(request=0, seq_len=3), BatchRow(request=1, seq_len=2))
    steps = (ReplayStep(rows=rows), ReplayStep(rows=rows[:1], finish=(1,)))
    return Case(schema_version=1, config=EngineConfig(capture_bs=(2,)), steps=steps)


def padded_beyond_the_pool() -> Case:
    config = EngineConfig(capture_bs=(4,), req_pool_size=2)
    return Case(schema_version=1, config=config, steps=(ReplayStep(rows=(BatchRow(request=0),)),))


def faulty() -> BuiltinTarget:
    (fault,) = (fault for fault in FAULTS if fault.name == FAULT)
    return BuiltinTarget(fault.components)


@pytest.mark.slow
def test_a_planted_fault_is_found_shrunk_exported_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = ["--fault", FAULT, "--examples", "500", "--findings", "1", "--seed", "1"]
    assert run_command(["run", *wanted, "--out", "r", "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    (found,) = summary["findings"]
    assert found["finding"]["confirmed"] == "3/3"
    assert len(found["case"]["steps"]) == 1
    assert {export["kind"]: export["error"] for export in found["exports"]} == {
        "script": "",
        "pytest": "",
        "issue": "",
    }
    assert found["exports"][0]["rate"] == "3/3"
    assert run_command(found["replay"].split()[1:]) == 1
    assert run_command(["replay", found["case_path"]]) == 0


def test_a_healthy_case_replays_with_exit_code_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(encode_case(small_case()))
    assert run_command(["replay", str(path)]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_a_case_that_needs_more_pages_than_there_are_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = EngineConfig(kv_pool_pages=1)
    rows = (BatchRow(request=0, seq_len=9),)
    path = tmp_path / "case.json"
    path.write_bytes(
        encode_case(Case(schema_version=1, config=config, steps=(ReplayStep(rows=rows),)))
    )
    assert run_command(["replay", str(path)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "kv_pool_pages" in err


def test_check_passes_on_a_healthy_engine_and_fails_with_the_finding_on_a_faulty_one() -> None:
    fuzzgraph.check(padded_beyond_the_pool())
    with pytest.raises(fuzzgraph.FindingError, match="FINDING") as caught:
        fuzzgraph.check(padded_beyond_the_pool(), faulty())
    assert caught.value.reported.case == padded_beyond_the_pool()


def test_check_takes_what_a_case_is_run_on_by_name() -> None:
    fault = "sglang-pr-24587-kv-indices-in-pages"
    saved = fuzzgraph.load_case(FAULT_CASES / f"{fault}.json")
    fuzzgraph.check(saved)
    with pytest.raises(fuzzgraph.FindingError, match="kv_indices"):
        fuzzgraph.check(saved, fault=fault)


def test_check_refuses_an_option_that_does_not_exist() -> None:
    with pytest.raises(fuzzgraph.UsageError, match="'relese' is unknown.*Use one of: release, "):
        fuzzgraph.check(small_case(), relese="0.5.12")


def test_check_says_that_it_was_given_no_case() -> None:
    with pytest.raises(fuzzgraph.UsageError, match="case='case.json' is not a Case.*load_case"):
        fuzzgraph.check("case.json")  # type: ignore[arg-type]


def test_a_case_is_saved_and_loaded_by_a_path_as_text(tmp_path: Path) -> None:
    path = str(tmp_path / "case.json")
    fuzzgraph.save_case(small_case(), path)
    assert fuzzgraph.load_case(path) == small_case()


def test_run_case_hands_out_the_verdict() -> None:
    verdict = fuzzgraph.run_case(small_case())
    assert (verdict.findings, verdict.steps, verdict.skipped) == ((), 2, "")


@pytest.mark.parametrize(
    ("step", "lacks", "reason"),
    [
        ({"mrope": True}, {"mrope": False}, "steps[1].mrope is not driven"),
        ({"via": "eager"}, {"eager_steps": False}, "steps[1].via='eager' is not driven, only"),
        (
            {"rows": tuple(BatchRow(request=name) for name in range(3))},
            {"eager_steps": False},
            "steps[1] above the captured sizes is not driven",
        ),
        (
            {"rows": (BatchRow(request=0, seq_len=2),)},
            {"min_seq_len": 3},
            "steps[1] with a row of 2 tokens is not driven, only from 3 on",
        ),
    ],
    ids=["mrope", "eager", "above the ladder", "short"],
)
def test_a_step_that_the_target_cannot_express_skips_its_case_with_the_reason(
    step: dict[str, Any], lacks: dict[str, Any], reason: str
) -> None:
    rows = (BatchRow(request=0, seq_len=3),)
    steps = (ReplayStep(rows=rows), ReplayStep(**{"rows": rows, **step}))
    case = Case(schema_version=1, config=EngineConfig(capture_bs=(2,)), steps=steps)
    narrow, wide = BuiltinTarget(), BuiltinTarget()
    narrow.capabilities = narrow.capabilities.replace(**lacks)
    assert reason in fuzzgraph.run_case(case, narrow).skipped
    assert fuzzgraph.run_case(case, wide).steps == 2


@settings(
    max_examples=10, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(fuzzgraph.cases("builtin"))
def test_cases_are_drawn_for_a_test_of_ones_own(case: Case) -> None:
    fuzzgraph.check(case, "builtin")


@pytest.mark.slow
def test_ctrl_c_ends_a_run_with_its_report_and_the_exit_code_of_what_was_found(
    tmp_path: Path,
) -> None:
    fault = "sglang-pr-24587-kv-indices-in-pages"
    command = [sys.executable, "-m", "fuzzgraph", "run", "--time", "90s", "--out", "r"]
    command += ["--fault", fault]
    environment = {**os.environ, "PYTHONPATH": str(Path(fuzzgraph.__file__).parents[1])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        # Interrupted before any case has come to its end, a run has checked nothing and says so.
        assert any(line.startswith("found ") for line in running.stdout)
        running.send_signal(signal.SIGINT)
        said = running.stdout.read()
    assert running.returncode == 1, said
    assert "stopped: interrupted" in said
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["reason"] == "interrupted"
