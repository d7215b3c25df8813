"""What crosses between host and device together arrives as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.overrides import TorchFunctionMode

from fuzzgraph.memory import Crossings, crossings
from fuzzgraph.rules.comparison import bits, same_bits

CPU = torch.device("cpu")
TENSORS = [
    torch.tensor(7),
    torch.tensor([True, False, True]),
    torch.empty(0, 3, dtype=torch.int32),
    torch.arange(12, dtype=torch.int64).view(3, 4).t(),
    torch.tensor([1.5]).expand(2, 5),
    torch.tensor(5).expand(1),
    torch.tensor([float("nan"), -0.0, 1e-3], dtype=torch.bfloat16),
    torch.arange(5).to(torch.float8_e4m3fn),
    torch.arange(9, dtype=torch.uint8)[1::2],
]
PAIRS = [
    (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    (torch.tensor([0.0]), torch.tensor([-0.0])),
    (torch.arange(3), torch.arange(4)),
    (torch.arange(3), torch.arange(3, dtype=torch.int32)),
    (torch.empty(0), torch.empty(0)),
    (torch.arange(6).view(2, 3), torch.arange(6).view(2, 3)),
    (torch.arange(6).view(2, 3).t(), torch.arange(6).view(3, 2)),
]


class Calls(TorchFunctionMode):
    """Inside, counts calls of torch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.seen[getattr(func, "__name__", "").removeprefix("tensor_")] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def gathered() -> Crossings:
    return Crossings(CPU, gathered=True)


@pytest.mark.parametrize("way", ["to_host", "to_device"])
def test_every_tensor_keeps_its_form_and_bits(gathered: Crossings, way: str) -> None:
    moved: Sequence[torch.Tensor] = getattr(gathered, way)(TENSORS)
    for before, after in zip(TENSORS, moved, strict=True):
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
        assert torch.equal(bits(after), bits(before))


def test_what_has_crossed_is_a_copy(gathered: Crossings) -> None:
    here = torch.zeros(3)
    (there,) = gathered.to_host([here])
    here.fill_(1)
    assert there.tolist() == [0, 0, 0]


def test_many_tensors_cross_once(gathered: Crossings) -> None:
    with Calls() as calls:
        gathered.to_host(TENSORS)
        gathered.to_device(TENSORS)
    assert (calls.seen["cpu"], calls.seen["to"]) == (1, 1)


def test_nothing_crosses_for_no_tensors(gathered: Crossings) -> None:
    with Calls() as calls:
        assert gathered.to_host([]) == gathered.to_device([]) == []
    assert not calls.seen


def test_tensors_that_need_not_cross_stay_themselves() -> None:
    at_home = Crossings(CPU, gathered=False)
    assert [*map(id, at_home.to_host(TENSORS))] == [*map(id, TENSORS)]


def test_what_an_engine_has_on_the_host_stays_there_beside_a_device() -> None:
    beside = Crossings(torch.device("meta"), gathered=True)
    assert [*map(id, beside.to_host(TENSORS))] == [*map(id, TENSORS)]
    assert beside.same(PAIRS) == [same_bits(*pair) for pair in PAIRS]


def test_what_lies_on_a_device_is_picked_out_of_what_crosses() -> None:
    beside = Crossings(torch.device("meta"), gathered=True)
    here, there = torch.ones(2), torch.ones(3, device="meta")
    with patch.object(crossings, "_together", lambda tensors, move: ["moved"] * len(tensors)):
        assert beside.to_host([here, there, here]) == [here, "moved", here]


def test_pairs_asked_at_once_agree_where_they_agree_one_by_one(gathered: Crossings) -> None:
    one_by_one = [same_bits(*pair) for pair in PAIRS]
    assert gathered.same(PAIRS) == one_by_one == [True, False, False, False, True, True, False]


def test_the_device_is_asked_once_about_all_pairs(gathered: Crossings) -> None:
    with Calls() as calls:
        gathered.same(PAIRS)
    assert calls.seen["tolist"] == 1 and not calls.seen.keys() & {"equal", "__bool__"}
