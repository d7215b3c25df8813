"""The built-in engine: small, healthy, and of the same structure as serving engines."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuzzgraph.targets.entry import TargetEntry

if TYPE_CHECKING:
    from fuzzgraph.targets.builtin.components import Components
    from fuzzgraph.targets.builtin.target import BuiltinTarget

__all__ = ["TARGETS", "BuiltinTarget", "Components"]

TARGETS = (
    TargetEntry("builtin", "builtin.target", "BuiltinTarget", {"kernels": "torch"}),
    TargetEntry("builtin-pinned", "builtin.target", "BuiltinTarget", {"overlap": "pinned"}),
    TargetEntry("builtin-mirrored", "builtin.target", "BuiltinTarget", {"overlap": "mirrored"}),
    TargetEntry("builtin-streams", "builtin.target", "BuiltinTarget", {"overlap": "streams"}),
    TargetEntry("builtin-triton", "builtin.target", "BuiltinTarget", {"kernels": "triton"}),
)


def __getattr__(name: str) -> Any:
    """Imports torch only for whom needs it: the names of targets do not."""
    module = {"Components": "components", "BuiltinTarget": "target"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
