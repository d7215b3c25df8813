"""Graphs of a vision encoder with one line of the engine's runner changed; opened by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fuzzgraph.targets import open_target
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions


def _mend(session: Any) -> None:
    """What is handed out has memory of its own; see sglang-vit-cached-features.md."""
    run = session.runner.run

    @functools.wraps(run)
    def copied(*given: Any, **named: Any) -> Any:
        return run(*given, **named).clone()

    session.runner.run = copied


def _changed(name: str, line: str, other: str, target: str = "sglang-vit") -> Callable[[], Any]:
    def change(session: Any) -> None:
        change_line(session.runner, name, line, other)
        _mend(session)

    return lambda: with_changed_sessions(open_target(target), change)


def mended() -> Any:
    """No planted bug."""
    return with_changed_sessions(open_target("sglang-vit"), _mend)


def mended_fa3() -> Any:
    """The same on FlashAttention 3."""
    return with_changed_sessions(open_target("sglang-vit-fa3"), _mend)


patches_of_the_capture = _changed("replay", "self.block_input[graph_key].copy_(x_3d)", "pass")
positions_of_the_capture = _changed("replay", "used_cos_ws.copy_(rotary_pos_emb_cos)", "pass")
sines_of_the_capture = _changed("replay", "used_sin_ws.copy_(rotary_pos_emb_sin)", "pass")
layouts_share_a_graph = _changed(
    "_get_graph_key", "return (x_3d.shape[0], attention_layout_key)", "return (x_3d.shape[0], 0)"
)
longest_image_cut = _changed(
    "_create_graph", "max_full_len = int(cu_full_kk.max().item())", "max_full_len = 1"
)
"""Blocks of the kernel's grid behind the first are left out."""
layers_by_windows = _changed(
    "create_graph", "self.cu_full_len_kk[graph_key] = cu_seqlens[1:] - cu_seqlens[:-1]\n\n",
    "self.cu_full_len_kk[graph_key] = cu_seqlens[1:] - cu_seqlens[:-1] - 1\n\n",
)  # fmt: skip
"""Images have one patch less."""
bounds_without_the_longest = _changed(
    "_create_graph", "cu_seq_len_ws = [cu_seqlens_now, max_len]",
    "cu_seq_len_ws = [cu_seqlens_now, 1]", "sglang-vit-fa3",
)  # fmt: skip
"""FlashAttention 3 is told that images have one patch."""
layouts_share_a_graph_of_fa3 = _changed(
    "_get_graph_key", "return (x_3d.shape[0], attention_layout_key)",
    "return (x_3d.shape[0], 0)", "sglang-vit-fa3",
)  # fmt: skip
windows_are_whole_images = _changed(
    "_create_graph", "if layer_num in vit.fullatt_block_indexes:", "if True:"
)
features_in_the_order_of_windows = _changed(
    "replay", "out = out.index_select(0, output_indices)", "pass"
)
