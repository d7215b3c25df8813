"""Engines that hand something wrong over while they prepare a replay; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import Target
from fuzzgraph.targets import open_target

__all__ = ["longer_drafts", "lost_metadata", "raw_mirror", "stale_mirror"]

_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"


def _after_capture(name: str, change: Callable[[Any], None]) -> Target:
    """A target whose session is changed as soon as its graphs are captured."""
    target: Any = open_target(name)
    open_session = target.open

    def open_changed(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        capture = session.capture

        def capture_then_change() -> None:
            capture()
            change(session)

        session.capture = capture_then_change
        return session

    target.open = open_changed
    changed: Target = target
    return changed


def lost_metadata() -> Target:
    """The backend has no metadata any more once a replay is prepared."""

    def forget(session: Any) -> None:
        backend = session.backend
        prepare = backend.init_forward_metadata_out_graph

        def prepare_and_forget(*args: Any, **named: Any) -> None:
            prepare(*args, **named)
            backend.forward_metadata = None

        backend.init_forward_metadata_out_graph = prepare_and_forget

    return _after_capture("sglang-fa3", forget)


def longer_drafts() -> Target:
    """Query offsets of a verify count a token too many for each row: [0, 4, 8] for [0, 3, 6]."""

    def lengthen(session: Any) -> None:
        for metadata in session.backend.target_verify_metadata.values():
            offsets = getattr(metadata, "cu_seqlens_q", None)
            if isinstance(offsets, torch.Tensor):
                offsets += torch.arange(len(offsets), dtype=offsets.dtype)

    return _after_capture("sglang-fa3-verify", lengthen)


def _with_view(change: Callable[[Any, Any], Any]) -> Target:
    """The backend gets another host mirror than the runner's.

    Args:
        change: (view that the backend would get, batch) -> its lengths on the host.
    """

    def replace(session: Any) -> None:
        backend = session.backend
        prepare = backend.init_forward_metadata_out_graph

        def prepare_with(view: Any, **named: Any) -> None:
            mirror = change(view, session._last_batch)
            prepare(SimpleNamespace(**{**vars(view), "seq_lens_cpu": mirror}), **named)

        backend.init_forward_metadata_out_graph = prepare_with

    return _after_capture("sglang-fa3", replace)


def raw_mirror() -> Target:
    """Lengths of the live rows alone beside a padded batch size."""
    return _with_view(lambda view, batch: batch.seq_lens_cpu)


def stale_mirror() -> Target:
    """Lengths on the host that are those of the step before."""
    return _with_view(lambda view, batch: view.seq_lens_cpu - (view.seq_lens_cpu > 1).long())
