"""Planted bugs of prompts of short convolutions, each of them the change of one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.targets.sglang.runners.eager_prefill import ShortConvPrefillTarget
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import with_changed_sessions


def _planted(change: Callable[[Any], None]) -> ShortConvPrefillTarget:
    return with_changed_sessions(ShortConvPrefillTarget("sglang-short-conv-prefill"), change)


def _layer(line: str, other: str) -> ShortConvPrefillTarget:
    """A line of LFM2's layer, as all prompts run it."""

    def change(session: Any) -> None:
        change_line(session._attention.recurrent, "forward", line, other)

    return _planted(change)


def past_lost() -> ShortConvPrefillTarget:
    """No prompt goes on from what a part before it has left."""
    return _layer("has_initial_state=meta.has_initial_state,", "has_initial_state=None,")


def slots_of_the_first_rows() -> ShortConvPrefillTarget:
    """Each row's inputs are kept in the slot of the row at the other end."""
    line = "cache_indices=meta.cache_indices,"
    return _layer(line, "cache_indices=meta.cache_indices.flip(0),")


def gates_swapped() -> ShortConvPrefillTarget:
    """The gate behind the convolution stands before it, and the other way round."""
    line = "B_gate, C_gate, x = proj.chunk(3, dim=-1)"
    return _layer(line, "C_gate, B_gate, x = proj.chunk(3, dim=-1)")


def slots_are_not_refreshed() -> ShortConvPrefillTarget:
    """Slots are looked up once."""

    def change(session: Any) -> None:
        recurrent = session.backend.short_conv_backend
        stock = recurrent._refresh_cache_indices

        def kept() -> None:
            if recurrent._cache_indices is None:
                stock()

        recurrent._refresh_cache_indices = kept

    return _planted(change)
