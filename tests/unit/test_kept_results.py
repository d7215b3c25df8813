"""Results that an engine promised to keep: told when a step changes them, by that step only."""

from __future__ import annotations

import msgspec
import pytest
import torch

from fuzzgraph.case import BatchRow, Case, ReplayStep
from fuzzgraph.execution.kept_results import KeptResults
from fuzzgraph.memory import Crossings
from tests.unit.reporting.faulty_runs import VIEWS, after, findings_of, one_row

AT_HOME = Crossings(torch.device("cpu"), gathered=False)
LATER = ReplayStep(mode="draft", rows=(BatchRow(request=0, seq_len=2, new_tokens=0),))


def views(*then: ReplayStep) -> list[tuple[str, str, int | None]]:
    """Oracle, buffer and step of what the planted views show in a draft and what follows."""
    case: Case = after(one_row("draft"), *then, modes=("draft",), max_context_len=2)
    return [(one.oracle, one.buffer, one.step) for one in findings_of(VIEWS, case)]


def test_a_result_that_a_replay_overwrites_is_told() -> None:
    assert ("history", "attention", 1) in views(LATER)


def test_an_eager_step_is_not_blamed_for_the_graphs_that_the_judge_replayed() -> None:
    assert views(msgspec.structs.replace(LATER, via="eager")) == []


def test_a_replay_after_an_eager_step_is_still_told() -> None:
    eager = msgspec.structs.replace(LATER, via="eager")
    assert ("history", "attention", 2) in views(eager, LATER)


def test_a_change_is_told_once() -> None:
    kept, result = KeptResults(AT_HOME), torch.ones(2)
    kept.keep(0, {"attention": result})
    result.fill_(2)
    assert [(one.name, one.step) for one in kept.take_changed()] == [("attention", 0)]
    assert kept.take_changed() == []


@pytest.mark.parametrize("inference", [False, True])
def test_what_was_written_between_steps_is_put_back(inference: bool) -> None:
    with torch.inference_mode(inference):
        memory = torch.arange(6.0)
        result = memory.as_strided((2, 3), (3, 0))
    kept = KeptResults(AT_HOME)
    kept.keep(0, {"attention": result})
    with torch.inference_mode(inference):
        memory.fill_(7)
    kept.put_back()
    assert kept.take_changed() == []
    assert memory.tolist() == [0, 7, 7, 3, 7, 7]
