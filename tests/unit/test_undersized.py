"""The buffer that an index error is about, where one line of an engine leaves no doubt."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from fuzzgraph.execution.undersized import undersized_buffer
from tests.unit.reporting.faulty_runs import findings_of, stored


@dataclass(slots=True)
class Buffers:
    """Some of one size, one alone."""

    indptr: torch.Tensor = field(default_factory=lambda: torch.zeros(9))
    lens: torch.Tensor = field(default_factory=lambda: torch.zeros(8))
    twin: torch.Tensor = field(default_factory=lambda: torch.zeros(8))

    @property
    def asked(self) -> torch.Tensor:
        raise AssertionError("code of the engine was run")

    def one(self) -> None:
        self.indptr[12]

    def sliced(self) -> None:
        self.lens[:12] = torch.zeros(12)

    def either(self) -> None:
        self.lens[0], self.twin[12]

    def through_a_property(self, rows: torch.Tensor) -> None:
        (len(rows), rows[12], self.asked)

    def something_else(self) -> None:
        raise IndexError("pop from empty list")


def blamed(call: Callable[[], None]) -> str:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        call()
    frame, line = list(traceback.walk_tb(caught.value.__traceback__))[-1]
    found = undersized_buffer(str(caught.value), frame, line)
    return found[0] if found else ""


def test_the_tensor_of_the_line_that_has_the_size_is_named() -> None:
    assert blamed(Buffers().one) == "self.indptr"
    assert blamed(Buffers().sliced) == "self.lens"


def test_of_two_that_could_be_meant_none_is_named() -> None:
    assert blamed(Buffers().either) == ""


def test_an_error_about_no_tensor_names_none() -> None:
    assert blamed(Buffers().something_else) == ""


def test_no_code_of_the_engine_is_run_to_look_a_name_up() -> None:
    assert blamed(lambda: Buffers().through_a_property(torch.zeros(8))) == "rows"


def test_a_finding_names_the_buffer_and_the_line_that_allocated_it() -> None:
    fault = "sglang-pr-22598-indptr-at-pool-size"
    (finding, *_) = findings_of(fault, stored(fault))
    assert finding.detail["too_small"] == "self.indptr"
    assert str(finding.detail["allocated_at"]).startswith("kv_indices.py:")
    assert "self.indptr is too small (allocated at kv_indices.py:" in finding.message
    assert finding.buffer == ""
