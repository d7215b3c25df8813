"""The built-in engine: small, healthy, and of the same structure as serving engines."""

from __future__ import annotations

from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.target import BuiltinTarget

__all__ = ["BuiltinTarget", "Components"]
