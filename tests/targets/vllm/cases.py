"""Cases that several tests of vLLM's targets run."""

from __future__ import annotations

from functools import partial
from typing import Any

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate

VERSIONS = ("0.17.1", "0.20.2", "0.25.1", "0.33.0")
NEWEST = VERSIONS[-1]
IDLE = ReplayStep(mode="idle")


def step(*rows: tuple[int, int, int], mode: Mode, finish: tuple[int, ...] = ()) -> ReplayStep:
    """A request, its length and its new tokens for each row."""
    made = [BatchRow(request=name, seq_len=length, new_tokens=new) for name, length, new in rows]
    return ReplayStep(mode=mode, rows=tuple(made), finish=finish)


def case(*steps: ReplayStep, **settings: Any) -> Case:
    config = EngineConfig(
        **{
            "modes": (steps[0].mode,), "page_size": 16, "max_context_len": 48, "num_q_heads": 4,
            "num_kv_heads": 2, "head_dim": 8, "v_head_dim": 8, **settings,
        }
    )  # fmt: skip
    return validate(Case(schema_version=1, config=config, steps=steps))


def decode(*lengths: tuple[int, int], finish: tuple[int, ...] = ()) -> ReplayStep:
    """One step; a request and its length for each row."""
    return step(*((name, length, 1) for name, length in lengths), mode="decode", finish=finish)


def decodes(*steps: ReplayStep, **settings: Any) -> Case:
    return case(*steps, **{"capture_bs": (2, 4), **settings})


# Rows in the engine's order: the third request takes the place of the first, which has left.
MOVED = (
    decode((0, 5), (1, 16), (2, 31)),
    decode((1, 17), (2, 32), finish=(0,)),
    decode((2, 33), (3, 48), (1, 18)),
)

mixed = partial(step, mode="prefill")
mixes = partial(case, capture_bs=(), capture_tokens=(4, 8, 16))
# A prompt in three parts beside decodes; then decodes alone, and a batch above the ladder.
IN_PARTS = (
    mixed((0, 5, 5), (1, 16, 1), (2, 31, 3)),
    mixed((0, 9, 4), (1, 17, 1), (2, 32, 1)),
    mixed((0, 11, 2), (1, 18, 1), (2, 33, 1)),
    mixed((1, 19, 1), (2, 34, 1), finish=(0,)),
    mixed((1, 20, 1), (3, 19, 19)),
)
MIXED_THEN_PADDED: tuple[ReplayStep, ...] = (
    mixed((0, 5, 4), (1, 6, 4)),
    mixed((0, 6, 1), (1, 10, 4)),
)
