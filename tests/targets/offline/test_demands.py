"""Stand-ins refuse what the real thing could not take, and blame the engine for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import EngineError
from fuzzgraph.targets.offline.cuda_graph import RecordedCudaGraph
from fuzzgraph.targets.offline.demands import (
    demand_computable,
    demand_instance,
    demand_key,
    demand_lookup,
    demand_rows,
    demand_size,
)


def test_what_is_there_is_handed_back() -> None:
    assert demand_key({1: "one"}, 1, "graph", "a replay") == "one"
    tensor = torch.zeros(3, 2)
    assert demand_rows(tensor, 3, "positions", "forward") is tensor
    demand_instance(tensor, torch.Tensor, "positions", "forward")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "forward got None for positions, which is a Tensor"),
        (torch.zeros(2), r"forward got float32 \[2\] for positions, where there are 3 rows"),
        (torch.tensor(1), r"forward got int64 \[\] for positions, where there are 3 rows"),
        ([1, 2, 3], "forward got a list for positions, which is a Tensor"),
    ],
)
def test_other_than_so_many_rows_is_the_engines_error(value: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        demand_rows(value, 3, "positions", "forward")


@pytest.mark.parametrize("value", [torch.zeros(3, 2), torch.zeros(1, 3, 1, 2), torch.zeros(6)])
def test_numbers_of_all_rows_may_come_in_any_shape(value: torch.Tensor) -> None:
    assert demand_size(value, 3, 2, "what a layer computed", "forward") is value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3, 4), r"got float32 \[3, 4\] .*, where there are 3 rows of 2 numbers"),
        (torch.zeros(2, 2), r"got float32 \[2, 2\] .*, where there are 3 rows of 2 numbers"),
        (None, "got None for what a layer computed, which is a Tensor"),
    ],
)
def test_other_than_so_many_numbers_is_the_engines_error(value: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        demand_size(value, 3, 2, "what a layer computed", "forward")


def test_numbers_in_16_bits_are_computed_on() -> None:
    tensor = torch.zeros(3, 2, dtype=torch.bfloat16)
    assert demand_computable(tensor, "what a layer computed", "forward") is tensor


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_numbers_on_which_no_model_can_compute_are_the_engines_error(dtype: torch.dtype) -> None:
    with pytest.raises(EngineError, match=r"\[3, 2\] for it, on which no model can compute"):
        demand_computable(torch.zeros(3, 2).to(dtype), "it", "forward")


def test_a_key_that_was_never_made_is_the_engines_error() -> None:
    with pytest.raises(EngineError, match="graph 8, which was never made; there are: 4, 2"):
        demand_key({4: "", 2: ""}, 8, "graph", "a replay")


def test_a_number_outside_of_a_table_is_the_engines_error() -> None:
    table = torch.arange(4.0)[:, None]
    found = demand_lookup(table, torch.tensor([3, 0]), "positions", "forward")
    assert found.flatten().tolist() == [3.0, 0.0]
    with pytest.raises(EngineError, match=r"positions outside of a table of 4 rows: int64 \[1\]"):
        demand_lookup(table, torch.tensor([4]), "positions", "forward")


def test_a_graph_that_was_never_captured_is_the_engines_error() -> None:
    with pytest.raises(EngineError, match="never captured"):
        RecordedCudaGraph().replay()


def test_what_attention_hands_out_must_be_a_tensor() -> None:
    """A backend that returns its sums as well is the engine's mistake, not the target's."""
    with pytest.raises(EngineError, match="got a tuple for what attention computed"):
        demand_instance((torch.ones(1), None), torch.Tensor, "what attention computed", "forward")
