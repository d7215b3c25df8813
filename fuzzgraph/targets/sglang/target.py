"""What every target on a released sglang is."""

from __future__ import annotations

from fuzzgraph.targets.offline.target import ReleasedTarget

__all__ = ["SglangTarget"]


class SglangTarget(ReleasedTarget):
    """One mode of one runner or backend of the sglang release that this process holds."""

    package = "sglang"
