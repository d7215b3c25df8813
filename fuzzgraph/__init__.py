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
    from fuzzgraph.api import (
        FindingError,
        batches,
        cases,
        check,
        configs,
        histories,
        run_case,
    )

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
    "check",
    "run_case",
    # drawing one, or a part of it, with Hypothesis
    "batches",
    "cases",
    "configs",
    "histories",
    # what may come of it
    "Finding",
    "FindingError",
    "FuzzGraphError",
    "InvalidCase",
    "UsageError",
    "__version__",
]

_LAZY = ("FindingError", "batches", "cases", "check", "configs", "histories", "run_case")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module("fuzzgraph.api"), name)
    raise AttributeError(f"module 'fuzzgraph' has no attribute {name!r}")
