"""Which functions a C++ source defines where it is compiled for one platform.

Read are conditions on one macro each, as such sources ask for a platform; what stands under any
other condition is taken to be there. It is no preprocessor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fuzzgraph.targets.offline.cxx_signatures import COMMENTS

__all__ = ["lacks_method", "on_platform"]

_ASKS = re.compile(r"(?P<no>!?)\s*defined\s*\(?\s*(?P<name>\w+)\s*\)?")


def on_platform(source: str, macros: Mapping[str, bool]) -> str:
    """The source without comments, and without lines that these macros leave out.

    Args:
        macros: name -> whether it is defined; conditions on others keep all of their branches.
    """
    kept: list[str] = []
    nested: list[tuple[bool, bool | None]] = []  # whether lines are kept, what the condition was
    for line in COMMENTS.sub("", source).splitlines():
        word, _, rest = line.strip().removeprefix("#").strip().partition(" ")
        if not line.lstrip().startswith("#"):
            if all(keeps for keeps, _ in nested):
                kept.append(line)
        elif word in ("ifdef", "ifndef", "if"):
            known = _value(word, rest, macros)
            nested.append((known is not False, known))
        elif word == "elif" and nested:
            known = None if nested[-1][1] is None else _value("if", rest, macros)
            before = nested[-1][1]
            nested[-1] = (before is not True and known is not False, before or known)
        elif word == "else" and nested:
            nested[-1] = (nested[-1][1] is not True, nested[-1][1])
        elif word == "endif" and nested:
            nested.pop()
    return "\n".join(kept)


def _value(word: str, rest: str, macros: Mapping[str, bool]) -> bool | None:
    """What a condition comes to; None where that is not known."""
    asked = _ASKS.fullmatch(rest.strip())
    name, no = rest.strip(), word == "ifndef"
    if word == "if" and asked is not None:
        name, no = asked["name"], bool(asked["no"])
    elif word == "if":
        return None
    return None if name not in macros else macros[name] != no


def lacks_method(source: str, struct: str, method: str) -> bool:
    """Whether the source defines a struct, without others that it derives from, that does not name
    such a method.

    Args:
        source: what `on_platform` has left.
    """
    found = re.search(rf"\bstruct {struct}\b(?P<before>[^;{{]*)\{{", source)
    if found is None or ":" in found["before"]:
        return False
    depth, at = 1, found.end()
    while depth and at < len(source):
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return re.search(rf"\b{method}\b", source[found.end() : at]) is None
