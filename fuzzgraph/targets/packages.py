"""Engines whose releases are fetched: the name that is imported beside the one that pip knows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import requires

__all__ = ["ENGINES", "EngineNames", "companions_of", "distribution_of", "unread_folders"]


@dataclass(frozen=True, slots=True)
class EngineNames:
    """One engine."""

    package: str
    """Import name, which targets give as `package`."""
    distribution: str
    """Name in a package index, as that writes it."""
    unread: tuple[str, ...] = ()
    """Folders of its wheels that no host code of attention reads, from the wheel's root."""


ENGINES = (
    EngineNames(package="sglang", distribution="sglang"),
    EngineNames(package="vllm", distribution="vllm"),
    EngineNames(
        package="flashinfer",
        distribution="flashinfer-python",
        # Sources for its compiler, in whose place models stand, and kernels of experts: 0.7.2 has
        # 218 of its 287 MB there.
        unread=("flashinfer/data", "flashinfer/fused_moe", "flashinfer/moe_ep"),
    ),
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


def unread_folders(distribution: str) -> tuple[str, ...]:
    """What is not kept of the wheels of a distribution; nothing of those without a row.

    >>> unread_folders("flashinfer-python")[0], unread_folders("mine")
    ('flashinfer/data', ())
    """
    return next((row.unread for row in ENGINES if row.distribution == distribution), ())


def companions_of(package: str, requirements: Iterable[str] | None = None) -> tuple[str, ...]:
    """Distributions that releases of an engine import beside torch: FuzzGraph's extra of its name.

    Args:
        requirements: in place of those that this installation of FuzzGraph states.

    >>> companions_of("vllm", ['einops>=0.8; extra == "vllm"', 'ray>=2; extra == "fleet"'])
    ('einops',)
    """
    stated = requires("fuzzgraph") if requirements is None else requirements
    return tuple(
        re.split(r"[^\w.-]", each, maxsplit=1)[0]
        for each in stated or ()
        if re.search(rf"""extra == ["']{re.escape(package)}["']""", each)
    )
