"""Strategies: cases that reach every dimension in which graph replay is known to break."""

from __future__ import annotations

from fuzzgraph.strategies.cases import cases
from fuzzgraph.strategies.generation import BLOCK, block_size, draw
from fuzzgraph.strategies.minimise import Minimised, minimise, minimise_counting
from fuzzgraph.strategies.profile import (
    CI,
    DEFAULT,
    DEVICE,
    NIGHTLY,
    PROFILES,
    Profile,
    profile_named,
)

__all__ = [
    "BLOCK",
    "CI",
    "DEFAULT",
    "DEVICE",
    "NIGHTLY",
    "PROFILES",
    "Minimised",
    "Profile",
    "block_size",
    "cases",
    "draw",
    "minimise",
    "minimise_counting",
    "profile_named",
]
