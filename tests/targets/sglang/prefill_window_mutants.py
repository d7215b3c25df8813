"""Planted bugs of prefill graphs over two pools, each of them the change of one line of sglang."""

from __future__ import annotations

from fuzzgraph.targets.sglang.runners.full_prefill import FullPrefillTarget
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from tests.targets.sglang.planted import with_a_line_changed

__all__ = ["other_tables", "sink", "unbound_replay"]

_PLAN = "sglang.srt.mem_cache.kv_loc_plan:KVLocPlan"
_FULL = "sglang.srt.layers.attention.flashattention_backend:FlashAttentionBackend"


def _breakable() -> PrefillTarget:
    return PrefillTarget("sglang-breakable-prefill", "breakable")


def _full() -> FullPrefillTarget:
    return FullPrefillTarget("sglang-full-prefill")


unbound_replay = with_a_line_changed(
    _breakable, _PLAN, "bind_replay", "self.bind(batch, reader)", "pass"
)
"""What a graph runs on does not say that its slots are physical."""

sink = with_a_line_changed(
    _breakable,
    _PLAN,
    "_window_in",
    "return space.write(self.write_virtual)",
    "return torch.zeros_like(self.write_virtual)",
)
"""New keys and values go to the padding slot."""

other_tables = with_a_line_changed(
    _full,
    _FULL,
    "_init_full_cg_prefill_metadata",
    "kind=IdSpaceKind.SLIDING_WINDOW,",
    "kind=IdSpaceKind.FULL,",
)
"""Graphs read the window's keys by the pages of the layer that sees all."""
