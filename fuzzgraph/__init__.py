"""Fuzzes captured GPU graphs of LLM serving engines.

Importing this is light: the words of a case and of a finding. Whatever needs torch, an engine or
Hypothesis is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, decode_case, load_case
from fuzzgraph.errors import FuzzGraphError, InvalidCase, UsageError
from fuzzgraph.finding import Finding

if TYPE_CHECKING:
    from fuzzgraph.api import FindingError, cases, check, run_case

__version__ = "0.1.0"

__all__ = [
    # a case
    "BatchRow",
    "Case",
    "EngineConfig",
    "ReplayStep",
    "decode_case",
    "load_case",
    # running it
    "cases",
    "check",
    "run_case",
    # what may come of it
    "Finding",
    "FindingError",
    "FuzzGraphError",
    "InvalidCase",
    "UsageError",
    "__version__",
]

_LAZY = ("FindingError", "cases", "check", "run_case")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module("fuzzgraph.api"), name)
    raise AttributeError(f"module 'fuzzgraph' has no attribute {name!r}")
