"""What a project asks of a run by a file: `fuzzgraph.toml`, or `[tool.fuzzgraph]` in its
`pyproject.toml`.

A key is an option of a run without its dashes, from the table in `run.spec`; what the command line
says takes precedence. The file is part of the tree under test, so a pull request may have written
it: it names no code and no place outside its checkout. Reads this one file and runs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.run.option import Kind, OptionRow
from fuzzgraph.run.spec import OPTIONS
from fuzzgraph.text.toml import parse_toml

FILE = "fuzzgraph.toml"
_TABLE = "pyproject.toml"
TARGETS = "targets"
_MOST_BYTES = 1 << 20
"""Many times what a `pyproject.toml` has; a larger file is refused unread."""
_ROWS = {row.word: row for row in OPTIONS}
_KEYS = (*_ROWS, TARGETS)
_TYPES: dict[Kind, Any] = {"flag": bool, "number": int, "duration": int | float | str}


@dataclass(frozen=True, slots=True)
class Settings:
    """What one file says."""

    path: Path
    """Of the file, absolute."""
    given: Mapping[str, Any]
    """Field of a run's records -> value, as `OptionRow.parse` gives it; paths are absolute."""
    targets: tuple[str, ...] = ()
    """Targets for what takes several, each once."""

    @property
    def words(self) -> str:
        """Which file it is, for a line of text."""
        return settings_words(str(self.path))

    def below(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """What is asked in all: options that were given, and of this file what they leave open.

        Args:
            named: field -> value; None for what was not given.
        """
        said = {name: value for name, value in named.items() if value is not None}
        mine = dict(self.given)
        if "source" in said:  # it stands in the place of a release
            mine.pop("release", None)
        return mine | said

    def of_one_target(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The same for what runs one target: an only one of `targets` is meant.

        Raises:
            UsageError: the file names several targets, and nothing says which one is meant.
        """
        asked = self.below(named)
        if "target" not in asked and self.targets:
            asked["target"] = self._only_target()
        return asked

    def _only_target(self) -> str:
        if len(self.targets) > 1:
            raise UsageError(
                f"{self.path}: targets names {len(self.targets)} of them, and this takes one. Name "
                f'it by --target, e.g. {self.targets[0]}, or by target = "..." in the file.'
            )
        return self.targets[0]

    def blamed(self, error: UsageError, named: Mapping[str, Any]) -> UsageError:
        """An error about options, which says which of them the file has given."""
        words = [
            row.word for row in OPTIONS if row.name in self.given and named.get(row.name) is None
        ]
        if not words:
            return error
        return type(error)(f"{error} Given by {self.path}: {', '.join(words)}.")


def settings_words(path: str) -> str:
    """How a line of text names the file of settings that was read."""
    return f"settings of {path}"


def find_settings(source: str = "") -> Settings | None:
    """The settings of the tree under test: of its folder, or of one above it in its checkout.

    Args:
        source: folder of the tree; '' for the current folder.

    Raises:
        UsageError: the file cannot be read, or says what it may not; names the key and the way out.
    """
    try:
        folder = Path(source).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return None  # what is wrong with it is said where it is opened
    root = _root(folder)
    for place in (folder, *folder.parents):
        for name in (FILE, _TABLE):
            table = _table(place / name, root)
            if table is not None:
                return _settings(place / name, table, root)
        if place == root:
            break
    return None


def _root(folder: Path) -> Path:
    """The root of the checkout that a folder lies in; the folder itself outside one."""
    tops = (place for place in (folder, *folder.parents) if os.path.lexists(place / ".git"))
    return next(tops, folder)


def _table(path: Path, root: Path) -> dict[str, Any] | None:
    """The settings as they stand in a file; None for none."""
    if not os.path.lexists(path):
        return None
    found = _parsed(path, root)
    if path.name == FILE:
        return found
    tool = found.get("tool")
    table = tool.get("fuzzgraph") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.fuzzgraph is not a table. Write [tool.fuzzgraph].")
    return table


def _parsed(path: Path, root: Path) -> dict[str, Any]:
    try:
        if not path.resolve().is_relative_to(root):
            raise ValueError("it is a link that leads out of its checkout")
        if not path.is_file():
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        return parse_toml(content.decode("utf-8"))
    except (OSError, *UNREADABLE) as error:
        said = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise UsageError(
            f"{path}: cannot be read ({said}). Mend it, or pass over it: --no-settings, in "
            "pytest --fuzz-no-settings."
        ) from None


def _settings(path: Path, table: Mapping[str, Any], root: Path) -> Settings:
    _refuse_unknown(path, table)
    given = {
        row.name: _value(path, row, table[word], root)
        for word, row in _ROWS.items()
        if word in table
    }
    return Settings(path, given, _targets(path, table.get(TARGETS)))


def _refuse_unknown(path: Path, keys: Iterable[str]) -> None:
    for key in keys:
        if key in _KEYS:
            continue
        close = get_close_matches(key.replace("_", "-").lower(), _KEYS, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(_KEYS)}."
        raise UsageError(f"{path}: {key!r} is unknown. {hint}")


def _value(path: Path, row: OptionRow, told: object, root: Path) -> Any:
    where = f"{path}: {row.word}"
    if row.option.refused:
        raise UsageError(f"{where} cannot be given by a file: {row.option.refused}.")
    try:
        value: Any = msgspec.convert(told, _TYPES.get(row.kind, str))
        if row.kind != "flag":
            value = row.parse(str(value), where)
    except UNREADABLE as error:
        raise UsageError(f"{where} has no value of its kind ({error}). {_form(row)}") from None
    if row.name == "target":
        return _known_by_name(where, value)
    return _inside(where, value, path.parent, root) if row.option.path and value else value


def _form(row: OptionRow) -> str:
    forms = {"flag": "true", "number": "3", "duration": '"10m"'}
    return f"Write for example {row.word} = {forms.get(row.kind, chr(34) + '...' + chr(34))}."


def _inside(where: str, told: str, folder: Path, root: Path) -> str:
    """A path of the file, absolute; it may lead to nothing outside the checkout."""
    try:
        place = (folder / told).resolve()
        parts = place.relative_to(root).parts
        inside = ".git" not in [part.lower() for part in parts]  # a disk may know no capitals
    except (OSError, RuntimeError, ValueError):
        inside = False
    if not inside:
        raise UsageError(
            f"{where}={told!r} leads out of {root}. Name a path inside the checkout, relative to "
            "the file, or give another one on the command line."
        )
    return str(place)


def _known_by_name(where: str, target: str) -> str:
    if ":" in target:
        raise UsageError(
            f"{where}={target!r} is code to import, which a file does not name. Give it by "
            "--target, or register it by an entry point of group 'fuzzgraph.targets'."
        )
    return target


def _targets(path: Path, told: object) -> tuple[str, ...]:
    where = f"{path}: {TARGETS}"
    if told is None:
        return ()
    try:
        names = msgspec.convert(told, list[str])
    except UNREADABLE as error:
        raise UsageError(f'{where} is not a list of names ({error}). Write ["..."].') from None
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{where}={names!r}: name at least one target, and each of them once.")
    return tuple(_known_by_name(where, name) for name in names)
