"""The built-in engine: small, healthy, and of the same structure as serving engines."""

from __future__ import annotations

from fuzzgraph.targets.builtin.parts import Parts
from fuzzgraph.targets.builtin.target import BuiltinTarget

__all__ = ["BuiltinTarget", "Parts"]
