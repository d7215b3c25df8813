"""Floats of 8 bits, rounded to the nearest as on a device, which is what torch does too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl

from fuzzgraph.lanes import lanes
from fuzzgraph.lanes.small_floats import as_floats, as_small
from tests.lanes.kernels import small_floats
from tests.lanes.test_same_bytes import drawn

KINDS = [
    (tl.float8e4nv, torch.float8_e4m3fn),
    (tl.float8e5, torch.float8_e5m2),
    (tl.float8e4b8, torch.float8_e4m3fnuz),
    (tl.float8e5b16, torch.float8_e5m2fnuz),
]
each_kind = pytest.mark.parametrize(("kind", "dtype"), KINDS, ids=[str(kind) for kind, _ in KINDS])


@each_kind
def test_every_code_is_the_number_that_torch_takes_it_for(kind: object, dtype: torch.dtype) -> None:
    codes = np.arange(256, dtype=np.uint8)
    want = torch.from_numpy(codes).view(dtype).float().numpy()
    np.testing.assert_array_equal(as_floats(codes, kind), want)


@each_kind
def test_a_number_that_was_stored_comes_back_as_its_code(kind: object, dtype: torch.dtype) -> None:
    codes = np.arange(256, dtype=np.uint8)
    numbers = as_floats(codes, kind)
    np.testing.assert_array_equal(as_floats(as_small(numbers, kind), kind), _saturated(numbers))


def _saturated(numbers: np.ndarray) -> np.ndarray:
    """Of the codes of e5m2 those of infinity are the largest number then."""
    return np.where(np.isinf(numbers), np.copysign(57344.0, numbers), numbers)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (0.4998, 0.5),
        (0.12428, 0.125),
        (1.0625, 1.0),
        (1.1875, 1.25),
        (500.0, 448.0),
        (-1e9, -448.0),
    ],
)
def test_a_number_becomes_the_nearest_the_even_one_or_the_largest(
    given: float, stored: float
) -> None:
    kind = tl.float8e4nv
    assert as_floats(as_small(np.array([given], np.float32), kind), kind).tolist() == [stored]


def over_lanes(kernel: str, seed: int, times: int) -> tuple[Any, ...]:
    """The arguments of a launch as its last run leaves them, of so many on copies."""
    first = drawn(kernel, small_floats.DRAWS[kernel], seed)
    for _ in range(times):
        launch = first.copy()
        with lanes() as report:
            launch.run()
        assert not report.fallbacks and report.runs
    return launch.args


each_way = pytest.mark.parametrize("times", [1, 4], ids=["first", "played back"])


@each_way
def test_a_kernel_that_stores_fp8_leaves_what_torch_makes_of_the_numbers(times: int) -> None:
    for seed in range(40):
        given, small, back, _ = over_lanes("small_floats", seed, times)
        most = torch.finfo(small.dtype).max
        want = given.float().clamp(-most, most).to(small.dtype)
        assert torch.equal(small.view(torch.uint8), want.view(torch.uint8)), seed
        np.testing.assert_allclose(back.float(), want.float(), rtol=2**-8)


@each_way
def test_weights_in_fp8_are_the_nearest(times: int) -> None:
    for seed in range(10):
        weights, values, out = over_lanes("weighted", seed, times)
        want = weights.to(values.dtype).double() @ values.double()
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)
