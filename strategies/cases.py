"""The strategy that the campaign draws from: flat, cheap, valid by construction."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fuzzgraph.case import Case
from fuzzgraph.reach import Reach
from fuzzgraph.strategies.configs import FEATURES, Supports, swarm_config
from fuzzgraph.strategies.histories import PRESENCE, STEP_BYTES, History
from fuzzgraph.strategies.profile import DEFAULT, Profile

__all__ = ["cases"]

_SEED, _ORDER, _PREFIX, _MROPE = range(4)
_HEADER = 4
_ORDERS = ("ascending", "descending", "shuffled", "fragmented")
_FRESH_NUMBERS = 1 << 16
_ABSENT_BELOW = 102
"""Of 256: three records in five are present."""


def cases(
    reach: Reach, profile: Profile = DEFAULT, *, supports: Supports | None = None
) -> SearchStrategy[Case]:
    """Valid cases in all dimensions that `reach` has; what is drawn alone determines the case.

    Args:
        reach: the target's dimensions; nothing is drawn outside.
        profile: sizes, and the pool of configs (see `Profile.at`).
        supports: whether the target opens a config; a config that it refuses loses features
            until it does not. Pass a function with a stable identity: configs are cached by it.
    """

    def case_of(drawn: tuple[int | bytes, ...]) -> Case:
        number, header, records = _parts(drawn)
        kept = tuple(map(bool, header[_HEADER:]))
        config = swarm_config(reach, profile, _config_number(number, profile), kept, supports)
        history = History(config, reach, profile, mrope=header[_MROPE] >= 160)
        prefix = max(0, header[_PREFIX] - 200) // 28
        return Case(
            schema_version=1,
            config=config,
            steps=tuple(map(history.step, records)),
            seed=header[_SEED],
            page_order=_ORDERS[header[_ORDER] >> 6],
            shared_prefix_pages=min(prefix, config.max_context_len // config.page_size),
        )

    record = st.binary(min_size=STEP_BYTES, max_size=STEP_BYTES)
    return st.tuples(
        st.integers(0, 100 * _FRESH_NUMBERS - 1),
        st.binary(min_size=_HEADER + len(FEATURES), max_size=_HEADER + len(FEATURES)),
        *([record] * profile.max_steps),
    ).map(case_of)


def _parts(drawn: tuple[int | bytes, ...]) -> tuple[int, bytes, list[bytes]]:
    """Number, header, and the records that are present: at least one.

    Presence is a byte of the record and the draw has a fixed length, so zeroing a record removes
    its step wherever it stands, and the number of steps is binomial, not mostly one.
    """
    number, header, *records = drawn
    assert isinstance(number, int) and isinstance(header, bytes)
    steps = [record for record in records if isinstance(record, bytes)]
    present = [record for record in steps if record[PRESENCE] >= _ABSENT_BELOW]
    return number, header, present or steps[:1]


def _config_number(drawn: int, profile: Profile) -> int:
    """Number of the config: 0 is the simplest, then the pool of this epoch, then fresh ones."""
    if drawn == 0:
        return 0
    choice, share = divmod(drawn, 100)
    if share < 100 - profile.fresh:
        return 1 + profile.epoch * profile.pool + choice % profile.pool
    return (1 << 40) + choice
