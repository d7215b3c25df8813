"""What a device forbids during capture is refused here too, in one readable line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fuzzgraph.errors import AdapterUnavailable, CaptureError, UsageError
from fuzzgraph.graphs import Recorder, open_engine
from fuzzgraph.memory import GuardedMemory

Forward = Callable[[torch.Tensor, torch.Tensor], object]

REFUSED: dict[str, tuple[Forward, str]] = {
    "item": (lambda x, i: x.sum().item(), r"Tensor\.item\(\) read float32\[\]"),
    "tolist": (lambda x, i: x.tolist(), r"Tensor\.tolist\(\)"),
    "numpy": (lambda x, i: x.numpy(), r"Tensor\.numpy\(\)"),
    "numpy array": (lambda x, i: np.asarray(x), r"Tensor\.__array__\(\)"),
    "cpu": (lambda x, i: x.cpu(), r"Tensor\.cpu\(\)"),
    "truth": (lambda x, i: 1 if (x > 0).any() else 2, r"Tensor\.__bool__\(\)"),
    "int": (lambda x, i: int(i[0]), r"Tensor\.__int__\(\)"),
    "float": (lambda x, i: float(x[0]), r"Tensor\.__float__\(\)"),
    "range": (lambda x, i: range(i[0]), r"Tensor\.__index__\(\)"),
    "contains": (lambda x, i: 1 in i, r"Tensor\.__contains__\(\)"),
    "equal": (lambda x, i: torch.equal(x, x), r"aten\.equal\.default read a value"),
    "allclose": (lambda x, i: torch.allclose(x, x), r"aten\..* read a value"),
    "nonzero": (lambda x, i: x.nonzero(), r"aten\.nonzero\.default has a result whose shape"),
    "where of one argument": (lambda x, i: torch.where(x > 0), r"aten\.nonzero"),
    "mask read": (lambda x, i: x[x > 0], r"aten\.index\.Tensor has a result whose shape"),
    "mask write of many": (lambda x, i: x.__setitem__(x > 0, i[1:] * 1.0), r"aten\.index_put_"),
    "masked_select": (lambda x, i: x.masked_select(x > 0), r"aten\.masked_select"),
    "unique": (lambda x, i: i.unique(), r"aten\._unique2"),
    "repeat_interleave": (lambda x, i: x.repeat_interleave(i), r"aten\.repeat_interleave"),
    "tensor of a list": (lambda x, i: torch.tensor([1, 2]), r"torch\.tensor copied pageable host"),
    "number for the device": (
        lambda x, i: torch.tensor(1.5, device=x.device),
        r"torch\.tensor copied pageable host",
    ),
    "as_tensor": (lambda x, i: torch.as_tensor([1]), r"torch\.as_tensor copied pageable host"),
    "from_numpy": (lambda x, i: torch.from_numpy(np.zeros(2)), r"pageable host copy"),
    "new_tensor": (lambda x, i: x.new_tensor([1.0]), r"Tensor\.new_tensor copied"),
    "list as index": (lambda x, i: x[[0, 1]], r"pageable host copy"),
    "legacy constructor": (lambda x, i: torch.Tensor([1.0]), r"pageable host copy"),
}


def capture(forward: Forward) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        x, index = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1, 0, 2])
    Recorder(memory).capture(lambda: forward(x, index), key="decode:4")


@pytest.mark.parametrize(("forward", "what"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_device_forbids_is_refused(forward: Forward, what: str) -> None:
    with pytest.raises(CaptureError, match=what) as refusal:
        capture(forward)
    message = str(refusal.value)
    assert "graph 'decode:4'" in message and "test_capture_rules.py:" in message
    assert "prepare_replay" in message and "\n" not in message


ALLOWED: dict[str, Forward] = {
    "scalar write through an index": lambda x, i: x.__setitem__(i, 0),
    "masked fill": lambda x, i: x.masked_fill_(x > 0, 0),
    "masked write of one value": lambda x, i: x.__setitem__(x > 0, 0.0),
    "repeat with a known size": lambda x, i: x.repeat_interleave(i, output_size=3),
    "shape": lambda x, i: x.new_zeros(x.shape[0] + x.numel() + len(x)),
    "address": lambda x, i: x.data_ptr(),
    "iteration": lambda x, i: [row + 1 for row in x],
    "device by name": lambda x, i: x.to("cpu"),
    "a number of the host": lambda x, i: x.minimum(torch.tensor(1.5)),
    "as_tensor of a tensor": lambda x, i: torch.as_tensor(x),
    "where of three arguments": lambda x, i: torch.where(x > 0, x, i),
}


@pytest.mark.parametrize("forward", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_a_device_allows_is_captured(forward: Forward) -> None:
    capture(forward)


def test_reading_values_is_free_again_after_a_refused_capture() -> None:
    with pytest.raises(CaptureError):
        capture(lambda x, i: x.tolist())
    assert torch.ones(2).tolist() == [1.0, 1.0]
    assert torch.tensor([1, 2]).nonzero().numel() == 2


def test_a_device_graph_without_a_device_is_unavailable() -> None:
    with pytest.raises(AdapterUnavailable, match="memory lies on cpu"):
        open_engine("device", GuardedMemory())


def test_an_unknown_engine_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'tape' is unknown\. Use 'recorder', 'device' or"):
        open_engine("tape", GuardedMemory())  # type: ignore[arg-type]
