"""Cases that tests of hybrid models run."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, validate
from tests.targets.sglang.released import Workers

VERSIONS = ("0.5.9", "0.5.10", "0.5.13", "0.5.19", "0.5.23")
NEWEST = VERSIONS[-1]


def step(
    *rows: tuple[int, int], new: int = 1, mode: Mode = "decode", finish: tuple[int, ...] = ()
) -> ReplayStep:
    made = [BatchRow(request=name, seq_len=length, new_tokens=new) for name, length in rows]
    return ReplayStep(mode=mode, rows=tuple(made), finish=finish)


verify = partial(step, new=3, mode="target_verify")


def _case(*steps: ReplayStep, **settings: Any) -> Case:
    given = {"capture_bs": (2, 4), "page_size": 16, "max_context_len": 32, "recurrent_state": True}
    config = EngineConfig(**{**given, "modes": (steps[0].mode,), **settings})
    return validate(Case(schema_version=1, config=config, steps=steps))


decodes = _case
verifies = partial(_case, draft_tokens=3)

# A request leaves, another takes its slot, and rows change places.
MOVED = (
    step((0, 5), (1, 16), (2, 31)),
    step((1, 17), (2, 32), finish=(0,)),
    step((2, 32), (3, 9), (1, 18)),
)
FULL_THEN_PADDED = (
    step((0, 5), (1, 6), (2, 7), (3, 8)),
    step((0, 6), (1, 7), (2, 8), finish=(3,)),
)
# States are kept behind 16 tokens and 32: of some rows, of none, of one that leaves a graph padded.
KEPT = (
    step((0, 15), (1, 16), (2, 7), (3, 31)),
    step((0, 16), (1, 17), (2, 8), (3, 32)),
    step((0, 17), (1, 18), (2, 9), finish=(3,)),
    step((2, 16), (1, 32), (0, 18)),
    step((0, 32), (1, 31)),
)
# The same in a graph without padded rows, below the largest one.
KEPT_IN_A_FULL_GRAPH = (step((0, 16), (1, 9)), step((1, 16), (0, 17)))
# All drafts stay, then one of two, then none. Both graphs are full: what they leave of padded rows
# has a test of its own.
KEPT_LESS_AND_LESS = (
    verify((0, 8), (1, 19)),
    verify((0, 11), (1, 22)),
    verify((0, 13), (1, 23)),
    verify((1, 24), (0, 14)),
)
ONE_TOKEN_PROMPT = (verify((0, 8), (1, 4)),)
PADDED_VERIFY = (verify((0, 8)),)


def few_states(**settings: Any) -> Case:
    """Requests come one at a time into the last of two rows, and there is a state for one."""
    steps = step((0, 5)), step((0, 6)), step((1, 9), finish=(0,))
    given = {"capture_bs": (1,), "req_pool_size": 2, "state_pool_size": 1, **settings}
    return msgspec.structs.replace(_case(*steps, **given), page_order="descending")


def found(workers: Workers, version: str, of: Case, target: str) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding, by the last part of the buffer's name."""
    return {
        (one.clause, one.buffer.rpartition(".")[2]) for one in workers.findings(version, of, target)
    }
