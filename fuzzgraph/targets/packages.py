"""Engines whose releases are fetched: the name that is imported beside the one that pip knows."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["ENGINES", "EngineNames", "distribution_of"]


@dataclass(frozen=True, slots=True)
class EngineNames:
    """One engine."""

    package: str
    """Import name, which targets give as `package`."""
    distribution: str
    """Name in a package index, as that writes it."""


ENGINES = (
    EngineNames(package="sglang", distribution="sglang"),
    EngineNames(package="vllm", distribution="vllm"),
    EngineNames(package="flashinfer", distribution="flashinfer-python"),
)


def distribution_of(name: str) -> str:
    """What pip calls a package that is given by its import name, or by any spelling pip takes.

    A package without a row is called as it is imported.

    >>> distribution_of("flashinfer"), distribution_of("FlashInfer_Python"), distribution_of("mine")
    ('flashinfer-python', 'flashinfer-python', 'mine')

    Source: packaging specification "Names and normalization".
    """
    for row in ENGINES:
        if row.package == name:
            return row.distribution
    return re.sub(r"[-_.]+", "-", name).lower()
