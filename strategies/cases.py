"""The strategy that the campaign draws from: flat, cheap, valid by construction.

All that a case needs is drawn as one string of bytes. Several draws would be tempting, but
Hypothesis then spends most examples on copying one draw over another, and a draw that does not
fit its new place becomes zero: two examples in three had the simplest config.
"""

from __future__ import annotations

from typing import Literal

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.layout.free_list import FreeList
from fuzzgraph.strategies.config_features import FEATURES
from fuzzgraph.strategies.configs import Supports, swarm_config
from fuzzgraph.strategies.histories import PRESENCE, STEP_BYTES, History
from fuzzgraph.strategies.profile import DEFAULT, Profile
from fuzzgraph.world import FIRST_ROW

__all__ = ["cases"]

_SHARE, _SEED, _ORDER, _PREFIX, _MROPE = 0, 4, 5, 6, 7
_KEPT = 8
_STEPS = _KEPT + len(FEATURES)
_PageOrder = Literal["ascending", "descending", "shuffled", "fragmented"]
_ORDERS: tuple[_PageOrder, ...] = ("ascending", "descending", "shuffled", "fragmented")
_ABSENT_BELOW = 102
"""Of 256: three step records in five are present."""


def cases(
    capabilities: Capabilities, profile: Profile = DEFAULT, *, supports: Supports | None = None
) -> SearchStrategy[Case]:
    """Valid cases in all dimensions that `capabilities` has; the drawn bytes alone determine it.

    Args:
        capabilities: the target's dimensions; nothing is drawn outside.
        profile: sizes, and the pool of configs (see `Profile.at`).
        supports: whether the target opens a config; a config that it refuses loses features
            until it does not. Pass a function with a stable identity: configs are cached by it.
    """

    size = _STEPS + profile.max_steps * STEP_BYTES

    def case_of(drawn: bytes) -> Case:
        number = _config_number(drawn, profile)
        kept = tuple(map(bool, drawn[_KEPT:_STEPS]))
        config = swarm_config(capabilities, profile, number, kept, supports)
        prefix = _prefix_pages(drawn[_PREFIX], config)
        seed, order = drawn[_SEED], _ORDERS[drawn[_ORDER] >> 6]
        rows = FreeList(order, seed, FIRST_ROW, config.req_pool_size)
        mrope = drawn[_MROPE] >= 160
        history = History(config, capabilities, profile, rows, mrope=mrope, prefix=prefix)
        return Case(
            schema_version=1,
            config=config,
            steps=tuple(map(history.step, _records(drawn))),
            seed=seed,
            page_order=order,
            shared_prefix_pages=prefix,
        )

    return st.binary(min_size=size, max_size=size).map(case_of)


def _records(drawn: bytes) -> list[bytes]:
    """The step records that are present: at least one.

    Presence is a byte of the record and all has a fixed length, so zeroing a byte removes a step
    wherever it stands, and the number of steps is binomial, not mostly one.
    """
    records = [drawn[at : at + STEP_BYTES] for at in range(_STEPS, len(drawn), STEP_BYTES)]
    return [record for record in records if record[PRESENCE] >= _ABSENT_BELOW] or records[:1]


def _prefix_pages(byte: int, config: EngineConfig) -> int:
    """Shared pages, with room left in the context for what a step computes."""
    room = config.max_context_len - max(2, config.draft_tokens)
    return min(max(0, byte - 190) // 22, max(0, room) // config.page_size)


def _config_number(drawn: bytes, profile: Profile) -> int:
    """Number of the config: 0 is the simplest, then the pool of this epoch, then fresh ones."""
    share = drawn[_SHARE]
    if share == 0:
        return 0
    if share * 100 < (100 - profile.fresh) * 256:
        return 1 + profile.epoch * profile.pool + (drawn[_SHARE + 1] * profile.pool >> 8)
    return (1 << 40) + int.from_bytes(drawn[_SHARE + 1 : _SEED], "big")
