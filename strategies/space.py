"""Everything that a test or a campaign may draw, and how a string of bytes means one case of it.

All that a case needs is one string of bytes. Several draws would be tempting, but Hypothesis then
spends most examples on copying one draw over another, and a draw that does not fit its new place
becomes zero: two examples in three had the simplest config. Smaller bytes mean simpler cases,
which is what Hypothesis' shrinker relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from fuzzgraph.capabilities import Capabilities, unshared
from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.layout.free_list import FreeList
from fuzzgraph.strategies.config_features import Pins
from fuzzgraph.strategies.configs import DROPPABLE, KEPT, Supports, swarm_config
from fuzzgraph.strategies.histories import FINISH, PRESENCE, SIZE, STEP_BYTES, HistoryBuilder
from fuzzgraph.strategies.profile import Profile
from fuzzgraph.world import FIRST_ROW

if TYPE_CHECKING:
    from hypothesis.vendor.pretty import RepresentationPrinter


# The bytes of a case: which config (a share, then a number of three bytes), the case's own fields,
# one byte for each thing that can be dropped of the config, then the records of the steps.
_SHARE, _SEED, _ORDER, _PREFIX, _MROPE = 0, 4, 5, 6, 7
_KEPT = 8
_STEPS = _KEPT + DROPPABLE
_PageOrder = Literal["ascending", "descending", "shuffled", "fragmented"]
_ORDERS: tuple[_PageOrder, ...] = ("ascending", "descending", "shuffled", "fragmented")
_ABSENT_BELOW = 102
"""Of 256: three step records in five are present."""
_MROPE_FROM = 160
"""Of 256: steps may bring the optional input in three cases of eight."""
_LIMITED_BELOW = 8
"""Of 256: a feature's byte from 1 to 7 bounds its numbers. Seldom, because each such config has a
session of its own; Hypothesis' shrinker needs these bytes, a campaign's does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The cases that can be drawn; the bytes alone determine which one.

    Args:
        can: the target's capabilities; nothing is drawn outside.
        profile: sizes, and the pool of configs (see `Profile.at`).
        supports: whether the target opens a config; a config that it refuses loses features
            until it does not. Pass a function with a stable identity: configs are cached by it.
        pins: fields of the config that are held to some values.
        raw_bs: live requests of a batch, one of these; () for what the config allows.
        small_numbers: whether a feature's byte can bound its numbers.
    """

    can: Capabilities
    profile: Profile
    supports: Supports | None = None
    pins: Pins = ()
    raw_bs: tuple[int, ...] = ()
    small_numbers: bool = False

    def __repr__(self) -> str:
        """What a test bounds: Hypothesis prints it with the strategy."""
        bounds = [f"{name}={values!r}" for name, values in self.pins]
        bounds += [f"raw_bs={self.raw_bs!r}"] * bool(self.raw_bs)
        return f"Space({', '.join([repr(self.profile.name), *bounds])})"

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def size(self) -> int:
        """Bytes of a case."""
        return _STEPS + self.profile.max_steps * STEP_BYTES

    def simplest_first(self, drawn: bytes) -> bytes:
        """Bytes in the order in which they weigh for a reader, put into that of a case."""
        return bytes(_places(self.profile.max_steps)(drawn))

    def config(self, drawn: bytes) -> EngineConfig:
        """The config that the bytes mean."""
        number = _config_number(drawn, self.profile)
        below = _LIMITED_BELOW if self.small_numbers else 1
        kept = tuple([byte if byte < below else KEPT for byte in drawn[_KEPT:_STEPS]])
        return swarm_config(self.can, self.profile, number, kept, self.supports, self.pins)

    def case(
        self, drawn: bytes, config: EngineConfig | None = None, most_steps: int | None = None
    ) -> Case:
        """The case that the bytes mean, on their own config or on this one."""
        if config is None:
            config = self.config(drawn)
        prefix = _prefix_pages(drawn[_PREFIX], config)
        if unshared(self.can, config) is not None:
            prefix = 0
        seed, order = drawn[_SEED], _ORDERS[drawn[_ORDER] >> 6]
        rows = FreeList(order, seed, FIRST_ROW, config.req_pool_size)
        history = HistoryBuilder(
            config,
            self.can,
            self.profile,
            rows,
            mrope=drawn[_MROPE] >= _MROPE_FROM,
            prefix=prefix,
            raw_bs=self.raw_bs,
        )
        return Case(
            schema_version=1,
            config=config,
            steps=tuple(map(history.step, _records(drawn)[:most_steps])),
            seed=seed,
            page_order=order,
            shared_prefix_pages=prefix,
        )


@lru_cache(maxsize=8)
def _places(steps: int) -> itemgetter[Any]:
    """Where each byte of a case comes from, in a string whose first bytes weigh most.

    Hypothesis takes the earlier of two bytes for the weightier: it would rather have more steps and
    a simpler config. So come first which steps there are, then their sizes, who leaves, and so on;
    then the config, and last what says where in memory requests lie.
    """
    columns = [PRESENCE, SIZE, FINISH, *(at for at in range(STEP_BYTES))]
    records = range(_STEPS, _STEPS + steps * STEP_BYTES, STEP_BYTES)
    weighty = [record + column for column in dict.fromkeys(columns) for record in records]
    weighty += [*range(_KEPT, _STEPS), *range(_SHARE, _KEPT)]
    return itemgetter(*sorted(range(len(weighty)), key=weighty.__getitem__))


def _records(drawn: bytes) -> list[bytes]:
    """The step records that are present: at least one.

    Presence is a byte of the record and all has a fixed length, so zeroing a byte removes a step
    wherever it stands, and the number of steps is binomial, not mostly one.
    """
    records = [drawn[at : at + STEP_BYTES] for at in range(_STEPS, len(drawn), STEP_BYTES)]
    return [record for record in records if record[PRESENCE] >= _ABSENT_BELOW] or records[:1]


def _prefix_pages(byte: int, config: EngineConfig) -> int:
    """Shared pages, with room left in the context for what a step computes.

    None below 212 of 256, then one page, then two: sharing is rare, and of long prefixes nothing
    is known that short ones do not show.
    """
    room = config.max_context_len - max(2, config.draft_tokens)
    return min(max(0, byte - 190) // 22, max(0, room) // config.page_size)


def _config_number(drawn: bytes, profile: Profile) -> int:
    """Number of the config: 0 is the simplest, then the pool of this epoch, then fresh ones."""
    share = drawn[_SHARE]
    if share == 0:
        return 0
    if share * 100 < (100 - profile.fresh) * 256:
        return 1 + profile.epoch * profile.pool + (drawn[_SHARE + 1] * profile.pool >> 8)
    # Beyond any pool that a campaign reaches.
    return (1 << 40) + int.from_bytes(drawn[_SHARE + 1 : _SEED], "big")
