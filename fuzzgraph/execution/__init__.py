"""Runs cases: from opening a target to the verdict."""

from __future__ import annotations

from fuzzgraph.execution.execution import Execution
from fuzzgraph.execution.verdict import Verdict

__all__ = ["Execution", "Verdict"]
