"""What holds of a capture holds in both modes that engines serve in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[torch.no_grad, torch.inference_mode], autouse=True)
def without_grad(request: pytest.FixtureRequest) -> Iterator[None]:
    """Under `inference_mode` a dispatch mode is handed composite operations whole."""
    with request.param():
        yield
