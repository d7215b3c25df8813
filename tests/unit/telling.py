"""A target that lets a real child tell what its execution was given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

import fuzzgraph.execution
from fuzzgraph.run.spec import Setup
from tests.fakes import FakeTarget

Real = fuzzgraph.execution.Execution


def told(target: Any, setup: Setup) -> Any:
    Path(os.environ["FUZZGRAPH_TOLD"]).write_bytes(msgspec.json.encode(setup))
    return Real(target, setup)


class Telling(FakeTarget):
    def __init__(self) -> None:
        setattr(fuzzgraph.execution, "Execution", told)  # noqa: B010
