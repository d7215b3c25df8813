"""Bit equality and the yardstick: what they accept, what they refuse."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.rules.comparison import beyond_tolerance, first_difference, same_bits, tolerance

_F32 = torch.float32


def _exact() -> float:
    """Plain torch makes no error."""
    return 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32])
def test_a_tensor_has_the_same_bits_as_its_copy(dtype: torch.dtype) -> None:
    values = torch.arange(6).to(dtype)
    assert same_bits(values, values.clone())


def test_equal_nans_are_the_same_bits() -> None:
    values = torch.tensor([float("nan"), 1.0])
    assert same_bits(values, values.clone())


def test_minus_zero_is_not_zero() -> None:
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_another_shape_or_dtype_is_never_the_same() -> None:
    assert not same_bits(torch.zeros(2), torch.zeros(3))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))


def test_the_first_difference_names_place_values_and_count() -> None:
    want = torch.arange(6.0).view(2, 3)
    got = want.clone()
    got[1, 0], got[1, 2] = 9.0, 8.0
    difference = first_difference(got, want)
    assert difference is not None
    assert str(difference) == "[1, 0]: got 9, expected 3 (2 elements differ)"


def test_no_difference_is_none() -> None:
    assert first_difference(torch.ones(3), torch.ones(3)) is None


def test_tensors_of_different_length_differ() -> None:
    assert first_difference(torch.ones(3), torch.ones(2)) is not None


def test_an_error_within_twice_that_of_plain_torch_passes() -> None:
    want = torch.zeros(4, dtype=torch.float64)
    assert beyond_tolerance(torch.full((4,), 1.0), want, lambda: 0.5, 0.0, _F32) is None


def test_an_error_beyond_twice_that_of_plain_torch_is_found() -> None:
    want = torch.zeros(4, dtype=torch.float64)
    worst = beyond_tolerance(torch.tensor([0.0, 0.0, 1.01, 0.0]), want, lambda: 0.5, 0.0, _F32)
    assert worst is not None
    assert worst.index == (2,)


def test_values_that_nearly_cancel_are_allowed_the_rounding_of_their_bound() -> None:
    want = torch.zeros(1, dtype=torch.float64)
    assert beyond_tolerance(torch.tensor([2.3e-6]), want, _exact, 4.0, _F32) is None
    assert beyond_tolerance(torch.tensor([2.5e-6]), want, _exact, 4.0, _F32) is not None


def test_the_tolerance_is_where_the_yardstick_ends() -> None:
    allowed = tolerance(torch.bfloat16, 4.0, 0.5)
    want = torch.full((1,), 3.0, dtype=torch.float64)
    for step, found in ((-1e-9, False), (1e-9, True)):
        got = torch.full((1,), 3.0, dtype=torch.bfloat16)
        worst = beyond_tolerance(got, want + allowed + step, lambda: 0.5, 4.0, torch.bfloat16)
        assert (worst is not None) == found


def test_plain_torch_is_asked_only_where_the_bound_does_not_settle_it() -> None:
    want, asked = torch.zeros(1, dtype=torch.float64), []

    def plain_error() -> float:
        asked.append("plain")
        return 1.0

    assert beyond_tolerance(torch.tensor([2.3e-6]), want, plain_error, 4.0, _F32) is None
    assert not asked
    assert beyond_tolerance(torch.tensor([2.5e-6]), want, plain_error, 4.0, _F32) is None
    assert asked


def test_nan_is_always_beyond_the_yardstick() -> None:
    want = torch.zeros(1, dtype=torch.float64)
    assert beyond_tolerance(torch.tensor([float("nan")]), want, lambda: 1.0, 1e9, _F32) is not None


def test_integers_must_be_equal() -> None:
    want = torch.tensor([1, 2, 3])
    assert beyond_tolerance(torch.tensor([1, 2, 3]), want, _exact, 1.0, _F32) is None
    assert beyond_tolerance(torch.tensor([1, 2, 4]), want, _exact, 1.0, _F32) is not None


def test_empty_outputs_agree() -> None:
    assert (
        beyond_tolerance(torch.zeros(0, 2), torch.zeros(0, 2).double(), _exact, 1.0, _F32) is None
    )


def test_a_result_in_a_coarser_dtype_is_allowed_no_more() -> None:
    want, coarse = torch.ones(1, dtype=torch.float64), torch.tensor([1.0078125]).bfloat16()
    assert beyond_tolerance(coarse, want, _exact, 1.0, _F32) is not None
    assert beyond_tolerance(coarse, want, _exact, 1.0, torch.bfloat16) is None


def test_a_difference_of_form_names_shapes_and_dtypes() -> None:
    difference = first_difference(torch.ones(2, dtype=torch.int32), torch.ones(3))
    assert str(difference) == ": got [2] of int32, expected [3] of float32"
    assert str(difference and difference.swapped) == ": got [3] of float32, expected [2] of int32"
