"""How the healthy engine lets work overlap that need not wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fuzzgraph.targets.builtin.components import Components
from fuzzgraph.targets.builtin.runners.side_streams import SideStreamRunner, on_side_streams
from fuzzgraph.targets.builtin.staging import MirroredRegistry, StagedRegistry, staged_by

Overlap = Literal["", "pinned", "mirrored", "streams"]
"""Nothing; copies of inputs from pinned memory, for which the host does not wait; these, with
lengths that are copied back; these, with streams of the device."""

HEALTHY: Mapping[Overlap, Components] = {
    "": Components(),
    "pinned": staged_by(StagedRegistry),
    "mirrored": staged_by(MirroredRegistry),
    "streams": on_side_streams(SideStreamRunner),
}
"""The healthy engine of each kind."""

ABOUT: Mapping[Overlap, str] = {
    "": "",
    "pinned": ", pinned inputs",
    "mirrored": ", mirrored lengths",
    "streams": ", side streams",
}
"""The same in words, behind others."""
