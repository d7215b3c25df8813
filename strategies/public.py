"""Strategies for tests with Hypothesis: cases, and the configs, histories and batches in them.

A failing example prints as an expression that can be pasted into `@example(...)`, with its table as
a note. Bounds are given by name: a dimension of the config, `modes` or `raw_bs`, each one value or
several to draw from, the simplest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import note, reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS, Case, EngineConfig, Mode, ReplayStep
from fuzzgraph.case.config_rules import validate_config
from fuzzgraph.case.dimension import DimensionRow
from fuzzgraph.errors import InvalidCase, OutOfPages, UsageError
from fuzzgraph.layout import plan
from fuzzgraph.strategies.config_features import LADDERS, Pins
from fuzzgraph.strategies.configs import Supports
from fuzzgraph.strategies.histories import most_rows
from fuzzgraph.strategies.profile import Profile
from fuzzgraph.strategies.repair import within_pool
from fuzzgraph.strategies.space import Space
from fuzzgraph.world import Batch

if TYPE_CHECKING:
    from hypothesis.vendor.pretty import RepresentationPrinter

Describe = Callable[[Case], Iterable[str]]
"""The lines of a case's table."""


def bounded_space(
    can: Capabilities, profile: Profile, supports: Supports | None = None, **bounds: Any
) -> Space:
    """What can be drawn within these bounds.

    Args:
        can, profile, supports: as for `Space`.
        bounds: `raw_bs`, `modes`, or a field of `EngineConfig`; a value, or several.

    Raises:
        UsageError: an unknown name or value, or bounds that no config of the target keeps.
    """
    raw_bs = tuple(_several(bounds.pop("raw_bs", ())))
    modes = tuple(_several(bounds.pop("modes", ())))
    if modes:
        can = _with_modes(can, modes)
    profile = _with_rows(can, profile, raw_bs)
    pins = tuple((name, _values(name, bound)) for name, bound in bounds.items())
    if raw_bs and not can.eager_steps and "capture_bs" not in bounds:
        wide = [sizes for sizes in LADDERS if max(raw_bs) <= sizes[-1] <= 2 * max(raw_bs)]
        pins = (*pins, ("capture_bs", ((max(raw_bs),), *wide)))
    holds = _Holds(can, pins, raw_bs, supports)
    space = Space(
        can=can, profile=profile, supports=holds, pins=pins, raw_bs=raw_bs, small_numbers=True
    )
    holds.check(space.config(bytes(space.size)))
    return space


def _several(bound: Any) -> Iterable[Any]:
    return bound if isinstance(bound, (tuple, list, range)) else (bound,)


def _with_modes(can: Capabilities, modes: tuple[Any, ...]) -> Capabilities:
    for mode in modes:
        if mode not in can.modes:
            raise UsageError(
                f"modes={modes!r}: {mode!r} is not a mode of the target. "
                f"Choose from {', '.join(can.modes)}."
            )
    return can.replace(modes=modes)


def _with_rows(can: Capabilities, profile: Profile, raw_bs: tuple[Any, ...]) -> Profile:
    for rows in raw_bs:
        if type(rows) is not int or not 1 <= rows <= can.max_batch:
            raise UsageError(f"raw_bs={rows!r} must be a number in 1..max_batch={can.max_batch}.")
    return replace(profile, max_batch=max(profile.max_batch, *raw_bs)) if raw_bs else profile


def _values(name: str, bound: Any) -> tuple[Any, ...]:
    """The values of a dimension that a bound lists, the simplest first."""
    row = DIMENSIONS.get(name)
    if row is None:
        known = ", ".join(("raw_bs", *DIMENSIONS))
        raise UsageError(f"{name}={bound!r} is not a bound. Known: {known}.")
    if name in ("capture_bs", "capture_tokens"):  # one tuple is one ladder of sizes
        ladders = bound if isinstance(bound, list) else [bound]
        values = tuple(tuple(_several(ladder)) for ladder in ladders)
        if any(type(size) is not int for ladder in values for size in ladder):
            raise UsageError(
                f"{name}={bound!r} must be a tuple of sizes, e.g. (1, 2, 4), or a list of such "
                "tuples to choose from."
            )
    else:
        values = tuple(_several(bound))
        for value in values:
            _check_value(row, value)
    if not values:
        raise UsageError(f"{name}={bound!r} lists no value. Give at least one.")
    return values


def _check_value(row: DimensionRow, value: object) -> None:
    if row.choices:
        if value not in row.choices:
            choices = ", ".join(map(repr, row.choices))
            raise UsageError(f"{row.name}={value!r} is not one of its values: {choices}.")
    elif type(value) is not type(row.default):
        raise UsageError(f"{row.name}={value!r} must be of type {type(row.default).__name__}.")
    elif row.spec.bounds and type(value) is int:
        least, most = row.spec.bounds
        if not least <= value <= most:
            raise UsageError(f"{row.name}={value} must lie in {least}..{most}.")


@dataclass(frozen=True, slots=True, eq=False)
class _Holds:
    """Whether a config keeps the bounds and the target opens it; compared by identity."""

    can: Capabilities
    pins: Pins
    raw_bs: tuple[int, ...]
    supports: Supports | None

    def __call__(self, config: EngineConfig) -> bool:
        if any(getattr(config, name) not in values for name, values in self.pins):
            return False
        if self.raw_bs and self._most_rows(config) < min(self.raw_bs):
            return False
        try:
            validate_config(config)
        except InvalidCase:
            return False
        return self.supports is None or self.supports(config)

    def _most_rows(self, config: EngineConfig) -> int:
        above = bool(self.can.eager_steps and config.eager_above_ladder)
        return min(most_rows(config, mode, above) for mode in config.modes)

    def check(self, simplest: EngineConfig) -> None:
        """Raise where even the simplest config does not keep the bounds."""
        if self(simplest):
            return
        for name, values in self.pins:
            if (value := getattr(simplest, name)) not in values:
                asked = values[0] if len(values) == 1 else values
                raise UsageError(
                    f"{name}={asked!r} does not fit the other bounds or the target: the simplest "
                    f"config that does has {name}={value!r}."
                )
        validate_config(simplest)
        raise UsageError(
            f"the target does not support the simplest config within the bounds: {simplest!r}."
        )


@st.composite
def drawn_configs(draw: DrawFn, space: Space) -> EngineConfig:
    """Configs that the target opens."""
    return space.config(draw(_bytes(space)))


def _bytes(space: Space) -> SearchStrategy[bytes]:
    """As many for every part of a case: what Hypothesis copies from one draw then fits another."""
    return st.binary(min_size=space.size, max_size=space.size).map(space.simplest_first)


@st.composite
def drawn_cases(draw: DrawFn, space: Space, describe: Describe) -> Case:
    """Whole cases, each noted as a table."""
    case = space.case(draw(_bytes(space)))
    note(_Table(case, describe))
    return case


def drawn_histories(
    space: Space, config: EngineConfig, describe: Describe
) -> SearchStrategy[tuple[ReplayStep, ...]]:
    """Steps on a given config, noted as a table.

    Raises:
        UsageError: no batch of the wanted size fits the config, or it has no mode wanted.
    """
    return _histories(space, _narrowed(space, config), describe)


@st.composite
def _histories(
    draw: DrawFn, space: Space, config: EngineConfig, describe: Describe
) -> tuple[ReplayStep, ...]:
    case = _fitting(space, space.case(draw(_bytes(space)), config))
    note(_Table(case, describe))
    return case.steps


def _fitting(space: Space, case: Case) -> Case:
    """The case as the page pool of a given config can hold it."""
    try:
        return within_pool(case, max(1, space.can.min_seq_len))
    except OutOfPages:
        reject()


def drawn_batches(space: Space, config: EngineConfig, describe: Describe) -> SearchStrategy[Batch]:
    """The logical batch of one step on a given config, noted as the case that it comes from.

    Raises:
        UsageError: as for `drawn_histories`.
    """
    without_idle = tuple(mode for mode in space.can.modes if mode != "idle")
    space = replace(space, can=space.can.replace(modes=without_idle))
    return _batches(space, _narrowed(space, config), config, describe)


@st.composite
def _batches(
    draw: DrawFn, space: Space, narrow: EngineConfig, config: EngineConfig, describe: Describe
) -> Batch:
    case = _fitting(space, space.case(draw(_bytes(space)), narrow, most_steps=1))
    case = msgspec.structs.replace(case, config=config)
    note(_Table(case, describe))
    note(case)
    return plan(case)[0]


def _narrowed(space: Space, config: EngineConfig) -> EngineConfig:
    """The config with those of its modes alone that are wanted."""
    if not isinstance(config, EngineConfig):
        raise UsageError(f"config={config!r} is not an EngineConfig. Give one, then the target.")
    validate_config(config)
    modes: tuple[Mode, ...] = tuple(mode for mode in config.modes if mode in space.can.modes)
    if not modes:
        raise UsageError(
            f"modes={space.can.modes!r}: the config captures {', '.join(config.modes)}. "
            "Want one of these, or capture another."
        )
    config = msgspec.structs.replace(config, modes=modes)
    above = bool(space.can.eager_steps and config.eager_above_ladder)
    most = min(most_rows(config, mode, above) for mode in modes)
    if space.raw_bs and min(space.raw_bs) > most:
        raise UsageError(f"raw_bs={min(space.raw_bs)} exceeds the {most} rows that the config has.")
    return config


@dataclass(frozen=True, slots=True)
class _Table:
    """A note that is only put into words for the example that is reported."""

    case: Case
    describe: Describe

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(dedent("\n".join(self.describe(self.case))))
