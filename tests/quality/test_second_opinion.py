"""The Triton reference looks over the shoulder of the float64 one, and is looked at itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from fuzzgraph import reference
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.execution import Execution
from fuzzgraph.run.spec import Setup
from fuzzgraph.targets import open_target
from fuzzgraph.world import Batch

pytest.importorskip("triton")

CASE = Case(
    schema_version=1,
    config=EngineConfig(capture_bs=(2,), num_q_heads=2),
    steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=5), BatchRow(request=1, seq_len=3))),),
)


def test_two_references_that_agree_are_no_finding() -> None:
    assert (
        Execution(open_target("builtin"), Setup(second_opinion=True)).run_case(CASE).findings == ()
    )


def test_a_reference_that_errs_is_a_finding_about_us(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.second_opinion

    def wrong(batch: Batch, config: EngineConfig) -> Mapping[str, torch.Tensor]:
        return {name: value + 0.25 for name, value in right(batch, config).items()}

    monkeypatch.setattr(reference, "second_opinion", wrong)
    (finding,) = (
        Execution(open_target("builtin"), Setup(second_opinion=True)).run_case(CASE).findings
    )
    assert (finding.oracle, finding.buffer) == ("reference", "reference:attention")
    assert "FuzzGraph's own two references disagree" in finding.message


def test_without_the_option_nobody_asks_for_a_second_opinion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "second_opinion", lambda *_: pytest.fail("it was asked"))
    assert Execution(open_target("builtin")).run_case(CASE).findings == ()
