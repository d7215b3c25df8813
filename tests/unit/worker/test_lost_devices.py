"""When the process of an engine is not used again, although it lives."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.finding import Finding
from fuzzgraph.run.spec import Setup
from fuzzgraph.worker.serve import RequestHandler


def answered(device: Any, error: str) -> bool:
    """Whether a device counts as lost behind this error of an engine; it answers a probe."""
    handler = RequestHandler(lambda stage, step: None)
    handler._setup = Setup(device=device)
    finding = Finding(
        oracle="survival",
        clause="survives",
        target="engine",
        step=-1,
        mode="decode",
        buffer="",
        symptom="exception",
        stage="capture",
        message="capture raised an error",
        detail={"error": error},
    )
    return handler._device_lost((finding,))


_REFUSED = "CaptureError: The device refused to capture graph '4': operation not permitted."


def test_a_process_whose_device_refused_a_capture_is_not_used_again() -> None:
    assert answered("cuda", _REFUSED)


@pytest.mark.parametrize(
    ("device", "error"), [("cpu", _REFUSED), ("cuda", "ValueError: an engine's own")]
)
def test_a_process_that_nothing_was_left_behind_in_goes_on(device: str, error: str) -> None:
    assert not answered(device, error)
