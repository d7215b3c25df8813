"""An option as it is written beside the field that holds its value, and the row that follows.

A field of a record becomes an option by `Annotated[type, Option(...)]`. Its type says what kind of
value it takes, its default what it is when it is left out. The command line, the pytest plugin, the
replay command and the tables of docs/cli.md are made from these rows; nothing here knows click or
pytest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from fuzzgraph.errors import UsageError

Kind = Literal["flag", "choice", "number", "duration", "text"]
_METAVARS: dict[Kind, str] = {"number": "N", "duration": "TIME", "text": "TEXT"}
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_time(text: str, where: str = "time") -> float:
    """Seconds of a duration such as '90s', '10m', '8h' or plain seconds.

    >>> parse_time("10m")
    600.0

    Raises:
        UsageError: not a duration, zero, or more seconds than a float can hold.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip(), re.ASCII)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"{where}={text!r} is not a valid duration. Write a number and a unit, e.g. 60s, 10m "
            "or 8h."
        )
    return seconds


def typed_time(seconds: float) -> str:
    """A duration as one types it; `parse_time` gives the same seconds again.

    >>> typed_time(15.0), typed_time(600.0), typed_time(90.0), typed_time(28800.0), typed_time(0.5)
    ('15s', '10m', '90s', '8h', '0.5s')
    """
    for unit in ("h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds.is_integer() else f"{seconds!r}s"


def parse_number(text: str, where: str, least: int = 0) -> int:
    """A whole number in ASCII digits.

    Raises:
        UsageError: anything else, or less than `least`.
    """
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise UsageError(
            f"{where}={text!r} is not a whole number >= {least}. Use one, e.g. {max(least, 3)}."
        )
    return int(text)


@dataclass(frozen=True, slots=True)
class Option:
    """What a row needs besides the field itself."""

    help: str
    """One sentence, for `--help` and for the table in the docs."""
    flag: str = ""
    """Its name on a command line; '' for that of the field."""
    metavar: str = ""
    without: str = ""
    """What happens when it is left out, where the default does not say it."""
    least: int = 0
    """Smallest number that makes sense."""
    check: Callable[[str, str], str] | None = None
    """Takes a text and the name of the option; the text, or UsageError."""
    left_out: Callable[[Any], Any] | None = None
    """What the field is when the option is left out, where the rest of the record decides it."""
    always: bool = False
    """Whether it stands in a command line even with its default."""
    verbs: tuple[str, ...] = ()
    """The only verbs that take it; () for all that take the options of its record."""
    pytest: bool = True
    """Whether the plugin has it, as `--fuzz-NAME`."""
    ini: str = ""
    """Its name in pytest's ini file; '' for none."""
    path: bool = False
    """Whether its value is a place on this machine."""
    refused: str = ""
    """Why a file of settings may not give it; '' where it may."""


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option: a field of a record with what its type and its `Option` say."""

    name: str
    """Of the field; no two records have the same."""
    record: type[msgspec.Struct]
    kind: Kind
    choices: tuple[str, ...]
    default: Any
    option: Option

    @property
    def word(self) -> str:
        """Its name without dashes: 'strict-nan', which is `--strict-nan` or `--fuzz-strict-nan`."""
        return self.option.flag or self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        return f"--{self.word}"

    @property
    def metavar(self) -> str:
        return self.option.metavar or (
            f"[{'|'.join(self.choices)}]" if self.choices else _METAVARS.get(self.kind, "")
        )

    def parse(self, text: str, where: str) -> Any:
        """The value of a text.

        Args:
            where: the option as the caller knows it, for the message.

        Raises:
            UsageError: it is not a value of this option; names those that are.
        """
        if self.kind == "duration":
            return parse_time(text, where)
        if self.kind == "number":
            return parse_number(text, where, self.option.least)
        if self.choices and text not in self.choices:
            raise UsageError(f"{where}={text!r} is unknown. Use one of: {', '.join(self.choices)}.")
        return self.option.check(text, where) if self.option.check else text

    def when_left_out(self, record: Any) -> Any:
        """What the field of a record is where nobody gives the option."""
        return self.option.left_out(record) if self.option.left_out else self.default

    def words(self, record: Any, dash: str = "--") -> list[str]:
        """The option as a command line gives it, to get this record again; [] if it need not."""
        value = getattr(record, self.name)
        if value is None or (value == self.when_left_out(record) and not self.option.always):
            return []
        flag = f"{dash}{self.word}"
        return [flag] if self.kind == "flag" else [flag, self.typed(value)]

    def typed(self, value: Any) -> str:
        """A value as one types it."""
        if self.kind == "flag":
            return "true" if value else "false"
        return typed_time(float(value)) if self.kind == "duration" else str(value)


def rows_of(record: type[msgspec.Struct]) -> tuple[OptionRow, ...]:
    """The options of a record, in the order of its fields."""
    hints = get_type_hints(record, include_extras=True)
    rows = []
    for one in msgspec.structs.fields(record):
        noted = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else ()
        for option in noted[1:]:
            if isinstance(option, Option):
                kind, choices = _kind(noted[0])
                rows.append(OptionRow(one.name, record, kind, choices, one.default, option))
    return tuple(rows)


def _kind(hint: Any) -> tuple[Kind, tuple[str, ...]]:
    """How a value of this type is written; a Literal's empty string stands for no choice made."""
    if get_origin(hint) is Literal:
        return "choice", tuple(word for word in get_args(hint) if word)
    types: Sequence[Any] = get_args(hint) or (hint,)
    kinds: dict[Any, Kind] = {bool: "flag", int: "number", float: "duration", str: "text"}
    return kinds[types[0]], ()
