"""Names that a kernel's module gives to functions of Triton's language, as in `exp = tl.exp`.

The interpreter replaces attributes of the language, and such a name keeps the function that was
there before. While a kernel runs, it stands for what the attribute is then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Attribute = tuple[Any, str]
"""A module of the language, and a name in it."""

# Module of a kernel -> the names of its aliases; kept with the module, whose id is the key.
_KNOWN: dict[int, tuple[dict[str, Any], tuple[str, ...]]] = {}
# What was put into modules during this launch, and what to put back.
_CHANGED: list[tuple[dict[str, Any], str, Any]] = []
_USED: set[int] = set()
# (id of a module, alias) -> what it stands for outside of all launches, while one has changed it.
_OUTSIDE: dict[tuple[int, str], Any] = {}


def use_aliases(module: dict[str, Any], language: Mapping[int, Attribute]) -> None:
    """Let aliases in a kernel's module follow their attributes until the launch is over.

    Args:
        language: id of a function as Triton defines it -> where the language has it.
    """
    if id(module) in _USED:
        return
    _USED.add(id(module))
    if id(module) not in _KNOWN:
        names = tuple(name for name, value in module.items() if id(value) in language)
        _KNOWN[id(module)] = module, names
    for name in _KNOWN[id(module)][1]:
        found = language.get(id(outside_launches(module, name)))
        if found is None:
            continue
        target, attribute = found
        _CHANGED.append((module, name, module[name]))
        _OUTSIDE.setdefault((id(module), name), module[name])
        module[name] = vars(target)[attribute]


def outside_launches(module: dict[str, Any], name: str) -> Any:
    """What a name of a kernel's module stands for while no kernel runs; None if for nothing."""
    value = module.get(name)
    return _OUTSIDE.get((id(module), name), value) if _OUTSIDE else value


@contextmanager
def restoring_aliases() -> Iterator[None]:
    """Afterwards, aliases are what they were."""
    changed, used = _CHANGED[:], _USED.copy()
    _CHANGED.clear()
    _USED.clear()
    try:
        yield
    finally:
        while _CHANGED:
            module, name, value = _CHANGED.pop()
            module[name] = value
            # Not by a launch inside of another one's, whose aliases are still changed.
            if _OUTSIDE[id(module), name] is value:
                del _OUTSIDE[id(module), name]
        _CHANGED.extend(changed)
        _USED.clear()
        _USED.update(used)
