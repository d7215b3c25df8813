"""Numbers in NVFP4: two in a byte, a scale for every 16."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph import nvfp4
from fuzzgraph.errors import FuzzGraphError


def test_the_first_of_two_numbers_lies_in_the_lower_half_of_a_byte() -> None:
    packed, scales = nvfp4.encoded(torch.tensor([0.5, -6.0, *[0.0] * 14]))
    assert packed.tolist() == [0xF1, *[0] * 7]
    assert scales.view(torch.float8_e4m3fn).tolist() == [1.0]


@pytest.mark.parametrize("scale", [0.25, 1.0, 3.5])
def test_numbers_come_back_as_they_were(scale: float) -> None:
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    numbers = torch.cat((magnitudes, -magnitudes)).repeat(3, 2) * scale
    assert torch.equal(nvfp4.decoded(*nvfp4.encoded(numbers)), numbers)


def test_numbers_that_the_format_has_not_are_refused() -> None:
    with pytest.raises(FuzzGraphError, match="holds numbers that NVFP4 has not"):
        nvfp4.encoded(torch.tensor([6.0, 2.5, *[0.0] * 14]))
