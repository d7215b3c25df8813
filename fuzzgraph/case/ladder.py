"""The captured sizes of a config, and which of them a step needs: rows, or tokens in prefill."""

from __future__ import annotations

from fuzzgraph.case.words import EngineConfig, Mode, ReplayStep

__all__ = ["ladder", "padded_size", "raw_size", "replayed_size"]


def ladder(config: EngineConfig, mode: Mode) -> tuple[int, ...]:
    """Captured sizes of a mode, ascending."""
    return config.capture_tokens if mode == "prefill" else config.capture_bs


def raw_size(step: ReplayStep) -> int:
    """Live rows of the step, or its tokens in prefill."""
    if step.mode == "prefill":
        return sum(row.new_tokens for row in step.rows)
    return len(step.rows)


def padded_size(config: EngineConfig, step: ReplayStep) -> int | None:
    """The smallest captured size that holds the step; None above the ladder."""
    raw = raw_size(step)
    return next((size for size in ladder(config, step.mode) if size >= raw), None)


def replayed_size(config: EngineConfig, step: ReplayStep) -> int | None:
    """The captured size that the step is replayed on; None where it runs eagerly."""
    return padded_size(config, step) if step.via == "graph" else None
