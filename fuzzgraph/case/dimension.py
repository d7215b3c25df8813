"""What one row of the table of dimensions says beside the name, type and default of a field.

The table is `EngineConfig` itself: each field carries a `Dimension`. Validation, the JSON schema,
`Capabilities`, the strategies, the shrinker and the reports' coverage read it from there, so that
a new dimension is one row here and its use by an engine. How a value is drawn that no rule here
can describe is said in `strategies.config_features`, found by the row's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

CORE = 78
"""Percent of configs that vary a core dimension (modes, captured sizes, context, drafts)."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """The target lists the values that it has; without a word of it, it has the default alone."""

    name: str
    """Field of `Capabilities`, as in the other rules."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The target lists the sizes to draw; a saved case with another one is worth a try."""

    name: str
    widest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """The target says whether it has the dimension at all; else it stays at its default."""

    name: str


@dataclass(frozen=True, slots=True)
class Most:
    """The target bounds what is drawn; a saved case with a larger value is worth a try."""

    name: str
    default: int
    widest: int
    one_is_none: bool = False
    """A bound of one says that there is nothing to count (no ranks, no branches): then a saved
    case with more is refused."""


Rule = OneOf | Sizes | Switch | Most


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """The row of one field. What is left out does not apply to it."""

    bounds: tuple[int, int] | None = None
    """Smallest and largest value. A case file is untrusted: this bounds what it can allocate."""
    needs: Rule | None = None
    """What a target must have to run other values than the default; None: any target does."""
    feature: int | None = None
    """Number of the feature that varies it. It enters what a config's number draws, so it is never
    changed nor used again; a new one follows the largest. None: it follows from other fields, or
    varies with one of them."""
    share: int = 0
    """Percent of configs that vary it; 0: as many as the density of the config says."""
    tried: tuple[Any, ...] = ()
    """Values to draw where the target lists none; a bool needs none."""
    size: bool = False
    """A size of the engine, which every config has: the shrinker lowers it last, down to its lower
    bound, and does not count it as a feature."""
    resets_with: str = ""
    """Fields with the same word go back to their defaults together: one without the others would
    make no valid config. A size does only where it has such a word."""
    edge: str = ""
    """What reports call it where lengths just below, at and above it are worth covering. The
    shrinker then lowers the lengths with it."""
    label: str = ""
    """How reports name its value: with `{}`, every value; without, any other than the default."""
    only_in: tuple[str, ...] = ()
    """Modes in which it means anything; reports name it only there."""
    carried_by: tuple[str, ...] = ()
    """Names under which engines have the input that carries it. A target that drives the dimension
    shows at least one of them, or nothing would tell that the input is wrong."""
    group: str = ""
    """The group of `coverage_values.GROUPS` that its label belongs to."""


@dataclass(frozen=True, slots=True)
class DimensionRow:
    """One dimension: the field's name and default, the values of its `Literal`, and its row."""

    name: str
    default: Any
    choices: tuple[Any, ...]
    """Empty where the type is not a `Literal`, or a tuple of one."""
    number: bool
    """Whether it is an int, and so can be lowered."""
    spec: Dimension

    @property
    def least(self) -> int:
        """The smallest number worth shrinking to: a size's lower bound, else the default."""
        return self.spec.bounds[0] if self.spec.size and self.spec.bounds else self.default


@lru_cache(maxsize=4)
def rows_of(struct: type[msgspec.Struct]) -> Mapping[str, DimensionRow]:
    """The rows of a struct by field name, in the order of its fields."""
    defaults = dict(zip(struct.__struct_fields__, struct.__struct_defaults__, strict=True))
    hints = get_type_hints(struct, include_extras=True)
    return {name: _row(name, defaults[name], hints[name]) for name in struct.__struct_fields__}


def _row(name: str, default: Any, hint: Any) -> DimensionRow:
    if get_origin(hint) is not Annotated:
        raise TypeError(
            f"field {name!r} has no Dimension. Write Annotated[{hint}, Dimension(...)]."
        )
    kind, spec = get_args(hint)
    inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
    choices = get_args(inner) if get_origin(inner) is Literal else ()
    return DimensionRow(name, default, choices, kind is int, spec)
