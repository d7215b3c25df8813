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

# Module of a kernel -> its aliases; kept with the module, whose id is the key.
_KNOWN: dict[int, tuple[dict[str, Any], tuple[tuple[str, Attribute], ...]]] = {}
# What was put into modules during this launch, and what to put back.
_CHANGED: list[tuple[dict[str, Any], str, Any]] = []
_USED: set[int] = set()


def use_aliases(module: dict[str, Any], language: Mapping[int, Attribute]) -> None:
    """Let aliases in a kernel's module follow their attributes until the launch is over.

    Args:
        language: id of a function as Triton defines it -> where the language has it.
    """
    if id(module) in _USED:
        return
    _USED.add(id(module))
    if id(module) not in _KNOWN:
        found = [(name, language.get(id(value))) for name, value in module.items()]
        _KNOWN[id(module)] = module, tuple((name, at) for name, at in found if at is not None)
    for name, (target, attribute) in _KNOWN[id(module)][1]:
        _CHANGED.append((module, name, module[name]))
        module[name] = vars(target)[attribute]


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
        _CHANGED.extend(changed)
        _USED.clear()
        _USED.update(used)
