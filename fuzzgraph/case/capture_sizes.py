"""The captured sizes of a config, and which of them a step needs: rows, or tokens in prefill."""

from __future__ import annotations

from fuzzgraph.case.engine_config import EngineConfig, Mode
from fuzzgraph.case.model import ReplayStep


def counts_tokens(config: EngineConfig, mode: Mode) -> bool:
    """Whether graphs of a mode are captured by tokens, not by rows."""
    return (config.modes[0] if mode == "idle" else mode) == "prefill"


def ladder(config: EngineConfig, mode: Mode) -> tuple[int, ...]:
    """Captured sizes of a mode, ascending; an idle step runs on the first one's."""
    return config.capture_tokens if counts_tokens(config, mode) else config.capture_bs


def captured_size(config: EngineConfig, mode: Mode, size: int) -> int | None:
    """The smallest captured size that holds so many rows or tokens; None above the ladder."""
    return next((captured for captured in ladder(config, mode) if captured >= size), None)


def raw_size(step: ReplayStep) -> int:
    """Live rows of the step, or its tokens in prefill."""
    if step.mode == "prefill":
        return sum(row.new_tokens for row in step.rows)
    return len(step.rows)


def rank_sizes(config: EngineConfig, step: ReplayStep) -> tuple[int, ...]:
    """What `raw_size` says of each data-parallel rank, the step's own at its place.

    >>> rank_sizes(EngineConfig(dp_size=3, dp_rank=1), ReplayStep(mode="idle", other_ranks=(4, 2)))
    (4, 0, 2)
    """
    own, rank = raw_size(step), config.dp_rank
    others = step.other_ranks or (own,) * (config.dp_size - 1)
    return (*others[:rank], own, *others[rank:])


def most_of_a_rank(config: EngineConfig, *, prefills: bool = False) -> int:
    """The largest size that a rank's request pool can have.

    Args:
        prefills: whether the rank computes prompts where this one does not.
    """
    tokens = config.max_context_len if prefills or counts_tokens(config, "idle") else 1
    return config.req_pool_size * tokens


def most_tokens_of_a_rank(config: EngineConfig) -> int:
    """The most tokens of a decode or verify of a rank, padded ones included."""
    width = config.draft_tokens if "target_verify" in config.modes else 1
    return width * max(most_of_a_rank(config), config.capture_bs[-1])


def padded_size(config: EngineConfig, step: ReplayStep) -> int | None:
    """The smallest captured size that holds the step on every rank; None above the ladder."""
    return captured_size(config, step.mode, max(rank_sizes(config, step)))


def replayed_size(config: EngineConfig, step: ReplayStep) -> int | None:
    """The captured size that the step is replayed on; None where it runs eagerly."""
    return padded_size(config, step) if step.via == "graph" and not step.others_prefill else None
