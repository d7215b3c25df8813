"""A finding on padded rows alone is told with what it does to live rows behind a mixing layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from fuzzgraph.campaign.effect import with_effect
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.errors import OutOfTime
from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.text.finding_text import effect_text, headline
from tests.fakes import FakeRunner, case, finding
from tests.unit.campaigns import CampaignRun

STALE = "sglang-stale-req-pool-indices-decode"


def reads(buffer: str = "attention", rows: str = "padded") -> Finding:
    found = finding("noninterference", "reads", buffer, message="step 0 (raw_bs=1): attention")
    return msgspec.structs.replace(found, symptom="mismatch", detail={"rows": rows})


def computes(buffer: str) -> Finding:
    found = finding("reference", "computes", buffer, message=f"step 0: {buffer}[0]: got nan")
    return msgspec.structs.replace(found, symptom="mismatch")


def mixing(one: Case) -> str:
    return one.config.row_mixing


def nothing(one: Case) -> Sequence[Finding]:
    return ()


def test_its_severity_is_that_of_the_worst_effect() -> None:
    shows = {"fp8_scale": [reads("mixed", "live")], "nan": [computes("mixed")], "router": []}
    told = with_effect(case(1), reads(), (), lambda tried: shows[mixing(tried)])
    assert (told.severity, told.detail["mixed_by"]) == ("high", "nan")
    assert "reaches live rows through a layer that mixes rows (row_mixing='nan')" in told.message
    assert told.message.endswith("mixed[0]: got nan")
    assert told.key == reads().key


def test_a_broken_contract_whose_rows_reach_live_ones_is_no_longer_low() -> None:
    contract = finding("contract", "metadata", "req_pool_indices")
    assert contract.severity == "low"
    shows = {"fp8_scale": [reads("mixed", "live")], "nan": [], "router": []}
    told = with_effect(case(1), contract, (), lambda tried: shows[mixing(tried)])
    assert (told.severity, told.detail["mixed_by"]) == ("medium", "fp8_scale")


def test_a_breach_of_what_is_handed_over_has_the_severity_of_wrong_results_in_its_step() -> None:
    breach = finding("handover", "metadata", "flash_attn_with_kvcache.cache_seqlens")
    wrong = [reads(rows="live"), computes("attention")]
    told = with_effect(case(1), breach, wrong, nothing)
    assert (breach.severity, told.severity, told.key) == ("low", "high", breach.key)
    assert told.message.endswith("; the same step also harms live rows: attention[0]: got nan")
    later = [msgspec.structs.replace(each, step=breach.step + 1) for each in wrong]
    assert with_effect(case(1), breach, later, nothing) == breach
    assert with_effect(case(1), breach, (), nothing) == breach


def test_what_stays_on_padded_rows_keeps_its_severity() -> None:
    assert with_effect(case(1), reads(), (), nothing) == reads()
    still_padded = lambda tried: [reads("mixed"), computes("kv_pool.k")]  # noqa: E731
    assert with_effect(case(1), reads(), (), still_padded) == reads()


def test_what_is_wrong_with_live_rows_already_is_not_tried() -> None:
    def never(one: Case) -> Sequence[Finding]:
        raise AssertionError("nothing has to be found out")

    assert with_effect(case(1), reads(rows="live"), (), never) == reads(rows="live")
    assert with_effect(case(1), reads(), (computes("attention"),), never) == reads()
    assert with_effect(case(1), computes("attention"), (), never) == computes("attention")


def test_a_case_that_has_such_a_layer_shows_its_effect_itself() -> None:
    config = EngineConfig(row_mixing="nan")
    one = msgspec.structs.replace(case(1), config=config)
    told = with_effect(one, reads(), (computes("mixed"),), nothing)
    assert (told.severity, told.detail["mixed_by"]) == ("high", "nan")


def test_the_severity_survives_the_log() -> None:
    told = with_effect(case(1), reads(), (), lambda tried: [computes("mixed")])
    assert msgspec.json.decode(msgspec.json.encode(told), type=Finding).severity == "high"


def test_a_campaign_tells_the_effect_of_what_it_shrank(tmp_path: Path) -> None:
    def bugs(one: Case) -> tuple[Finding, ...]:
        return (reads(), computes("mixed")) if mixing(one) == "nan" else (reads(),)

    run = CampaignRun(tmp_path, FakeRunner(bugs), corpus=[case(2)], examples=0)
    (reported,) = run.run().findings
    assert reported.finding.severity == "high"
    assert headline(reported.finding).startswith("FINDING [high]")
    assert "row_mixing='nan'" in effect_text(reported.finding)
    assert mixing(reported.case) == "none"


def test_a_campaign_without_time_to_look_reports_the_finding_as_it_is(tmp_path: Path) -> None:
    def bugs(one: Case) -> tuple[Finding, ...]:
        if mixing(one) != "none":
            raise OutOfTime("the budget is over")
        return (reads(),)

    run = CampaignRun(tmp_path, FakeRunner(bugs), corpus=[case(2)], examples=0)
    (reported,) = run.run().findings
    assert reported.finding.severity == "medium" and "effect" not in reported.finding.detail


def test_stale_request_rows_of_padding_reach_live_rows_of_the_built_in_engine() -> None:
    def step(*lengths: int, first: int = 0) -> ReplayStep:
        rows = [BatchRow(request=first + i, seq_len=n) for i, n in enumerate(lengths)]
        return ReplayStep(rows=tuple(rows), finish=(0, 1) if first else ())

    config = EngineConfig(capture_bs=(2,), max_context_len=8)
    one = Case(schema_version=1, config=config, steps=(step(3, 5), step(4, first=2)))
    execution = Execution(open_fault(STALE))
    shown = execution.run_case(one).findings
    contract = next(each for each in shown if each.buffer == "req_pool_indices")
    told = with_effect(one, contract, shown, lambda tried: execution.run_case(tried).findings)
    assert (contract.severity, told.severity) == ("low", "medium")
    assert "mixed[0, 0, 0]" in told.message
