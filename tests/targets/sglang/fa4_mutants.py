"""FlashAttention 4 with one line of the engine's backend changed; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets import open_target
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions


def _changed(target: str, name: str, line: str, other: str) -> Callable[[], Any]:
    def change(session: Any) -> None:
        change_line(session.backend, name, line, other)

    return lambda: with_changed_sessions(open_target(target), change)


windows_by_the_other_table = _changed(
    "sglang-dspark-verify-fa4", "init_forward_metadata_in_graph",
    "swa_v2p=None if swa is None else swa.read_v2p",
    "swa_v2p=translator.space(IdSpaceKind.FULL).read_v2p",
)  # fmt: skip
tables_end_before_the_block = _changed(
    "sglang-dspark-verify-fa4", "init_forward_metadata_in_graph",
    "self.speculative_num_draft_tokens,", "0,",
)  # fmt: skip
lengths_of_the_step_before = _changed(
    "sglang-fa4", "_set_decode_page_metadata", "seq_lens,\n        seq_len_delta,",
    "seq_lens - 1,\n        seq_len_delta,",
)  # fmt: skip
