"""DeepSeek V4's verify with one line of the engine changed; opened by name."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Target
from tests.targets.sglang.changed_lines import change_line, changed_method

__all__ = [
    "drafts_end_a_place_early",
    "metadata_of_the_graph_before",
    "plans_without_the_drafts",
    "rings_as_without_drafts",
    "slots_of_the_graph_before",
    "states_of_the_last_draft_alone",
    "upgraded_before_the_capture",
    "windows_of_the_first_row",
]


def _changed(change: Callable[[Any], None]) -> Dsv4Target:
    """The target, with what `change` does to the backend of each session."""
    target = Dsv4Target("sglang-dsv4-verify", "target_verify")
    open_session = target.open

    def opened(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        change(session.backend)
        return session

    target.open = opened  # type: ignore[method-assign]
    return target


def _line(method: str, line: str, other: str = "pass") -> Dsv4Target:
    return _changed(lambda backend: change_line(backend, method, line, other))


def upgraded_before_the_capture() -> Dsv4Target:
    """What the warm-up has upgraded stays: the graph holds no upgrade."""
    return _line("on_after_cuda_graph_warmup", "self.forward_metadata = current_raw")


def metadata_of_the_graph_before() -> Dsv4Target:
    """A replay's raw metadata is made, and never reaches the graph's."""
    return _line("replay_cuda_graph_metadata_from", "chosen_metadata.copy_(temp_metadata)")


def drafts_end_a_place_early() -> Dsv4Target:
    """Each draft is taken for the one before it."""
    return _line("expand_extend_with_same_length", "-qo_len + 1, 1,", "-qo_len, 0,")


def plans_without_the_drafts() -> Dsv4Target:
    """The compressor's plans are made of the lengths before the drafts."""
    return _line(
        "make_forward_metadata_from_raw_verify",
        "seq_lens=seq_lens,\n        extend_lens",
        "seq_lens=raw_metadata.seq_lens,\n        extend_lens",
    )


def states_of_the_last_draft_alone() -> Dsv4Target:
    """The compressor's plans are those of rows with one token."""
    return _line(
        "make_forward_metadata_from_raw_verify",
        "extend_lens=extend_seq_lens,",
        "extend_lens=torch.ones_like(extend_seq_lens),",
    )


def windows_of_the_first_row() -> Dsv4Target:
    """All rows of a verify read the request of the first."""
    return _line(
        "expand_extend_with_same_length",
        "req_pool_indices[idx_to_req_repeated]",
        "req_pool_indices[idx_to_req_repeated * 0]",
    )


def slots_of_the_graph_before() -> Dsv4Target:
    """Slots of new tokens in raw metadata stay as they were captured."""

    def change(backend: Any) -> None:
        make = backend.init_forward_metadata_target_verify

        def made(*given: Any, **named: Any) -> Any:
            raw = make(*given, **named)
            line = "self.out_cache_loc.copy_(other.out_cache_loc)"
            raw.copy_ = types.MethodType(changed_method(type(raw), "copy_", line), raw)
            return raw

        backend.init_forward_metadata_target_verify = made

    return _changed(change)


def rings_as_without_drafts() -> Dsv4Target:
    """The pool's rings of states are as small as without speculation."""

    def change(backend: Any) -> None:
        backend.token_to_kv_pool.get_ring_size = lambda compress_ratio: 2 * compress_ratio

    return _changed(change)
