"""The captured sizes of a config, and which of them a step needs: rows, or tokens in prefill."""

from __future__ import annotations

from fuzzgraph.case.model import EngineConfig, Mode, ReplayStep


def ladder(config: EngineConfig, mode: Mode) -> tuple[int, ...]:
    """Captured sizes of a mode, ascending."""
    return config.capture_tokens if mode == "prefill" else config.capture_bs


def captured_size(config: EngineConfig, mode: Mode, size: int) -> int | None:
    """The smallest captured size that holds so many rows or tokens; None above the ladder."""
    return next((captured for captured in ladder(config, mode) if captured >= size), None)


def raw_size(step: ReplayStep) -> int:
    """Live rows of the step, or its tokens in prefill."""
    if step.mode == "prefill":
        return sum(row.new_tokens for row in step.rows)
    return len(step.rows)


def rank_rows(config: EngineConfig, step: ReplayStep) -> tuple[int, ...]:
    """Live rows of each data-parallel rank, the step's own at its place.

    >>> rank_rows(EngineConfig(dp_size=3, dp_rank=1), ReplayStep(mode="idle", other_ranks=(4, 2)))
    (4, 0, 2)
    """
    own, rank = len(step.rows), config.dp_rank
    others = step.other_ranks or (own,) * (config.dp_size - 1)
    return (*others[:rank], own, *others[rank:])


def padded_size(config: EngineConfig, step: ReplayStep) -> int | None:
    """The smallest captured size that holds the step on every rank; None above the ladder."""
    return captured_size(config, step.mode, max(raw_size(step), *rank_rows(config, step)))


def replayed_size(config: EngineConfig, step: ReplayStep) -> int | None:
    """The captured size that the step is replayed on; None where it runs eagerly."""
    return padded_size(config, step) if step.via == "graph" else None
