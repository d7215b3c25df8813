"""Strategies: cases that reach every dimension in which graph replay is known to break."""

from __future__ import annotations

from fuzzgraph.strategies.cases import cases
from fuzzgraph.strategies.profile import CI, DEFAULT, NIGHTLY, PROFILES, Profile, profile_named

__all__ = ["CI", "DEFAULT", "NIGHTLY", "PROFILES", "Profile", "cases", "profile_named"]
