"""What people say of survivors: a TOML file with a table for each, read back and counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.mutants.records import Judgement, Mutant

NAME = "judgements.toml"

_HEAD = """\
# What the survivors are: judgement = "equivalent" | "unreachable" | "hole" | "unjudged".
# equivalent: nothing that a caller may rely on differs. unreachable: no case that this target can
# draw shows it; `dimension` says what cases would have to vary. hole: a case shows it, or could,
# and nobody looks.
"""


def read(path: Path) -> dict[str, Judgement]:
    """Id of a mutant -> its judgement; nothing where there is no file.

    Raises:
        UsageError: the file cannot be read, or an entry is wrong.
    """
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=dict[str, Judgement])
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        raise UsageError(
            f"{path}: no valid file of judgements ({error}). Mend it; docs/mutants.md has the "
            "fields."
        ) from None
    for name, one in found.items():
        if (one.judgement == "unreachable") != bool(one.dimension):
            raise UsageError(
                f"{path}: {name}: judgement={one.judgement!r} with dimension={one.dimension!r}. An "
                "unreachable one, and no other, names the dimension that is missing."
            )
        if one.judgement != "unjudged" and not one.why:
            raise UsageError(f"{path}: {name}: judgement={one.judgement!r} has no why. Say it.")
    return found


def add_places(path: Path, survivors: Iterable[Mutant], judged: Mapping[str, Judgement]) -> None:
    """Append an entry for each survivor that has none, to be filled in; others stay untouched."""
    missing = [one for one in survivors if one.id not in judged]
    if not missing:
        return
    begin = "" if path.exists() else _HEAD
    with path.open("a", encoding="utf-8") as file:
        file.write(begin + "".join(map(_entry, missing)))


def _entry(mutant: Mutant) -> str:
    place = f"{mutant.module}:{mutant.line} {mutant.operator}"
    lines = [f"# {mark} {line}" for mark, text in (("-", mutant.before), ("+", mutant.after))
             for line in text.splitlines()]  # fmt: skip
    fields = {"judgement": "unjudged", "dimension": "", "why": "", "mutant": place}
    # A JSON string in ASCII is a string of TOML as well.
    lines += [f"[{json.dumps(mutant.id)}]", *(f"{k} = {json.dumps(v)}" for k, v in fields.items())]
    return "\n" + "\n".join(lines) + "\n"
