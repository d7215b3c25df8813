"""Prefill targets whose engine forgets something, and one that watches it; opened by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession
from fuzzgraph.world import Batch

__all__ = [
    "breakable_doubles_start_locs",
    "breakable_keeps_slots",
    "breakable_moves_positions",
    "breakable_plans_once",
    "breakable_watched",
    "piecewise_doubles_start_locs",
    "piecewise_keeps_slots",
    "piecewise_moves_positions",
    "piecewise_plans_once",
    "piecewise_watched",
]

Change = Callable[[PrefillSession, Any], None]
"""What becomes of an opened session; its graph engine is given too."""


def changed(kind: str, change: Change, *, before_capture: bool = False) -> PrefillTarget:
    """The target of one kind of graphs, changed once they are captured, or before."""
    target = PrefillTarget("sglang-prefill", kind)
    open_session = target.open

    def open_changed(config: EngineConfig, graphs: Any) -> Any:
        session: Any = open_session(config, graphs)
        capture = session.capture

        def capture_and_change() -> None:
            if before_capture:
                change(session, graphs)
            capture()
            if not before_capture:
                change(session, graphs)

        session.capture = capture_and_change  # type: ignore[method-assign]
        return session

    target.open = open_changed  # type: ignore[method-assign]
    return target


def _around_prepare(session: PrefillSession, wrap: Callable[[Callable[..., Any]], Any]) -> None:
    """Puts a function around what pads a batch in the engine's runner."""
    engine = session.runner._engine
    name = "load_batch" if hasattr(engine, "load_batch") else "replay_prepare"
    setattr(engine, name, wrap(getattr(engine, name)))


def _keeps_slots(session: PrefillSession, graphs: Any) -> None:
    """The padded tail of the slots is not reset."""
    slots = session.runner.tokens("out_cache_loc")

    def wrap(prepare: Callable[..., Any]) -> Callable[..., Any]:
        def forget(forward_batch: Any, **more: Any) -> Any:
            before, live = slots.clone(), len(forward_batch.input_ids)
            prepared = prepare(forward_batch, **more)
            slots[live:] = before[live:]
            return prepared

        return forget

    _around_prepare(session, wrap)


def _moves_positions(session: PrefillSession, graphs: Any) -> None:
    """The positions of a replay go to a new buffer, the graph reads the old one."""
    engine = session.runner._engine

    def wrap(prepare: Callable[..., Any]) -> Callable[..., Any]:
        def move(forward_batch: Any, **more: Any) -> Any:
            registry = getattr(engine, "buffer_registry", None)
            if registry is not None:
                slot = registry.get_slot("positions")
                slot.buffer = slot.buffer.clone()
            else:
                engine.buffers.positions = engine.buffers.positions.clone()
            return prepare(forward_batch, **more)

        return move

    _around_prepare(session, wrap)


def _plans_once(session: PrefillSession, graphs: Any) -> None:
    """Attention's metadata stays as the largest capture left it: the refresh is dropped."""
    plan = session.backend.init_forward_metadata
    session.backend.init_forward_metadata = lambda batch: (
        plan(batch) if session.ran_eagerly else None
    )


def _doubles_start_locs(session: PrefillSession, graphs: Any) -> None:
    """A replay tells attention that its rows begin at twice their places: nothing here reads it."""

    def wrap(prepare: Callable[..., Any]) -> Callable[..., Any]:
        def double(forward_batch: Any, **more: Any) -> Any:
            prepared = prepare(forward_batch, **more)
            batch = prepared[0] if isinstance(prepared, tuple) else prepared
            batch.extend_start_loc = batch.extend_start_loc * 2 + 1
            return prepared

        return double

    _around_prepare(session, wrap)


def _watched(session: PrefillSession, graphs: Any) -> None:
    """Fails where a replay did not come from the engine's own padding and its captured pieces."""
    padded: list[int] = []

    def wrap(prepare: Callable[..., Any]) -> Callable[..., Any]:
        def note(forward_batch: Any, **more: Any) -> Any:
            padded.append(len(forward_batch.input_ids))
            return prepare(forward_batch, **more)

        return note

    _around_prepare(session, wrap)
    replay = session.replay

    def checked(batch: Batch) -> None:
        padded.clear()
        before = len(graphs.replayed)
        replay(batch)
        pieces = len(graphs.replayed) - before
        assert session.ran_eagerly or padded == [batch.num_tokens], "the engine prepared nothing"
        assert pieces == (0 if session.ran_eagerly else 2), (
            "before and behind attention lies a piece"
        )

    session.replay = checked  # type: ignore[method-assign]


def breakable_doubles_start_locs() -> PrefillTarget:
    return changed("breakable", _doubles_start_locs)


def breakable_keeps_slots() -> PrefillTarget:
    return changed("breakable", _keeps_slots)


def breakable_moves_positions() -> PrefillTarget:
    return changed("breakable", _moves_positions)


def breakable_plans_once() -> PrefillTarget:
    return changed("breakable", _plans_once)


def breakable_watched() -> PrefillTarget:
    return changed("breakable", _watched)


def piecewise_doubles_start_locs() -> PrefillTarget:
    return changed("tc_piecewise", _doubles_start_locs)


def piecewise_keeps_slots() -> PrefillTarget:
    return changed("tc_piecewise", _keeps_slots)


def piecewise_moves_positions() -> PrefillTarget:
    return changed("tc_piecewise", _moves_positions)


def piecewise_plans_once() -> PrefillTarget:
    return changed("tc_piecewise", _plans_once)


def piecewise_watched() -> PrefillTarget:
    return changed("tc_piecewise", _watched)
